@0xa8ed1a79c2b353a5;

# The control protocol: what workers and the controller say to each other, one envelope per ZeroMQ
# message (worker: DEALER, controller: ROUTER). The meaning of every message stands at its struct in
# common/base/messages.h; here are its units, its lifetimes and who sets it.
#
# Evolution: fields are only ever added, at the end, with a default that means "not told". A change
# of meaning is a new protocol version (Hello.version). Enumerants are in the order of the C++ enums
# of the same name; a receiver refuses one that it does not know.
#
# Times are in nanoseconds unless a name says otherwise; sizes are in bytes.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("prd::wire");

# ---- ids ----
#
# run          Set by the controller at Welcome. Lives from the first worker of a job to the last;
#              unique within a state directory, never used again.
# rank         Set by the worker's launcher or, for -1, by the controller. One live worker at a time
#              holds it; after a death another incarnation may.
# identity     128 random bits. The high half is drawn when the run starts: it tells the run from all
#              others, whatever state directory they are in. The low half is drawn when the
#              controller's process starts. A worker repeats the newest identity that it was sent.
#              Both halves 0: none.
# incarnation  Drawn at random by the worker when it says Hello, never 0. Lives as long as its link.
# group        Set by the controller, from 1. Unique within a run, never used again.
# seq, ack     Per direction of one incarnation's link, from 1. A seq lives until the other side has
#              acknowledged it; 0 marks messages outside the order (Heartbeat, HeartbeatAck, Refused).

enum Code {  # of prd/status.h
  ok @0;
  invalidArgument @1;
  notFound @2;
  alreadyExists @3;
  failedPrecondition @4;
  unavailable @5;
  deadlineExceeded @6;
  aborted @7;
  dataLoss @8;
  resourceExhausted @9;
  cancelled @10;
  internal @11;
}

enum Payload {
  parameters @0;
  gradients @1;
  change @2;
}

enum Membership {
  announced @0;
  ahead @1;
  schedule @2;
}

enum Outcome {
  ok @0;
  failed @1;
  aborted @2;
}

enum GroupKind {
  train @0;
  initial @1;
  final @2;
  round @3;
  average @4;
}

enum MeshSecurity {
  none @0;
  aead @1;
  curve @2;
}

enum HasGradients {
  here @0;
  none @1;
  later @2;
}

enum OnNonfinite {
  pass @0;
  drop @1;
  stop @2;
}

# Steps and samples that were trained, and their goal; 0: not told, or none.
struct Trained {
  steps @0 :Int64;
  samples @1 :Int64;
}

# ---- worker to controller; everything is set by the worker ----

struct WorkerEnvelope {
  run @0 :UInt64;          # 0 until Welcome
  rank @1 :Int32 = -1;     # -1 until Welcome
  incarnation @2 :UInt64;
  seq @3 :UInt64;
  ack @4 :UInt64;          # the last controller message received in order
  union {
    hello @5 :Hello;       # seq 1
    ready @6 :Ready;
    finished @7 :Finished;
    adopted @8 :Adopted;
    finish @9 :Void;
    leave @10 :Leave;
    heartbeat @11 :Void;   # seq 0
    placed @12 :Placed;
    probed @13 :Probed;
    progressed @17 :Progressed;
    pause @18 :Void;
    resume @19 :Void;
    askMembers @20 :Void;
    stopJob @23 :StopJob;        # where Welcome.jobCalls, as the next
    giveNumbers @24 :GiveNumbers;
  }
  identityHigh @14 :UInt64;   # 0 until Welcome, as the next
  identityLow @15 :UInt64;
  oldest @16 :UInt64 = 1;     # the lowest seq that the worker can send again
  tokenHigh @21 :UInt64;      # the worker's secret; a hash of it in records
  tokenLow @22 :UInt64;
}

