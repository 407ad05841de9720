// The data plane of one worker: reductions and replica copies with its peers over a transport
// (worker/transport/transport.h), and reductions between devices.
//
// Any subset of workers can reduce, without a communicator or other set-up. A connection to a peer
// (peers.h) is made when it is first needed. A mesh has no sockets, no threads and no clock: it
// gets the time, and takes frames from its transport. No call blocks or spins: the owner waits on
// the transport, for what is watched, until the deadline, then calls Service. A mesh runs one
// reduction and one fetch at a time. Any number of peers may copy this worker's replica meanwhile.
//
// A mesh talks to workers alone that the controller has announced to it (Announce, and members that
// commands name): a connection of anybody else is not read (door.h), and answers go to where the
// controller says that their receiver is.
//
// A group goes through the mesh, or over the device that the replica is on (group_reduction.h).
//
// A reduction, a fetch or a pull that hears nothing asks the peers that it needs (silence.h), and
// fails if one of them does not answer within the time limit, which is the job's lease. A peer's
// mesh answers whatever its training loop does. It says that something is to come if it does what
// was asked for, may yet begin it, or has sent all over a connection that stands. So a slow or late
// peer is waited for. A reduction reports the members that it could not reach.
//
// Probes (Probe) ask peers whether they answer, beside all else.
//
// Not thread safe: used by the session's background thread alone.
#ifndef PRD_WORKER_MESH_MESH_H_
#define PRD_WORKER_MESH_MESH_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/device/plane.h"
#include "worker/mesh/comm_link.h"
#include "worker/mesh/copies.h"
#include "worker/mesh/directory.h"
#include "worker/mesh/early_frames.h"
#include "worker/mesh/exchange.h"
#include "worker/mesh/frame.h"
#include "worker/mesh/group_reduction.h"
#include "worker/mesh/intake.h"
#include "worker/mesh/peers.h"
#include "worker/mesh/prober.h"
#include "worker/mesh/replica_store.h"
#include "worker/transport/transport.h"

namespace prd {

// Called from Mesh::Service only, once for each StartReduce and StartFetch that is not cancelled.
class MeshEvents : public ExchangeEvents {
 public:
  // ok: the result is where it belongs (StartReduce). Otherwise all is as it was. `unreachable`:
  // members that did not answer, or to which the connection broke.
  // `digest`: of the parameters with the result, if Group::digest asks for it and the result goes
  // there; else 0.
  virtual void OnReduced(GroupId group, const Status& status, std::uint64_t sent_bytes,
                         const std::vector<Rank>& unreachable, std::uint64_t digest) = 0;
  // For a group whose result goes straight into the parameters, on a device: the reduction is
  // enqueued, and later work on the device sees the result if the reduction succeeds. OnReduced
  // says whether it did. Called at most once, before OnReduced.
  virtual void OnHandedOver(GroupId /*group*/, std::uint64_t /*sent_bytes*/) {}
  // ok: the replica, or the result, is in the store; the iteration is the source's with its inbox,
  // or the round's. Otherwise the store is as it was.
  virtual void OnFetched(const Status& status, Iteration iteration) = 0;
  // Ends a StartSample: the peer's parameters as a row in host memory; null if not ok.
  virtual void OnSampled(const Status& /*status*/, const std::shared_ptr<Buffer>& /*row*/) {}
  // A target of the newest Probe has answered. Once per target and Probe.
  virtual void OnProbed(Rank /*rank*/, Incarnation /*incarnation*/) {}
  // Intake::TakeIntruder.
  virtual void OnIntruder(const std::string& /*what*/) {}
};

// What the job's config says.
struct MeshProtection {
  MeshSecurity security = MeshSecurity::kNone;
  // NCCL protects nothing. Under any security but kNone it is used only if its network is trusted.
  bool device_network_trusted = false;
  bool MayUseNccl() const { return security == MeshSecurity::kNone || device_network_trusted; }
  friend bool operator==(const MeshProtection&, const MeshProtection&) = default;
};

class Mesh {
 public:
  // Equal on all workers of a job: they are part of the protocol. Measured on two cores, 4
  // processes: 64 MiB takes about as long with chunks of 256 KiB to 1 MiB, and longer with smaller
  // ones. Up to 128 KiB, direct sends are 1.2 to 2 times as fast as the ring, but their bytes grow
  // with the group.
  static constexpr std::size_t kChunkBytes = 512 << 10;
  static constexpr std::size_t kDirectBytes = 64 << 10;
  static constexpr DurationNs kDefaultLease = 10 * kSecond;

