// Reductions on the device: of groups that are not staged through the mesh.
//
// A reduction goes by windows of the row, one after another, the same ones on all members. It reads
// this worker's own part of a window, and puts the result into a row of the device, out of place.
// kCollective is one ncclAllReduce per dtype, with the weights in it. kExchange, of P members: each
// member sends shard j of its own part to member j. Member j adds the shards with their weights
// (Gpu::Launch) and sends the sum to all. These are two grouped calls, and 2 (P-1)/P windows each
// way. A member of weight 0 brings zeros, whatever its memory holds.
//
// One reduction at a time: two reductions of this worker never wait for each other. All NCCL
// collectives of a worker are asked for here, on one thread.
//
// The result's row is as long as the whole (Into::kRow), and stays; or it is as long as a window,
// and the device moves each window's result on from there, in the stream's order and without the
// processor (Gpu::Decide). The caller's stream can wait for the result before it is there.
//
// The owner, or a failure here, may call a reduction off at any time. The communicator is then
// aborted. What a window of the tensors holds then is all of its result, or what was there before;
// Ended says whether all windows hold their results.
//
// Order. NCCL, and the work that prepares its operands, has a stream of the plane's own. This
// stream waits for the memory's stream as it was at Start; so work there that reads the row of an
// earlier reduction ends before the row is written again. The memory's stream waits for this one
// before it moves a window's result, and this one for that before the next window. Work of an
// abandoned reduction runs on the stream before the next reduction's, on the same rows; its flag
// words are its own until then.
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
  // A reduction of so much takes NCCL much longer than it takes to begin one.
  static constexpr std::size_t kWindowBytes = 64 << 20;
  struct Options {
    DurationNs timeout = 10 * kSecond;  // of a reduction that has begun
    // The same on all members; a multiple of 64.
    std::size_t window_bytes = kWindowBytes;
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

  // Where the result goes. After a failure, Part::row holds anything.
  enum class Into : std::uint8_t {
    kRow,      // a row of the plane's: result()
    kTensors,  // the tensors
    kOwn,      // Part::row = result
    kChange,   // Part::row = result - Part::row
  };
  // What a group reduces here.
  struct Part {
    const Layout* layout = nullptr;  // of the tensors; outlives the reduction
    std::byte* row = nullptr;        // this worker's own part; null: the tensors themselves
    std::size_t position = 0;        // in the group
    Into into = Into::kRow;
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
  // All work is handed to the device: the result gets where it goes, or not, in the memory's
  // stream.
  bool Enqueued() const;
  // To be called in every turn until it returns a Status. nullopt: the reduction runs. Ok: the
  // result is where it goes, in the order of the memory's stream. Not ok: some windows may be; the
  // communicator is broken, and its members know. kAborted: a
  // member is gone or gave up; kDeadlineExceeded; kCancelled: Cancel; or the device's own failure.
  std::optional<Status> Ended(Instant now);
  // REQUIRES: Ended gave ok, of Into::kRow. A row, which stays as it is until the next Start; the
  // initial model's part is in it.
  const std::byte* result() const { return staging_.data(); }
  // Gives the reduction up. Once it is Enqueued, and not for kRow, it runs until the device has
  // said whether the result was written; Ended reports that. Does nothing if no reduction runs.
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
  struct Shard {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::size_t size() const { return end - begin; }
  };
  // Pinned words, for as long as the device may read or write them.
  struct Words {
    std::uint32_t* flag = nullptr;
    std::uint32_t* said = nullptr;     // of the last window
    std::uint32_t* unheard = nullptr;  // of the others
    Gpu::Event used = nullptr;         // recorded after them
  };
  struct Run {
    Group group;
    Communicators::Choice choice;
    Communicators::Use use;
    Part part;
    Shard window;  // of the row
    Phase phase = Phase::kAsked;
    bool held = false;
    std::vector<double> shares;      // by position, then the initial model's
    const std::byte* own = nullptr;  // of an exchange, if it contributes: its part of the window
    std::optional<Words> words;      // but for kRow, once the first window's result is to be moved
    Instant begun;
    Instant looked;  // last
    std::optional<Instant> broken_at;
    std::optional<Instant> failed_at;
    Status failure;
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
  bool Last() const { return run_->window.end == run_->part.layout->bytes(); }
  std::byte* ResultAt(std::size_t at);
  Status BeginWindow();
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
  Status Land();
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
