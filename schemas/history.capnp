@0x8adc103f88aec7e8;

# What the controller's history holds: one Record per input and per decision of a run, in the order
# in which they were made. common/base/history.h has the meaning; everything is set by the
# controller. Stored in RocksDB under (run, index) as one message per record; server/README.md has
# the layout of the files.
#
# Evolution: fields are only ever added, with a default that means "not known then", and kinds of
# records only at the end of the union, so that old histories stay readable. An older prdctl refuses
# a kind of record that it does not know.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("prd::wire");

using Control = import "control.capnp";

struct Record {
  run @0 :UInt64;
  index @1 :UInt64;   # from 0 without a hole, per run
  nowNs @2 :Int64;    # the controller's clock when the input was applied; an origin of its own
  union {
    # inputs
    fromWorker @3 :Control.WorkerEnvelope;   # exactly as accepted
    leaseExpired @4 :LeaseExpired;
    deadlineReached @5 :Void;
    # decisions
    runStarted @6 :RunStarted;               # index 0
    workerJoined @7 :WorkerJoined;
    workerLeft @8 :WorkerLeft;
    groupFormed @9 :GroupFormed;
    groupEnded @10 :GroupEnded;
    adoptOrdered @11 :AdoptOrdered;
    runEnded @12 :RunEnded;                  # the last of a run
    updateDropped @13 :UpdateDropped;
    queryAnswered @14 :QueryAnswered;
    scheduleSet @15 :ScheduleSet;
    neighboursSet @16 :NeighboursSet;
    placementSet @17 :PlacementSet;
    placementOpened @18 :PlacementOpened;
    historyLost @19 :LeaseExpired;           # an input
    linkChanged @20 :LinkChanged;
    helloRefused @21 :HelloRefused;          # an input
    replicasDiffer @22 :ReplicasDiffer;
    goalReached @23 :Control.Trained;
    operatorActed @24 :OperatorActed;        # an input
    numbersAveraged @25 :NumbersAveraged;
    processEnded @26 :LeaseExpired;          # an input
    sharesSet @27 :SharesSet;
  }
}

struct LeaseExpired {
  rank @0 :Int32;
  incarnation @1 :UInt64;
}

struct RunStarted {
  job @0 :Text;
  engine @1 :Text;
  spec @2 :Text;      # the job's config as normalised TOML; for the whole run
  wallNs @3 :Int64;   # Unix time in nanoseconds, for display
  identityHigh @4 :UInt64;   # of the run; 0 in histories of earlier versions, as the next
  identityLow @5 :UInt64;    # of the controller that started it
  former @6 :FormerRun;      # the run that it continues; left out: none
}

# What a run takes over from the run that it continues.
struct FormerRun {
  run @0 :UInt64;
  trained @1 :Control.Trained;
  goal @2 :Control.Trained;
  workers @3 :Int32;                # that the job started with
  launch @4 :Text;
  modelHash @5 :UInt64;
  ranks @6 :List(FormerRank);       # ascending
  dismissed @7 :List(Dismissal);    # the newest last
  identity @8 :UInt64;              # the higher half of the run's identity
  stopped @9 :Text;                 # who has stopped the job, and why; empty: nobody
  numbers @10 :NumberRounds;        # left out: none
}

# Numbers of which workers want the mean.
struct NumberRounds {
  given @0 :List(GivenNumbers);     # in the round that is open; ascending by rank
  last @1 :NumbersAveraged;         # the newest that has ended
}

struct GivenNumbers {
  rank @0 :Int32;
  call @1 :UInt64;                  # as in Control.GiveNumbers, as the next
  values @2 :List(Float64);
}

# What workers compute of each step's batch from now on (SetShare).
struct SharesSet {
  from @0 :Int64;                   # the step, as Ready.iteration; 0: at once
  batch @1 :Int64;                  # samples
  shares @2 :List(ShareGiven);      # by rank, ascending
  more @3 :Bool;                    # of step `from` alone, besides what the workers had
  reason @4 :Text;
}

struct ShareGiven {
  rank @0 :Int32;
  first @1 :Int64;                  # of the batch
  samples @2 :Int64;
  expectedNs @3 :Int64;             # of computing that many; 0: not known
}

struct NumbersAveraged {
  round @0 :UInt64;                 # from 1 in a job; goes on in the next run
  ranks @1 :List(Int32);            # whose numbers they were; ascending
  calls @2 :List(UInt64);           # by rank
  values @3 :List(Float64);         # their mean
}

struct FormerRank {
  rank @0 :Int32;
  own @1 :Control.Trained;          # under it, so far
  awaited @2 :Bool;                 # by the common start
  hasModel @3 :Bool;                # the final average of that run
}