  struct Options {
    Incarnation incarnation = 0;
    std::string host;                   // as in Hello
    std::optional<MeshKeyPair> keys;    // drawn, if there are none
    SecretOf secret_of = SharedSecret;  // a simulator remembers what it has computed
    DurationNs timeout = 0;             // for a silent peer's answer; 0: the lease
    std::size_t chunk_bytes = kChunkBytes;
    std::size_t direct_bytes = kDirectBytes;
    // What Probe finds out whether a path carries it: more than a jumbo frame of Ethernet (9,000).
    std::size_t probe_bytes = 9 << 10;
    // Frames for groups not announced here yet are kept up to so many bytes, or two rows if that is
    // more.
    std::size_t early_bytes = 16 << 20;
    // The longest part of a frame that it sends or takes.
    std::size_t LongestPart() const;
  };

  // The pointers must outlive the mesh. kInternal: no key can be drawn.
  static Result<std::unique_ptr<Mesh>> Create(std::unique_ptr<Transport> transport, Options options,
                                              ReplicaStore* store, MeshEvents* events);

  // Where peers reach this mesh.
  const std::vector<std::string>& endpoints() const { return transport_->endpoints(); }
  // By which peers know this mesh.
  const MeshKey& key() const { return directory_.own().public_key; }

  // From now on the store uses this memory, and reductions this plane (null: no device). The
  // store's rows are lost, and all that this mesh was doing. The memory outlives the plane.
  void UseMemory(std::unique_ptr<Memory> memory, std::unique_ptr<DevicePlane> plane);

  // From now on this mesh belongs to this incarnation, in no run. Drops all work under way, without
  // events. SetIncarnation and JoinRun empty outbox and inbox, and forget all of the exchange;
  // JoinRun also forgets the base.
  void SetIncarnation(Incarnation incarnation);
  // JoinRun and a new incarnation forget whom the controller has announced.
  void JoinRun(RunId run, const Plan& plan, DurationNs lease = kDefaultLease,
               MeshProtection protection = {});
  // The controller has announced these members: they may turn to this worker from now on. Those
  // that a command names are announced by that. `copies`: each may copy the replica, or its
  // parameters, once. Nobody else gets a replica; whoever was in a round may copy its result.
  void Announce(Instant now, const SharedList<GroupMember>& members, bool copies = false);
  // These are out. Their connections end, nothing that came from them counts, and they get nothing
  // any more. What needs them here fails, as if their connections were lost.
  void ForgetMembers(Instant now, const std::vector<Incarnation>& members);

  // Reduces with the group: what this member contributes, and where the result goes, says `what`.
  //   parameters -> parameters   in place
  //   parameters -> inbox        contributes the virtual replica, parameters + inbox, as it is now,
  //                              or, if the store's mutex is taken, when that is free. Adds the
  //                              average's difference to it, which is worth `gain` iterations.
  //   gradients -> gradients     in place
  //   gradients -> inbox         contributes the outbox, which is empty afterwards, or nothing if
  //                              this member's weight is 0. Adds the result, or replaces what is
  //                              there (TakesNewestOnly).
  //   change -> base             contributes parameters - base. base += OuterRate * result; then
  //                              the parameters are equal to base.
  // The replica's iteration becomes the group's where the result goes to the parameters or the
  // base, unless the group trains and was DrawnAhead. kInitial and kFinal empty outbox and inbox,
  // and set the base. kInitial reduces kept state with the parameters. The result of a kRound can
  // be fetched here until the next reduction starts. REQUIRES: none is running; the group has been
  // checked (distinct members, this one among them, finite weights). Any other combination, a row
  // that the plan does not keep, and an outbox that is empty fail with kFailedPrecondition.
  // `in_place`: of kInitial, to which this member contributes nothing. On a host the result
  // replaces the replica as it comes (ReplicaStore::torn).
  void StartReduce(Instant now, const Group& group, Reduced what = {}, Iteration gain = 0,
                   bool in_place = false);
  void CancelReduce();
  // Calls off a reduction that a device is about to commit, if that is still possible. OnReduced
  // reports the outcome.
  void GiveUpReduce(const std::string& why);
  // Neither this group nor an earlier one will be started here. A running one goes on.
  void CallOff(GroupId group) { last_group_ = std::max(last_group_, group); }
  // Copies the source's replica, or the result of a kRound that failed here. A replica comes with
  // its inbox, which AveragesInBackground adds to it; under Payload::kChange and HasStore it is the
  // base. A result goes where the round would have put it; `contributed`: the outbox was part of
  // it. kNotFound: the source does not have that result any more. `in_place`: a replica
  // replaces the one here as it comes (ReplicaStore::torn).
  void StartFetch(Instant now, const GroupMember& source, GroupId result = kNoGroup,
                  bool contributed = false, bool in_place = false);
  void CancelFetch();
  // Copies the source's parameters, as a fetch would, into host memory; the store is not changed.
  // One at a time, beside a fetch.
  void StartSample(Instant now, const GroupMember& source);
  void CancelSample();
  // Asks these until each has answered (OnProbed), instead of those of the Probe before.
  void Probe(Instant now, const SharedList<GroupMember>& targets);

