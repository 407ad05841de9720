// The admin protocol, between prdctl and a running daemon: requests with one reply each, over
// ZeroMQ REQ/REP. schemas/admin.capnp is its wire form. It is small on purpose: prdctl computes
// nearly all that it shows from the run's history, in the same way for a running daemon and for the
// files of a stopped one.
#ifndef PRD_COMMON_BASE_ADMIN_H_
#define PRD_COMMON_BASE_ADMIN_H_

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/history.h"
#include "common/base/ids.h"
#include "prd/status.h"

namespace prd {

// Runs in the history, the newest first, in pages: those with numbers below `before`; kNoRun: from
// the newest one on. `live`: only runs that go on.
struct ListRuns {
  RunId before = kNoRun;
  bool live = false;
  static void Visit(auto& m, auto&& field) { field("before", m.before)("live", m.live); }
  friend bool operator==(const ListRuns&, const ListRuns&) = default;
};

// Records of a run from an index on, as many whole records as fit max_bytes and 1 MiB, at least
// one. When there is none yet and wait_ms > 0, the reply waits for the next one up to that long (at
// most 10 s).
struct ReadRecords {
  RunId run = kNoRun;
  std::uint64_t from = 0;
  std::uint32_t max_bytes = 1 << 20;
  std::uint32_t wait_ms = 0;
  static constexpr const char* kName = "read_records";
  static void Visit(auto& m, auto&& field) {
    field("run", m.run)("from", m.from)("max_bytes", m.max_bytes)("wait_ms", m.wait_ms);
  }
  friend bool operator==(const ReadRecords&, const ReadRecords&) = default;
};

// The newest snapshot of a run's state, from a byte on, 1 MiB at most. Between two parts a newer
// one may take its place: its index tells.
struct ReadSnapshot {
  RunId run = kNoRun;
  std::uint64_t from = 0;
  static constexpr const char* kName = "read_snapshot";
  static void Visit(auto& m, auto&& field) { field("run", m.run)("from", m.from); }
  friend bool operator==(const ReadSnapshot&, const ReadSnapshot&) = default;
};

// The daemon itself, and what only a running one knows.
struct GetStatus {
  static constexpr const char* kName = "get_status";
  friend bool operator==(const GetStatus&, const GetStatus&) = default;
};

// Acts on the job's run that goes on. Answered once that is recorded.
struct Act {
  std::string job;     // empty, for a drain: every job with workers on the host
  OperatorActed what;  // `by` is set by the daemon
  static constexpr const char* kName = "act";
  static void Visit(auto& m, auto&& field) { field("job", m.job)("what", m.what); }
  friend bool operator==(const Act&, const Act&) = default;
};

// Removes ended runs from the history. Answered with Acted. A run that goes on, or that is not
// there, stays as it is.
struct Prune {
  std::vector<RunId> runs;
  static constexpr const char* kName = "prune";
  static void Visit(auto& m, auto&& field) { field("runs", m.runs); }
  friend bool operator==(const Prune&, const Prune&) = default;
};

using AdminRequest = std::variant<ListRuns, ReadRecords, ReadSnapshot, GetStatus, Act, Prune>;

struct RunInfo {
  RunId run = kNoRun;
  std::string job;
  std::string engine;
  std::int64_t started_wall_ns = 0;  // Unix time
  bool ended = false;
  std::uint64_t records = 0;   // index of the newest record + 1
  bool begun = false;          // a worker has trained in it
  bool finished = false;       // RunEnded::finished
  std::string end;             // RunEnded::reason
  std::uint64_t identity = 0;  // the higher half of its RunIdentity; 0: not known
  RunId former = kNoRun;       // the run that it continues
  RunId next = kNoRun;         // the run that continues it
  bool paused = false;         // by an operator
  std::string owner;           // the identity whose worker began it; empty: none, or not known
  std::uint64_t bytes = 0;     // of its records, before compression, when it ended; 0: not known
  std::uint64_t first = 0;     // records from 1 up to this one were removed
  static void Visit(auto& m, auto&& field) {
    field("run", m.run)("job", m.job)("engine", m.engine);
    field("started_wall_ns", m.started_wall_ns)("ended", m.ended)("records", m.records);
    field("begun", m.begun)("finished", m.finished)("end", m.end)("identity", m.identity);
    field("former", m.former)("next", m.next)("paused", m.paused)("owner", m.owner, kSparse);
    field("bytes", m.bytes)("first", m.first);
  }
  friend bool operator==(const RunInfo&, const RunInfo&) = default;
};

struct RunList {
  std::vector<RunInfo> runs;
  RunId next = kNoRun;  // `before` of the next page; kNoRun: there is none
  static constexpr const char* kName = "run_page";
  static void Visit(auto& m, auto&& field) { field("runs", m.runs)("next", m.next); }
  friend bool operator==(const RunList&, const RunList&) = default;
};

struct RecordBatch {
  std::vector<Record> records;
  static constexpr const char* kName = "record_batch";
  static void Visit(auto& m, auto&& field) { field("records", m.records); }
  friend bool operator==(const RecordBatch&, const RecordBatch&) = default;
};

struct Snapshot {
  std::uint64_t index = 0;  // the state before this record; 0 with an empty state: there is none
  std::string state;        // of an answer: this part of it
  std::uint64_t bytes = 0;  // of an answer: of the whole state
  static constexpr const char* kName = "snapshot";
  static void Visit(auto& m, auto&& field) {
    field("index", m.index)("state", m.state, kBytes)("bytes", m.bytes);
  }
  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};

struct WorkerSilence {
  RunId run = kNoRun;
  Rank rank = kNoRank;
  DurationNs silent_ns = 0;  // since the worker was last heard of
  static void Visit(auto& m, auto&& field) {
    field("run", m.run)("rank", m.rank)("silent_ns", m.silent_ns);
  }
  friend bool operator==(const WorkerSilence&, const WorkerSilence&) = default;
};

// A counter of the daemon's, by its name.
using Counter = std::pair<std::string, std::uint64_t>;
template <typename C>
requires std::same_as<std::remove_const_t<C>, Counter>
void Visit(C& m, auto&& field) { field("name", m.first)("value", m.second); }

struct DaemonStatus {
  std::string version;
  std::uint32_t pid = 0;
  DurationNs uptime_ns = 0;
  Instant now;                    // the controller's clock, to be compared with Record::now
  std::vector<Counter> counters;  // by name
  std::vector<WorkerSilence> silences;
  DurationNs stalled_ns = 0;  // for so long the history could not be written; 0: it can be
  std::string stalled;        // why; empty, too, for those who are no operators
  static constexpr const char* kName = "daemon_status";
  static void Visit(auto& m, auto&& field) {
    field("version", m.version)("pid", m.pid)("uptime_ns", m.uptime_ns)("now_ns", m.now);
    field("counters", m.counters)("silences", m.silences);
    field("stalled_ns", m.stalled_ns)("stalled", m.stalled);
  }
  friend bool operator==(const DaemonStatus&, const DaemonStatus&) = default;
};

struct AdminError {
  Code code = Code::kInternal;
  std::string message;
  static constexpr const char* kName = "error";
  static void Visit(auto& m, auto&& field) { field("code", m.code)("message", m.message); }
  friend bool operator==(const AdminError&, const AdminError&) = default;
};

struct Acted {
  std::string text;  // what has been done, in words
  static constexpr const char* kName = "acted";
  static void Visit(auto& m, auto&& field) { field("text", m.text); }
  friend bool operator==(const Acted&, const Acted&) = default;
};

using AdminReply = std::variant<RunList, RecordBatch, Snapshot, DaemonStatus, AdminError, Acted>;

}  // namespace prd

#endif  // PRD_COMMON_BASE_ADMIN_H_
