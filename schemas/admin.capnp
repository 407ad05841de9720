@0xc1fc427741b19b76;

# The admin protocol: one request and one reply, over ZeroMQ REQ/REP on the daemon's admin socket.
# common/base/admin.h has the meaning. Requests are set by prdctl, replies by the daemon.
#
# Evolution: as in control.capnp; prdctl and prd of one version talk to each other, and others are
# told what they do not know.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("prd::wire");

using Control = import "control.capnp";
using History = import "history.capnp";

struct AdminRequest {
  union {
    listRuns @0 :Void;          # the page of the newest ones
    readRecords @1 :ReadRecords;
    readSnapshot @2 :ReadSnapshot;
    getStatus @3 :Void;
    act @4 :Act;
    listRunsBelow @5 :UInt64;   # a page of runs with numbers below this
    prune @6 :Prune;
    listLiveBelow @7 :UInt64;   # a page of the runs that go on; 0: of the newest of these
  }
}

struct ReadRecords {
  run @0 :UInt64;
  from @1 :UInt64;       # index of the first record wanted
  maxBytes @2 :UInt32;   # of the reply; the daemon may give less, but at least one record
  waitMs @3 :UInt32;     # milliseconds to wait for a record when there is none yet, at most 10000
}

struct ReadSnapshot {
  run @0 :UInt64;
  from @1 :UInt64;       # the first byte of the state that is wanted
}

struct Act {
  job @0 :Text;          # empty, for a drain: every job with workers on the host
  what @1 :History.OperatorActed;   # `by` is set by the daemon
}

# Answered with `acted`. A run that goes on, or that is not there, stays as it is.
struct Prune {
  runs @0 :List(UInt64);
}

struct AdminReply {
  union {
    runList @0 :List(RunInfo);          # a page after which none comes, the newest run first
    recordBatch @1 :List(History.Record);
    snapshot @2 :Snapshot;
    daemonStatus @3 :DaemonStatus;
    error @4 :AdminError;
    acted @5 :Text;                     # it is recorded; what it does, in words
    runPage @6 :RunPage;                # a page after which others come
  }
}

struct RunPage {
  runs @0 :List(RunInfo);    # the newest first
  next @1 :UInt64;           # where the next page begins (listRunsBelow)
}

struct RunInfo {
  run @0 :UInt64;
  job @1 :Text;
  engine @2 :Text;
  startedWallNs @3 :Int64;   # Unix time in nanoseconds
  ended @4 :Bool;
  records @5 :UInt64;        # index of the newest record + 1
  begun @6 :Bool;            # a worker has trained in it
  finished @7 :Bool;         # its workers ended it themselves
  end @8 :Text;              # why it has ended; empty: it has not
  identity @9 :UInt64;       # the higher half of its identity; 0: not known
  former @10 :UInt64;        # the run that it continues; 0: none
  next @11 :UInt64;          # the run that continues it; 0: none
  paused @12 :Bool;          # by an operator
  owner @13 :Text;           # the identity whose worker began it; empty: none, or not known
  bytes @14 :UInt64;         # of its records, before compression, when it ended; 0: not known
  first @15 :UInt64;         # records from 1 up to this one were removed
}

struct Snapshot {
  index @0 :UInt64;   # the state before this record
  state @1 :Data;     # a part; readable by the same version of prd only; empty: there is none
  bytes @2 :UInt64;   # of the whole state
}

struct DaemonStatus {
  version @0 :Text;
  pid @1 :UInt32;
  uptimeNs @2 :Int64;
  nowNs @3 :Int64;    # the controller's clock, to be compared with Record.nowNs
  counters @4 :List(Counter);
  silences @5 :List(WorkerSilence);
  stalledNs @6 :Int64;  # for so long the history could not be written; 0: it can be
  stalled @7 :Text;   # why; empty, too, for those who are no operators
}

struct Counter {
  name @0 :Text;
  value @1 :UInt64;   # since the daemon started
}

struct WorkerSilence {
  run @0 :UInt64;
  rank @1 :Int32;
  silentNs @2 :Int64;   # since the worker was last heard of
}

struct AdminError {
  code @0 :Control.Code;   # never ok
  message @1 :Text;
}