  // The exchange outside of groups, whatever else runs (exchange.h).
  template <typename Action>
  void Do(Instant now, const Action& action) requires requires(Exchange& exchange) {
    exchange.Do(now, action);
  }
  {
    if constexpr (std::is_same_v<Action, SetPeers>) Meet(now, action.peers);
    exchange_.Do(now, action);
    if constexpr (std::is_same_v<Action, SetPeers>) Rest();
  }

  // Copies the replica for peers that wait for it, if it may be read now.
  void ServeWaiting(Instant now) { copies_.ServeWaiting(now); }

  // Tells all peers that wait for something from here that it is to come. May be called by Service
  // itself, from within (memory/meanwhile.h): a peer that hears nothing for as long as a lease
  // gives up.
  void SayToCome(Instant now);

  // Moves everything as far as it goes now. A complete result is committed when the store's mutex
  // is free. A thread that holds the mutex for long wakes the owner when done, for another Service.
  void Service(Instant now);
  std::optional<Instant> NextDeadline() const;
  // The connections to wait for, beside what comes to the transport.
  const std::vector<Watched>& WatchedLinks();

  struct Counters {
    std::uint64_t received = 0;             // frames that counted, beside these:
    std::uint64_t acknowledgements = 0;     // and questions for what may be lost
    std::uint64_t early = 0;                // kept for a group that was not announced here yet
    std::size_t early_bytes = 0;            // of those that are kept now
    std::uint64_t dropped = 0;              // of no use: of groups that are over, and the intake's
    std::uint64_t forged = 0;               // Intake::Counters
    std::uint64_t repeated = 0;             // the same
    std::uint64_t resumed = 0;              // connections that broke, and went on (Peers)
    std::array<std::uint64_t, 3> groups{};  // that ended ok, by Way
    Communicators::Choice newest;           // of the last of them
  };
  Counters counters() const;
  const Door::Counters& connections() const { return intake_.connections(); }
  Transport::Counters transported() const { return transport_->counters(); }
  const Exchange::Counters& exchanged() const { return exchange_.counters(); }
  const Communicators& communicators() const { return *link_.communicators(); }

 private:
  Mesh(std::unique_ptr<Transport> transport, Options options, const MeshKeyPair& keys,
       ReplicaStore* store, MeshEvents* events);
  void Forget(Incarnation self, RunId run);
  void ForgetMember(Instant now, Incarnation member);
  void Meet(Instant now, std::span<const GroupMember> members);
  void Introduce(Instant now, const GroupMember& member);

  void Warm();
  void Advance(Instant now);

  void OnFrame(Instant now, const FrameHeader& header, SharedBytes payload);
  void OnGroupFrame(Instant now, const FrameHeader& header, SharedBytes payload);
  void OnPing(Instant now, const FrameHeader& header, SharedBytes payload);
  bool OnPong(Instant now, const FrameHeader& header);
  Answer AnswerTo(Instant now, const FrameHeader& ping, const std::string& endpoint);
  void OnLost(Instant now, const std::string& endpoint);
  void GiveUp(Instant now, const std::string& endpoint);
  void FinishReduce(Instant now);
  void FinishCopies(Instant now);
  void Rest();

  Options options_;
  DurationNs timeout_;
  ReplicaStore* store_;
  MeshEvents* events_;
  Directory directory_;
  std::unique_ptr<Transport> transport_;
  Peers peers_;
  Intake intake_;
  MeshProtection protection_;
  std::unique_ptr<DevicePlane> plane_;
  CommLink link_;
  // Results in host memory until they are committed. Kept from one reduction to the next. To hold
  // the received messages instead would save a copy, and cost more for memory that comes and goes.
  Buffers buffers_;
  Copies copies_;
  Exchange exchange_;
  Plan plan_;
  GroupId last_group_ = kNoGroup;  // the newest one started here
  bool warm_ = false;              // the run's start is over, and its memory given back
  std::optional<GroupReduction> active_;
  Prober prober_;
  EarlyFrames early_;
  bool more_to_do_ = false;
  Instant now_;  // of the last Service or StartReduce
  std::vector<Watched> watched_;
  Counters counters_;
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_MESH_H_
