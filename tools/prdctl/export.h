// A run as a file for other tools. All take the records of a run in order and write as they go.
#ifndef PRD_TOOLS_PRDCTL_EXPORT_H_
#define PRD_TOOLS_PRDCTL_EXPORT_H_

#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "tools/prdctl/groups.h"

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

// Every member of every ended group, one line each under a line of titles (RFC 4180).
class CsvExporter : public Exporter {
 public:
  explicit CsvExporter(std::ostream* out);
  void Add(const Record& record) override;

 private:
  std::ostream* out_;
  GroupTracker tracker_;
  Instant start_;
};

// Chrome trace events (JSON object format), which Perfetto (ui.perfetto.dev) opens: the run is a
// process, each worker a thread of it with slices named compute, wait and reduce.
//
// All times are the controller's clock. A message's place on it is when the controller heard it;
// the lengths are the worker's own: a ready signal ends a compute slice of step_ns and begins a
// wait slice of wait_ns; a report ends a reduce slice of reduce_ns. Where the way of the messages
// would make slices overlap, the later one begins when the earlier one ends.
class TraceExporter : public Exporter {
 public:
  explicit TraceExporter(std::ostream* out) : out_(out) {}
  void Add(const Record& record) override;
  void Finish() override;

 private:
  struct Thread {
    Instant busy_until;
    Instant ready;
    Iteration iteration = -1;  // of the last signal
  };
  void Begin(const Record& record, const RunStarted& started);
  void OnWorker(const Record& record, const WorkerEnvelope& envelope);
  void OnFinished(const Record& record, Rank rank, const Finished& finished);
  void Slice(const char* name, Rank rank, Instant from, Instant to, const std::string& args);
  void Mark(const std::string& name, Rank rank, Instant at, const std::string& args);
  void Event(const std::string& json);

  std::ostream* out_;
  GroupTracker tracker_;
  std::map<Rank, Thread> threads_;
  RunId run_ = kNoRun;
  Instant start_;
  bool first_ = true;
};

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_EXPORT_H_
