// Reductions on the device: what Mesh does with a group whose way is not the staged one.
//
// A reduction reads this worker's own part, and puts the result into a row of the device, out of
// place. kCollective: one ncclAllReduce per dtype, weights in the reduction, on a stream of its
// own. kExchange, of P members: everybody sends shard j of its own part to member j, who adds them
// with their weights (Gpu::Launch) and sends the sum to all: two grouped calls, 2 (P-1)/P rows each
// way. A member of weight 0 brings zeros, whatever its memory holds.
//
// One at a time: two reductions of this worker never wait for each other. All of NCCL's collectives
// of a worker are asked for here, on one thread.
//
// Called off at any time, by the owner or a failure here: the communicator is aborted, and the
// result is not committed. With `commit`, the result goes on from the row to the tensors in the
// stream's own order, without the processor (Gpu::Decide), so that the caller's stream may be made
// to wait for it before it is there; called off, either all of it is written or nothing.
//
// One thread: the session's background thread.
#ifndef PRD_WORKER_DEVICE_PLANE_H_
#define PRD_WORKER_DEVICE_PLANE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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
  // What a group reduces here.
  struct Part {
    const Layout* layout = nullptr;      // of the tensors; outlives the reduction
    const std::byte* row = nullptr;      // this worker's own part; null: the tensors themselves
    std::size_t position = 0;            // in the group
    bool commit = false;                 // the result goes to the tensors
    const std::byte* initial = nullptr;  // a row: what Group::initial_weight is the share of
  };

  // `wake`: the eventfd that tells of what has ended. Both outlive it.
  static Result<std::unique_ptr<DevicePlane>> Create(DeviceMemory* memory, int wake,
                                                     Options options);
  ~DevicePlane();

  Communicators& communicators() { return communicators_; }

  // Begins. REQUIRES: none runs; the choice is not kStaged. The own part is read from where it is
  // as the memory's stream has it now. What goes wrong, Ended says.
  void Start(Instant now, const Group& group, const Communicators::Choice& choice,
             const Part& part);
  // All of it is handed to the device: `commit` will be done, or not, in the memory's stream.
  bool Enqueued() const;
  // nullopt: it runs. Ok: the result is in result(), and with commit in the tensors, in the order
  // of the memory's stream. Not ok: nothing was changed; the communicator is broken, and its
  // members know.
  std::optional<Status> Ended(Instant now);
  // REQUIRES: Ended gave ok. A row, which stays as it is until the next Start; the initial model's
  // part is in it.
  const std::byte* result() const;
  // Gives it up. Also after Ended, when it ends nothing.
  void Cancel(Instant now, const std::string& why);
  bool running() const;
  // Handed to peers: bytes of the row times 2 (P-1)/P, of a member of P.
  std::uint64_t sent_bytes() const;

  std::optional<Instant> NextDeadline() const;

 private:
  DevicePlane(DeviceMemory* memory, int wake, Options options);

  DeviceMemory* memory_;
  Communicators communicators_;
};

}  // namespace prd

#endif  // PRD_WORKER_DEVICE_PLANE_H_