struct Hello {
  version @0 :UInt32;         # of the protocol
  job @1 :Text;               # 1 to 256 bytes
  rank @2 :Int32 = -1;        # -1: the controller chooses
  worldSize @3 :Int32;        # workers the launcher started; 0: not told
  host @4 :Text;              # equal for workers that share a host; opaque
  hostName @5 :Text;          # human-readable
  pid @6 :UInt32;
  endpoints @7 :List(Text);   # of this worker's mesh; valid as long as the incarnation
  modelBytes @8 :UInt64;
  modelHash @9 :UInt64;
  iteration @10 :Int64;
  formerHigh @11 :UInt64;     # identity of the run in which the replica was trained
  formerLow @12 :UInt64;
  launch @13 :Text;           # 0 to 256 bytes, opaque
  goal @14 :Trained;
  own @15 :Trained;
  jobTrained @16 :Trained;
  meshKey @17 :Data;          # X25519 public key, 32 bytes; empty: none
  identity @18 :Text;         # set by the daemon alone
  gradients @19 :HasGradients;
  returnsAtOnce @20 :Bool;    # says a word at once over a connection that it makes anew
  batch @21 :Int64;           # samples of a step of all workers; 0: not told
  maxShare @22 :Int64;        # samples; 0: no limit
  accumulates @23 :Bool;
  takesShares @24 :Bool;      # the worker knows SetShare
  meshVersion @25 :UInt32;    # of what workers send each other; 0: from before it was told
}

struct Ready {
  iteration @0 :Int64;   # local optimiser steps
  stepNs @1 :Int64;      # the worker's own measure of computing, waiting excluded
  samples @2 :Int64;     # 0: not told
  waiting @3 :Bool = true;   # the training loop waits for the answer
  gradients @4 :UInt32;  # offered with it, 0 or 1; for eagerGradients
  localSteps @5 :UInt32; # since the round's start; for localSteps
  rttNs @6 :Int64;       # to the controller and back, the worker's own measure; 0: unknown
  queued @7 :UInt32;     # updates in its queues; for neighbours, as the next two
  dropped @8 :UInt32;    # updates that came and were not used, since the signal before
  suppressed @9 :UInt32; # its own updates that were not sent, since then
  ownSteps @10 :Int64;   # trained by the worker so far; 0: not told, as the next
  ownSamples @11 :Int64;
  nonfinite @12 :UInt32; # steps since the report before
  losses @13 :UInt32;    # told by the training loop since the report before; 0: none
  loss @14 :Float64;     # their mean; finite
  lead @15 :UInt32;      # steps; where Welcome.batch, as the next
  madeUp @16 :UInt32;    # SetShares with `more`, of this step
  last @17 :Bool;        # of its round: no other local step follows; for localSteps
}

struct Progressed {
  ownSteps @0 :Int64;    # as in Ready, as all others
  ownSamples @1 :Int64;
  nonfinite @2 :UInt32;
  losses @3 :UInt32;
  loss @4 :Float64;
  hostBytes @5 :UInt64;    # that the library holds beside the program's tensors; as the next, 0: not told
  hostPeak @6 :UInt64;     # the most so far
  deviceBytes @7 :UInt64;
  devicePeak @8 :UInt64;
}

struct Finished {
  group @0 :UInt64;      # of a Group the worker was sent; 0: a report on links alone
  outcome @1 :Outcome;
  detail @2 :Text;       # human-readable; empty when ok
  waitNs @3 :Int64;      # from Ready sent to Group received
  reduceNs @4 :Int64;    # from Group received to the end
  bytes @5 :UInt64;      # sent to peers
  included @6 :UInt32;   # gradients of this worker's in the result of a round
  unreachable @7 :List(Int32);   # ranks of members that did not answer
  digest @8 :UInt64;     # of the parameters, where the group asked for it; 0: none
}

struct Adopted {
  ok @0 :Bool;
  iteration @1 :Int64;   # the source's, when ok
  detail @2 :Text;       # human-readable; why not ok
  included @3 :UInt32;   # as in Finished, where Adopt asked for a result
  unreachable @4 :Bool;  # not ok, since the source did not answer
}