# Of a worker that an operator has removed.
struct Dismissal {
  incarnation @0 :UInt64;
  reason @1 :Text;
}

struct WorkerJoined {
  rank @0 :Int32;
  incarnation @1 :UInt64;
  hostName @2 :Text;
  pid @3 :UInt32;
  iteration @4 :Int64;
  reason @5 :Text;
}

enum LeftReason {
  finished @0;
  left @1;
  lost @2;
  evicted @3;
  paused @4;
  failed @5;
}

struct WorkerLeft {
  rank @0 :Int32;
  incarnation @1 :UInt64;
  why @2 :LeftReason;
  reason @3 :Text;
  gradients @4 :UInt32;   # of its own in no round: lost with it
}

struct GroupShare {
  rank @0 :Int32;
  weight @1 :Float64;
  iteration @2 :Int64;   # the member's own, at its newest ready signal
  passive @3 :Bool;      # its own signal is not answered
}

struct GroupFormed {
  id @0 :UInt64;
  kind @1 :Control.GroupKind;
  members @2 :List(GroupShare);   # in ring order
  iteration @3 :Int64;            # where members continue
  initialWeight @4 :Float64;      # with the members' weights it sums to 1
  reason @5 :Text;
  conflict @6 :Bool;              # it overlapped a group drawn before and not done
}

struct GroupEnded {
  id @0 :UInt64;
  ok @1 :Bool;
  reason @2 :Text;                # when not ok
}

struct AdoptOrdered {
  rank @0 :Int32;
  source @1 :Int32;
  reason @2 :Text;
  result @3 :UInt64;      # 0: the whole replica; else the result of that round
}

struct UpdateDropped {
  rank @0 :Int32;
  iteration @1 :Int64;    # that its model had
  reason @2 :Text;
}

struct QueryAnswered {
  rank @0 :Int32;
  iteration @1 :Int64;    # of the signal
  localSteps @2 :UInt32;  # the same
  ready @3 :Bool;
  reason @4 :Text;
  next @5 :Int64;         # where the worker goes on; 0 for engines that do not say
}

struct ScheduleSet {
  first @0 :UInt64;               # the lowest id of its groups
  members @1 :List(Int32);        # ranks, ascending
  hosts @2 :List(Int32);          # by member
  reason @3 :Text;
}

struct InEdge {
  rank @0 :Int32;                 # the sender
  weight @1 :Float64;             # of its update in the receiver's average
  from @2 :Int64;                 # the first iteration of which an update comes
}

struct NeighboursSet {
  rank @0 :Int32;
  at @1 :Int64;                   # its iteration
  in @2 :List(InEdge);            # by rank, ascending
  out @3 :List(Int32);            # ranks, ascending
  ownWeight @4 :Float64;
  slots @5 :UInt32;
  reason @6 :Text;
}

struct PlacementSet {
  epoch @0 :UInt64;
  members @1 :List(Int32);        # ranks, ascending
  at @2 :List(Int64);             # by member: its clock
  shards @3 :List(Control.ShardPlace);
  reason @4 :Text;
}

struct PlacementOpened {
  epoch @0 :UInt64;
  members @1 :List(Int32);        # ranks, ascending
}

struct LinkChanged {
  a @0 :Int32;                    # ranks, a < b
  b @1 :Int32;
  works @2 :Bool;
  reason @3 :Text;
}

struct HelloRefused {
  rank @0 :Int32;                 # -1: it asked for any
  hostName @1 :Text;
  pid @2 :UInt32;
  code @3 :Control.Code;          # never ok
  reason @4 :Text;
}

enum OperatorVerb {
  evict @0;
  drain @1;
  end @2;
  pause @3;
  resume @4;
  switch @5;
}

struct OperatorActed {
  verb @0 :OperatorVerb;
  rank @1 :Int32;                 # evict
  host @2 :Text;                  # drain
  by @3 :Text;                    # as the daemon knows the operator
  reason @4 :Text;                # in the operator's words
  spec @5 :Text;                  # switch: of the next run, as RunStarted.spec
  next @6 :UInt64;                # switch: the next run; 0: none
}

struct ReplicasDiffer {
  group @0 :UInt64;               # after which they were compared
  iteration @1 :Int64;            # of the group
  ranks @2 :List(Int32);          # ascending; none: all are equal again
  reason @3 :Text;
}

struct RunEnded {
  reason @0 :Text;
  finished @1 :Bool;              # its workers ended it themselves
  next @2 :UInt64;                # the run in which the job goes on; 0: none
}
