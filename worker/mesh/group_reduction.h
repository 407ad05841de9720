// One group on one member: what it reduces, by which transport, and where the result goes.
//
// Its caller says what is reduced, and where the result goes (Mesh::StartReduce). The group's
// leader chooses the transport (worker/device/communicators.h): on the device, by its plane; or
// staged, by a Reduction (reduction.h) over the peers' connections. A staged group of a replica on
// a device copies its part to host memory first, and the result back; frames that arrive before are
// kept. The stages of a group: taken (its part is fixed), chosen (the transport), begun (on the
// plane, or able to take frames), ended.
//
// On the plane, the device itself commits a result that goes straight into the parameters, in its
// stream's order and window by window (DevicePlane::Into). Once that is enqueued, the caller need
// not wait. If the reduction fails after that, some windows of the parameters may have been
// averaged, and the next attempt waits until the caller is back (ReplicaStore::away).
//
// What is contributed as a row of its own is replaced by what comes of it, without another row:
// by the result, or by what it changes. So are parameters and gradients of a replica on a host that
// are averaged while their caller waits, chunk by chunk; and parameters whose changes since a
// round's start are. A reduction that fails after that leaves some chunks averaged. The next group
// averages parameters again; a folded inbox (ReplicaStore::fold) keeps the chunks that it has.
// Gradients and changes it takes as they are where some member has the
// average, and sums where none has (Reduction::Options::done): so all have one average of each
// element, and nothing is in it twice. Nobody copies a replica whose parameters are being replaced
// (ReplicaStore::landing); where there is a base, that is copied. The
// common start replaces replicas of workers that attach (Mesh::StartReduce, in_place), and leaves
// them torn if it fails.
//
// Part of Mesh: used by the background thread alone.
#ifndef PRD_WORKER_MESH_GROUP_REDUCTION_H_
#define PRD_WORKER_MESH_GROUP_REDUCTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/device/communicators.h"
#include "worker/device/plane.h"
#include "worker/memory/buffers.h"
#include "worker/mesh/fetch.h"
#include "worker/mesh/frame.h"
#include "worker/mesh/group_links.h"
#include "worker/mesh/own_part.h"
#include "worker/mesh/peers.h"
#include "worker/mesh/reduction.h"
#include "worker/mesh/replica_store.h"

namespace prd {

class GroupReduction {
 public:
  // Parts of the mesh, which outlive the reduction.
  struct Context {
    ReplicaStore* store = nullptr;
    Peers* peers = nullptr;
    Buffers* buffers = nullptr;  // host memory
    Communicators* communicators = nullptr;
    DevicePlane* plane = nullptr;  // null: no device
    Incarnation self = 0;
    RunId run = kNoRun;
    Plan plan;
    DurationNs timeout = 0;
    std::size_t chunk_bytes = 0;
    std::size_t direct_bytes = 0;
  };

  GroupReduction(Context context, Instant now, const Group& group, Reduced what, Iteration gain,
                 bool in_place);
  ~GroupReduction() { context_.store->landing = context_.store->fold.open = false; }
  // Reports nothing.
  void Cancel(Instant now);

  GroupId id() const { return group().id; }
  GroupKind kind() const { return group().kind; }
  // It has begun on the plane.
  bool OnDevice() const { return started_; }
  // It has not failed yet.
  bool runs() const { return failure_.ok(); }
  void Fail(Status why);
  // The same, and its members have been told.
  void CallOff(Status why);

  // Advances as far as it can without a frame. True: it takes frames from now on.
  bool Advance(Instant now);
  bool hears() const { return hears_; }
  // A frame of this group: kFail, or any frame while hears(). False: the frame is dropped.
  bool OnFrame(Instant now, const FrameHeader& header, SharedBytes payload);
  bool OnPong(Instant now, const FrameHeader& header);
  // Tells the other members, as if they had asked, that something is to come from here.
  void SayToCome(Instant now) { links_.SayToCome(now); }
  void OnLost(const std::string& endpoint);
  // Sends the next frame of own bytes, if its receiver is ready. False: there is none now.
  bool SendOwn(Instant now);

  // True once: later work on the device sees the result, if the reduction succeeds.
  bool HandedOver();

  // nullopt: it runs, or waits for the store's mutex. Otherwise it is over: the result is where it
  // belongs, or all members have been told that it failed. Returns that once.
  std::optional<Status> End(Instant now);
  std::uint64_t sent_bytes() const;
  // The positions of members that could not be reached. REQUIRES: it ended, and not ok.
  const std::vector<std::size_t>& unreachable() const { return links_.unreachable(); }
  const GroupMember& member(std::size_t position) const { return links_.member(position); }
  // REQUIRES: it ended ok.
  const Communicators::Choice& choice() const { return *choice_; }
  // What Group::digest asks for, of one that ended ok; 0: not asked for, or the result is not in
  // the parameters yet.
  std::uint64_t digest() const { return digest_; }
  // Where the result of a kRound that ended ok is, until the next reduction starts. Else none.
  RoundResult result() const;

  std::optional<Instant> NextDeadline() const;
  // Frames that come now are to be kept: it may take them later.
  bool waits() const { return failure_.ok() && !hears_ && !started_; }
  // The own part is being copied to host memory.
  bool copies() const { return waits() && (copied_ || !Readable()); }

 private:
  const Group& group() const { return links_.group(); }
  bool OnPlane() const { return choice_ && choice_->way != Way::kStaged; }
  bool Needs(std::size_t position) const { return reduction_ && reduction_->Needs(position); }
  bool Complete() const { return reduction_ && reduction_->Complete(); }

  // The result is there without a commit. REQUIRES: it ended ok.
  bool stays() const { return reduction_ && part_.ResultStays(); }
  void Staged();
  void NoteLanding();
  void Copy();
  bool Readable() const;
  void StartPlane(Instant now);
  void Connect();

  void WatchSilence(Instant now);
  bool Ended(Instant now);
  void GiveUpPlane(Instant now, const std::string& why);
  bool CommittedAnyhow(Instant now);
  Memory::Place ResultRow() const;
  Status Commit();
  void AddToBase(const Memory::Place& mean);
  void CommitParameters(const Memory::Place& result, Weight initial);

  Context context_;
  GroupLinks links_;
  OwnPart part_;
  Iteration gain_;
  std::optional<Communicators::Choice> choice_;
  bool asked_ = false;  // the communicators know of it

  // Staged.
  Layout row_;                           // what is contributed, in host memory
  std::shared_ptr<Buffer> own_;          // where it is, of a device's
  bool copied_ = false;                  // or on its way there
  std::shared_ptr<Buffer> staging_;      // null: the result comes to where the own part is
  const std::byte* arriving_ = nullptr;  // or it comes to a row of the store's, and is there
  std::optional<Reduction> reduction_;
  bool hears_ = false;

  // On the plane.
  bool started_ = false;
  bool handed_over_ = false;
  bool ended_ = false;

  Status failure_;
  std::uint64_t digest_ = 0;
  bool told_ = false;  // all members have been told that it failed
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_GROUP_REDUCTION_H_