struct Placed {
  epoch @0 :UInt64;      # of a Placement the worker was sent
}

struct Probed {
  rank @0 :Int32;          # of a target of the newest Probe, as the next
  incarnation @1 :UInt64;
}

struct Leave {
  reason @0 :Text;       # human-readable
  failed @1 :Bool;       # it cannot go on; no decision of its program
}

struct StopJob {
  reason @0 :Text;       # human-readable
}

struct GiveNumbers {
  call @0 :UInt64;             # drawn by the worker, never 0; the same when it gives them again
  values @1 :List(Float64);    # 1 to 64, of any value
}

# ---- controller to worker; everything is set by the controller ----

struct ControllerEnvelope {
  incarnation @0 :UInt64;   # whom it is for
  seq @1 :UInt64;
  ack @2 :UInt64;           # the last worker message received in order
  union {
    welcome @3 :Welcome;
    group @4 :Group;
    abort @5 :Abort;
    adopt @6 :Adopt;
    released @7 :Released;      # the last message of a link
    refused @8 :Refused;        # seq 0
    heartbeatAck @9 :HeartbeatAck;   # seq 0
    queryReply @10 :QueryReply;
    schedule @11 :Schedule;
    neighbourhood @12 :Neighbourhood;
    placement @13 :Placement;
    opened @14 :Opened;
    probe @15 :Probe;
    resumed @18 :Void;
    members @19 :Members;
    announce @24 :Announce;
    endRun @25 :EndRun;
    gone @26 :Gone;             # from version 10 of the protocol on
    numbersMean @27 :NumbersMean;    # to who gave numbers
    setShare @28 :SetShare;      # to who takes shares, where Welcome.batch
  }
  identityHigh @16 :UInt64;   # 0 in a Refused that comes from no run, as the next
  identityLow @17 :UInt64;
  steps @20 :Int64;           # trained by the job so far, as the next
  samples @21 :Int64;
  workers @22 :Int32;         # that are there now
  done @23 :Bool;             # the job's goal is reached
}

struct Members {
  members @0 :List(GroupMember);   # weights have no meaning
}

struct Announce {
  members @0 :List(GroupMember);   # weights have no meaning
  copies @1 :Bool;
}

struct Gone {
  incarnations @0 :List(UInt64);
}

struct SetShare {
  from @0 :Int64;          # as Ready.iteration; 0: from now on
  first @1 :Int64;         # of the batch, from 0
  samples @2 :Int64;       # 1 or more
  more @3 :Bool;
}

struct Welcome {
  run @0 :UInt64;
  rank @1 :Int32;
  job @2 :Text;
  engine @3 :Text;         # its name, human-readable
  workers @4 :Int32;       # that the job starts with
  leaseMs @5 :UInt32;      # milliseconds
  heartbeatMs @6 :UInt32;  # milliseconds
  plan @7 :Plan;           # for the whole run
  identityHigh @8 :UInt64;
  identityLow @9 :UInt64;
  own @10 :Trained;        # by the holder of the rank so far
  goal @11 :Trained;
  onNonfinite @12 :OnNonfinite;
  meshSecurity @13 :MeshSecurity;
  deviceNetworkTrusted @14 :Bool;
  jobCalls @15 :Bool;      # the controller knows StopJob and GiveNumbers
  batch @16 :Int64;        # samples of a step of all workers; 0: none
}

# How workers go about their steps (common/base/plan.h).
struct Plan {
  every @0 :UInt32 = 1;    # steps per signal; never 0
  union {
    groups @1 :GroupPlan;
    neighbours @2 :NeighbourPlan;
    store @3 :StorePlan;
  }
}

struct GroupPlan {
  payload @0 :Payload;
  members @1 :Membership;
  anyTime @2 :Bool;
  runAhead @3 :UInt32;         # steps
  newestOnly @4 :Bool;
  asks @5 :Bool;
  delayedAck @6 :Bool;
  keepInitial @7 :Bool;
  outerRate @8 :Float64 = 1;   # finite
}

