// A run as a file for other tools. All take the records of a run in order and write as they go;
// then those of the run in which the job went on, if it was switched. Times count from the first
// one on.
#ifndef PRD_TOOLS_PRDCTL_EXPORT_H_
#define PRD_TOOLS_PRDCTL_EXPORT_H_

#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "tools/prdctl/json.h"
#include "tools/prdctl/meters.h"

namespace prd::ctl {

class Exporter {
 public:
  virtual ~Exporter() = default;
  virtual void Add(const Record& record) = 0;
  // Call once, after the last record.
  virtual void Finish() {}
};

// Every record, one JSON object per line.
class JsonLinesExporter : public Exporter {
 public:
  explicit JsonLinesExporter(std::ostream* out) : out_(out) {}
  void Add(const Record& record) override;

 private:
  std::ostream* out_;
};

// Every member of every ended group, one line each under a line of titles (RFC 4180). Groups are
// numbered by run.
class CsvExporter : public Exporter {
 public:
  explicit CsvExporter(std::ostream* out);
  void Add(const Record& record) override;

 private:
  std::ostream* out_;
  RunView view_;
  Instant start_;  // of the first run
  RunId run_ = kNoRun;
};

// Chrome trace events (JSON object format), which Perfetto (ui.perfetto.dev) opens: the run is a
// process, each worker a thread of it with slices named compute, wait and reduce. Where a job was
// switched it is one process, with an instant over all threads at each switch.
//
// All times are the controller's clock. A message's place on it is when the controller heard it;
// the lengths are the worker's own: a ready signal ends a compute slice of step_ns and begins a
// wait slice of wait_ns; a report ends a reduce slice of reduce_ns. Where the way of the messages
// would make slices overlap, the later one begins when the earlier one ends.
//
// Rounds that run while a worker computes are on a second thread of the worker, so that
// both are seen side by side: reduce, named "reduce (passive)" where it gave nothing, and fetch,
// from the order to take the result from a peer to the answer. The worker's wait for a round is on
// its first thread, and ends with the result. Dropped updates and answered queries are instants.
//
// Groups drawn ahead: a member waits from its signal until the group starts,
// when the last one's training loop waits, and reduces from then on; a passive part in another
// group interrupts the wait. Groups in the background are on the second thread; with a run_ahead
// the time for which a signal stood is there, too ("signalled"), since the training loop went on.
// Workers that follow a schedule have marks alone: their groups are not in the history.
//
// Without groups that train, a worker computes from the answer to its last signal on, for step_ns;
// what passes from there to its next signal is named receive (the neighbours' updates, and
// their average) or push (to the shards; the read before the step is in it, too), and from the
// signal to the answer it waits. Jumps, and changes of the graph or of the placement of shards, are
// instants.
class TraceExporter : public Exporter {
 public:
  // Null: nothing is written.
  explicit TraceExporter(std::ostream* out) : out_(out) {}
  void Add(const Record& record) override;
  void Finish() override;

 protected:
  struct Thread {
    Instant ready;
    std::optional<Instant> entered;  // its iteration, where there are no groups
    StepCounter counter;
    bool signalled = false;  // it stands, where groups form ahead
    Iteration awaited = -1;  // the round that it waits for with its last signal; -1: none
    Instant fetch;           // ordered then
    GroupId fetched = kNoGroup;
  };
  // Called with each slice. Threads below kBackground are ranks, those from there on the rounds and
  // groups beside the training loop of (thread - kBackground). `group`: where one is known.
  virtual void Did(const char* /*name*/, int /*thread*/, Instant /*from*/, Instant /*to*/,
                   GroupId /*group*/) {}
  static constexpr int kBackground = 1 << 24;
  const RunView& view() const { return view_; }
  const std::map<Rank, Thread>& threads() const { return threads_; }
  // Until then the slices of a thread reach.
  Instant BusyUntil(int thread) const {
    const auto at = busy_until_.find(thread);
    return at == busy_until_.end() ? start_ : at->second;
  }

 private:
  void Begin(const Record& record, const RunStarted& started);
  void OnWorker(const Record& record, const WorkerEnvelope& envelope);
  void OnReady(Instant now, Rank rank, const Ready& ready);
  void OnExchanged(Instant now, Rank rank, const Ready& ready);
  void OnAnswer(Instant now, const QueryAnswered& answer);
  void OnPlaces(const Record& record);
  void OnFinished(const Record& record, Rank rank, const Finished& finished);
  void OnAhead(Instant now, Rank rank, const GroupRow& group, const Finished& finished,
               const Json& args);
  // Its part in a group of models beside its training loop.
  void OnBeside(Instant now, Rank rank, const MemberRow& member, Instant began, const Json& args);
  void OnRound(Instant now, Rank rank, const GroupRow& group, const Finished& finished, Json args);
  void OnAdopted(Instant now, Rank rank, const Adopted& adopted);
  void OnDecision(const Record& record, const Moved& moved);
  void EndWait(Instant now, Rank rank, Iteration round);
  void NameThread(int thread, const std::string& name);
  void SortThread(int thread, int place);
  // The second thread of a worker; it has a name from its first use on.
  int Background(Rank rank);
  void Slice(const char* name, int thread, Instant from, Instant to, const Json& args,
             GroupId group = kNoGroup);
  void Mark(const std::string& name, Rank rank, Instant at, const Json& args);
  void Event(const std::string& json);

  std::ostream* out_;
  RunView view_;
  std::map<Rank, Thread> threads_;
  std::map<int, Instant> busy_until_;  // by thread
  RunId run_ = kNoRun;
  Instant start_;
  bool first_ = true;
};

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_EXPORT_H_
