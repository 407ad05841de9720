// Reductions on the device: of groups that are not staged through the mesh.
//
// A reduction reads this worker's own part, and puts the result into a row of the device, out of
// place. kCollective is one ncclAllReduce per dtype, with the weights in it. kExchange, of P
// members: each member sends shard j of its own part to member j. Member j adds the shards with
// their weights (Gpu::Launch) and sends the sum to all. These are two grouped calls, and 2 (P-1)/P
// rows each way. A member of weight 0 brings zeros, whatever its memory holds.
//
// One reduction at a time: two reductions of this worker never wait for each other. All NCCL
// collectives of a worker are asked for here, on one thread.
//
// The owner, or a failure here, may call a reduction off at any time. The communicator is then
// aborted, and the result is not committed. With `commit`, the device moves the result from the row
// to the tensors in the stream's order, without the processor (Gpu::Decide). The caller's stream
// can wait for the result before it is there. A reduction with `commit` that is called off has
// written all of the result or none, and Ended says which.
//
// Order. NCCL, and the work that prepares its operands, has a stream of the plane's own. This
// stream waits for the memory's stream as it was at Start; so work there that reads the row of an
// earlier reduction ends before the row is written again. The memory's stream waits for this one
// before the commit. Work of an abandoned reduction runs on the stream before the next reduction's,
// on the same rows; its flag words are its own until then.
//
// One thread: the session's background thread.
#ifndef PRD_WORKER_DEVICE_PLANE_H_
#define PRD_WORKER_DEVICE_PLANE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/device/communicators.h"
#include "worker/device/device_memory.h"

namespace prd {

class DevicePlane {
 public:
  struct Options {
    DurationNs timeout = 10 * kSecond;  // of a reduction that has begun
    Communicators::Options communicators;
  };
  // How long to wait, in the kernel, until NCCL has handed its work to the device. After that,
  // every deadline looks again. NCCL hands over on a thread of its own, in some 10 us; the first
  // time takes longer, since NCCL then makes connections.
  static constexpr DurationNs kSettle = kMillisecond;
  static constexpr DurationNs kPoll = 20 * kMillisecond;
  // How long a reduction may go on after another member broke its communicator: it can still end if
  // it has all that the others sent.
  static constexpr DurationNs kGrace = 250 * kMillisecond;

  // What a group reduces here.
  struct Part {
    const Layout* layout = nullptr;      // of the tensors; outlives the reduction
    const std::byte* row = nullptr;      // this worker's own part; null: the tensors themselves
    std::size_t position = 0;            // in the group
    bool commit = false;                 // the result goes to the tensors
    const std::byte* initial = nullptr;  // a row: what Group::initial_weight is the share of
  };

  // `wake`: the eventfd that tells of what has ended, or -1. Both outlive it.
  static Result<std::unique_ptr<DevicePlane>> Create(DeviceMemory* memory, int wake,
                                                     Options options);
  ~DevicePlane();

  Communicators& communicators() { return communicators_; }

  // Begins. The own part is read as the memory's stream has it now. Ended reports errors. REQUIRES:
  // none runs; the choice is not kStaged.
  void Start(Instant now, const Group& group, const Communicators::Choice& choice,
             const Part& part);
  // All work is handed to the device: the commit happens, or not, in the memory's stream.
  bool Enqueued() const;
  // To be called in every turn until it returns a Status. nullopt: the reduction runs. Ok: the
  // result is in result(), and with `commit` in the tensors, in the order of the memory's stream.
  // Not ok: nothing was changed; the communicator is broken, and its members know. kAborted: a
  // member is gone or gave up; kDeadlineExceeded; kCancelled: Cancel; or the device's own failure.
  std::optional<Status> Ended(Instant now);
  // REQUIRES: Ended gave ok. A row, which stays as it is until the next Start; the initial model's
  // part is in it.
  const std::byte* result() const { return staging_.data(); }
  // Gives the reduction up. Once it is Enqueued with `commit`, it runs until the device has said
  // whether the result was written; Ended reports that. Does nothing if no reduction runs.
  void Cancel(Instant now, const std::string& why);
  // Starts the time limit anew: members are known to be on their way.
  void Extend(Instant now);
  bool running() const { return run_.has_value(); }
  // Handed to peers: bytes of the row times 2 (P-1)/P, of a member of P. Of the newest one.
  std::uint64_t sent_bytes() const { return sent_bytes_; }

  std::optional<Instant> NextDeadline() const;

 private:
  enum class Phase : std::uint8_t {
    kAsked,      // NCCL has all of it, and is not through with handing it over
    kScattered,  // the same of an exchange's first half
    kEnqueued,   // all is handed to the device
  };
  // Pinned words, for as long as the device may read or write them.
  struct Words {
    std::uint32_t* flag = nullptr;
    std::uint32_t* said = nullptr;
    Gpu::Event used = nullptr;  // recorded after them
  };
  struct Run {
    Group group;
    Communicators::Choice choice;
    Communicators::Use use;
    Part part;
    Phase phase = Phase::kAsked;
    bool held = false;
    std::vector<double> shares;      // by position, then the initial model's
    const std::byte* own = nullptr;  // of an exchange, if it contributes: its part, a row
    std::optional<Words> words;      // with commit, once enqueued
    Instant begun;
    Instant looked;  // last
    std::optional<Instant> broken_at;
    std::optional<Instant> failed_at;
    Status failure;
  };
  struct Shard {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::size_t size() const { return end - begin; }
  };

  DevicePlane(DeviceMemory* memory, int wake, Options options);

  Status CreateHandles();
  Status Begin();
  Status Noted(Status status);
  Status SizeRows();
  Status Grow(Row* row, std::size_t bytes);
  Result<const std::byte*> Own(std::size_t begin, std::size_t end);
  Status Launch(std::size_t offset, std::size_t length, std::byte* to,
                std::initializer_list<Gpu::Input> from);
  Status LaunchOn(Gpu::Stream stream, std::size_t offset, std::size_t length, std::byte* to,
                  std::span<const Gpu::Input> from, const std::uint32_t* skip);
  Status Collective();
  Status AddInitial();
  Shard ShardOf(std::size_t position) const;
  std::byte* Slot(std::size_t position);
  template <typename F>
  Status Exchanged(F&& one);
  Status Scatter();
  Status Sum();
  Status Spread();
  Status Next();
  Status Commit();
  Result<Words> TakeWords();
  Status Settle();
  std::optional<Status> Outcome(Instant now);
  Status Look(Instant now);
  void Fail(Instant now, const Status& status);
  Status Finish(Status status);

  DeviceMemory* memory_;
  std::shared_ptr<Gpu> gpu_;
  int wake_;
  Options options_;
  Communicators communicators_;
  Gpu::Stream stream_ = nullptr;   // NCCL's
  Gpu::Event inputs_ = nullptr;    // on the memory's stream: the own part is there
  Gpu::Event reduced_ = nullptr;   // on NCCL's: the result is
  std::uint32_t* word_ = nullptr;  // of the device, used in the order of the memory's stream
  std::deque<Words> words_;        // not used by what runs; the device may still use the newest
  Row staging_;
  Row scratch_;
  // Rows that were too small, until NCCL's stream has got past what it does with them.
  std::deque<std::pair<Gpu::Event, Row>> old_rows_;
  std::optional<Run> run_;
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace prd

#endif  // PRD_WORKER_DEVICE_PLANE_H_