struct NeighbourPlan {
  staleness @0 :Int32;         # iterations
  backups @1 :UInt32;          # updates
  serial @2 :Bool;
}

struct StorePlan {
  staleness @0 :Int32;         # clocks; -1: no bound
  stalenessAware @1 :Bool;
}

struct GroupMember {
  rank @0 :Int32;
  incarnation @1 :UInt64;
  weight @2 :Float64;         # finite; share in the reduction
  host @3 :Text;              # as in the member's Hello
  endpoints @4 :List(Text);   # as in the member's Hello
  passive @5 :Bool;           # its own signal is not answered
  meshKey @6 :Data;           # as in the member's Hello
}

struct Group {
  id @0 :UInt64;
  kind @1 :GroupKind;
  members @2 :List(GroupMember);   # in ring order
  iteration @3 :Int64;             # where members continue after success
  initialWeight @4 :Float64;       # finite; the initial model's share
  reason @5 :Text;                 # human-readable
  ringOnly @6 :Bool;               # members send only to those next to them
  digest @7 :Bool;                 # Finished tells one
  last @8 :Bool;                   # the steps that it ends reach the job's goal
}

struct Abort {
  group @0 :UInt64;
  reason @1 :Text;         # human-readable
  undone @2 :Bool;         # nobody has the result of that round
}

struct Adopt {
  source @0 :GroupMember;  # its weight has no meaning
  reason @1 :Text;         # human-readable
  result @2 :UInt64;       # 0: the whole replica; else the result of that round
}

struct QueryReply {
  iteration @0 :Int64;     # as in the Ready that it answers
  localSteps @1 :UInt32;   # the same
  ready @2 :Bool;
  next @3 :Int64;          # where the worker goes on; for neighbours and shardedStore
  workers @4 :UInt32;      # that train now; for shardedStore
}

struct Schedule {
  first @0 :UInt64;               # the lowest id of its groups
  members @1 :List(GroupMember);  # by rank, ascending; weights have no meaning
  hosts @2 :List(Int32);          # by member: equal for those that count as on one host
  reason @3 :Text;                # human-readable
}

struct Neighbourhood {
  in @0 :List(GroupMember);    # weight: of that neighbour's update in the average
  from @1 :List(Int64);        # by `in`: no updates of iterations before this one come
  out @2 :List(GroupMember);   # weights have no meaning
  ownWeight @3 :Float64;       # finite
  slots @4 :UInt32;            # iterations of which updates are kept, by neighbour; never 0
  at @5 :Int64;                # the receiver's iteration, if that is higher than its own
  reason @6 :Text;             # human-readable
}

struct ShardPlace {
  owner @0 :Int32;             # ranks
  holders @1 :List(Int32);
  source @2 :Int32 = -1;       # -1: nobody
}

struct Placement {
  epoch @0 :UInt64;               # of the run; from 1, ascending
  members @1 :List(GroupMember);  # weights have no meaning
  shards @2 :List(ShardPlace);    # by shard
  at @3 :Int64;                   # the receiver's clock, if that is higher than its own
  reason @4 :Text;                # human-readable
}

struct Opened {
  epoch @0 :UInt64;            # of the newest Placement
}

struct Probe {
  targets @0 :List(GroupMember);   # weights have no meaning
}

struct HeartbeatAck {
  waitsFor @0 :Text;       # human-readable; why, or for whom, this worker waits
}

struct Released {
  reason @0 :Text;         # human-readable
}

struct NumbersMean {
  call @0 :UInt64;             # as in the GiveNumbers that it answers
  values @1 :List(Float64);    # none where there is something wrong
  wrong @2 :Text;              # human-readable
}

struct EndRun {
  reason @0 :Text;         # human-readable
}

struct Refused {
  code @0 :Code;           # never ok
  reason @1 :Text;         # human-readable
  retryMs @2 :UInt32;      # milliseconds; counts for unavailable
}
