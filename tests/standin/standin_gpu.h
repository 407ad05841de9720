// A stand-in for CUDA and NCCL: shows that the calls are made as they must be; proves nothing about
// GPUs.
//
// Its device memory cannot be touched by the processor, what is queued on streams that no event
// orders runs in any order, and what CUDA or NCCL does not allow is written down: tests want
// problems() to be empty, of what is listed in README.md.
#ifndef PRD_TESTS_STANDIN_STANDIN_GPU_H_
#define PRD_TESTS_STANDIN_STANDIN_GPU_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/standin/device.h"
#include "tests/standin/hub.h"
#include "worker/device/gpu.h"

namespace prd::testing {

struct StandInOptions {
  int device = 0;                          // its number
  std::shared_ptr<StandInDevice> on;       // null: a device of its own, made of `make`
  StandInDevice::Options make;             // manual, in order
  std::shared_ptr<Hub> hub;                // null: NCCL is not there
  int busy_polls = 0;                      // CommBusy says so often that it is not ready yet
  int busy_polls_of_first_collective = 0;  // and that the first call is not handed over yet
};

class StandInGpu : public Gpu {
 public:
  // kUnavailable: there are not enough addresses for its memory (arena.h).
  static Result<std::shared_ptr<StandInGpu>> Create(StandInOptions options = {});
  explicit StandInGpu(StandInOptions options);  // REQUIRES: options.on
  ~StandInGpu() override;

  // ---- for tests ----

  // Drives it (Turn, Advance, queued), orders faults, has the problems.
  StandInDevice& device() { return *device_; }
  const std::shared_ptr<StandInDevice>& shared_device() const { return device_; }
  std::vector<std::string> problems() const { return device_->problems().list(); }
  // Device or pinned memory as it is now, past all streams.
  std::vector<std::byte> Read(const void* data, std::size_t bytes) const;
  void Write(void* data, const void* from, std::size_t bytes);
  // The next CommInit fails, or never comes to an end.
  void FailInit() { fail_init_ = true; }
  void HangInit() { hang_init_ = true; }
  // From now on CommBusy tells of an error of this communicator; of null, of all.
  void FailComm(Comm comm);
  // Calls of communicators from now on never end, unless by CommAbort; or do again.
  void HangCollectives(bool hang = true) { hang_collectives_ = hang; }
  // Communicators that were made and not aborted.
  std::size_t comms() const;
  // Streams and events of this Gpu that are there.
  std::size_t handles() const;

  // ---- Gpu ----

  std::string name() const override;
  std::string cuda_version() const override { return "0 (stand-in)"; }
  std::string nccl_version() const override;
  Status nccl() const override;
  Status CheckPointer(const void* data) const override;
  Result<std::byte*> Malloc(std::size_t bytes) override;
  void Free(std::byte* data) override { device_->Free(data, true); }
  Result<std::size_t> FreeMemory() override;
  Result<std::byte*> MallocHost(std::size_t bytes) override;
  void FreeHost(std::byte* data) override { device_->Free(data, false); }
  Status Copy(void* to, const void* from, std::size_t bytes, Stream stream) override;
  Status Zero(std::byte* data, std::size_t bytes, Stream stream) override;
  Result<Stream> CreateStream() override;
  void DestroyStream(Stream stream) override;
  Result<Event> CreateEvent() override;
  void DestroyEvent(Event event) override;
  Status Record(Event event, Stream stream) override;
  Status Wait(Stream stream, Event event) override;
  Result<bool> Capturing(Stream) override { return device_->capturing(); }
  Result<bool> Done(Event event) override;
  Status Synchronize(Event event) override;
  Status Notify(Stream stream, int eventfd) override;
  Result<std::shared_ptr<Table>> MakeTable(const Layout& layout) override;
  Status Launch(const Combine& combine, Stream stream) override;
  Status Decide(const std::uint32_t* flag, std::uint32_t* word, std::uint32_t* said,
                Stream stream) override;
  void MakeUniqueId() override;
  std::unique_ptr<Id> TakeUniqueId() override;
  Comm CommInit(int ranks, const UniqueId& id, int rank) override;
  Result<bool> CommBusy(Comm comm) override;
  void CommAbort(Comm comm) override;
  std::size_t aborting() const override;
  Status AllReduce(Comm comm, const std::byte* from, std::byte* to, std::size_t count, DType dtype,
                   std::optional<Weight> weight, Stream stream) override;
  Status Send(Comm comm, const std::byte* from, std::size_t bytes, int to, Stream stream) override;
  Status Receive(Comm comm, std::byte* to, std::size_t bytes, int from, Stream stream) override;
  Status GroupStart() override;
  Status GroupEnd(Comm comm) override;

 private:
  struct TheComm;
  struct TheTable;
  struct TheCall;
  struct Calls;
  struct Touched;  // the operands of a launch (launch.cc)

  std::shared_ptr<TheComm> Find(Comm comm) const;
  Status Ask(Comm comm, TheCall call, Stream stream);
  Status Issue(const std::shared_ptr<TheComm>& comm, std::vector<TheCall> calls, Stream stream);
  void Put(const std::shared_ptr<Calls>& calls);

  StandInOptions options_;
  std::shared_ptr<StandInDevice> device_;
  // What happens on the Gpu's own thread outlives it.
  struct Background;
  std::shared_ptr<Background> background_;
  mutable std::mutex mutex_;
  std::set<Stream> streams_;
  std::set<Event> events_;
  std::map<Comm, std::shared_ptr<TheComm>> comms_;  // those that were aborted, too
  bool grouping_ = false;
  std::vector<TheCall> group_;
  Stream group_stream_ = nullptr;
  Comm group_comm_ = nullptr;
  std::atomic<bool> fail_init_ = false;
  std::atomic<bool> hang_init_ = false;
  std::atomic<bool> hang_collectives_ = false;
};

}  // namespace prd::testing

#endif  // PRD_TESTS_STANDIN_STANDIN_GPU_H_
