#include "tools/prdctl/export.h"

#include <algorithm>

#include "tools/prdctl/json.h"
#include "tools/prdctl/text.h"

namespace prd::ctl {
namespace {

std::string CsvCell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

// Microseconds, as trace events have them, without losing the ns.
std::string Micros(DurationNs ns) {
  const std::string sign = ns < 0 ? "-" : "";
  const DurationNs size = std::abs(ns);
  const std::string rest = std::to_string(size % 1000);
  return sign + std::to_string(size / 1000) + "." + std::string(3 - rest.size(), '0') + rest;
}

}  // namespace

void JsonLinesExporter::Add(const Record& record) { *out_ << Dump(ToJson(record)) << '\n'; }

CsvExporter::CsvExporter(std::ostream* out) : out_(out) {
  *out_ << "group,kind,formed_s,ended_s,ok,group_iteration,rank,iteration,weight,ready_s,step_s,"
           "wait_s,reduce_s,bytes,outcome,reason,failure\n";
}

void CsvExporter::Add(const Record& record) {
  if (record.index == 0) start_ = record.now;
  const GroupTracker::Change change = tracker_.Add(record);
  if (!change.ended) return;
  const GroupRow& group = *change.ended;
  for (const MemberRow& m : group.members) {
    const char* outcome = !m.outcome                        ? ""
                          : *m.outcome == Outcome::kOk      ? "ok"
                          : *m.outcome == Outcome::kAborted ? "aborted"
                                                            : "failed";
    *out_ << group.id << ',' << KindName(group.kind) << ','
          << Number(Seconds(group.formed - start_), 9) << ','
          << Number(Seconds(*group.ended - start_), 9) << ',' << (group.ok ? "true" : "false")
          << ',' << group.iteration << ',' << m.rank << ',' << m.iteration << ','
          << Json(m.weight).dump() << ','
          << (m.ready ? Number(Seconds(*m.ready - start_), 9) : std::string()) << ','
          << (m.ready ? Number(Seconds(m.step_ns), 9) : std::string()) << ','
          << Number(Seconds(m.wait_ns), 9) << ',' << Number(Seconds(m.reduce_ns), 9) << ','
          << m.bytes << ',' << outcome << ',' << CsvCell(group.reason) << ','
          << CsvCell(group.failure) << "\r\n";
  }
}

void TraceExporter::Event(const std::string& json) {
  *out_ << (first_ ? "\n" : ",\n") << json;
  first_ = false;
}

void TraceExporter::Slice(const char* name, Rank rank, Instant from, Instant to,
                          const std::string& args) {
  Thread& thread = threads_[rank];
  from = std::max(from, thread.busy_until);
  if (to <= from) return;
  thread.busy_until = to;
  Event("{\"ph\":\"X\",\"name\":\"" + std::string(name) + "\",\"cat\":\"" + name +
        "\",\"pid\":" + std::to_string(run_) + ",\"tid\":" + std::to_string(rank) + ",\"ts\":" +
        Micros(from - start_) + ",\"dur\":" + Micros(to - from) + ",\"args\":" + args + "}");
}

void TraceExporter::Mark(const std::string& name, Rank rank, Instant at, const std::string& args) {
  Event("{\"ph\":\"i\",\"s\":\"t\",\"name\":" + Dump(name) + ",\"pid\":" + std::to_string(run_) +
        ",\"tid\":" + std::to_string(rank) + ",\"ts\":" + Micros(at - start_) +
        ",\"args\":" + args + "}");
}

void TraceExporter::Begin(const Record& record, const RunStarted& started) {
  run_ = record.run;
  start_ = record.now;
  *out_ << "{\"displayTimeUnit\":\"ms\",\"otherData\":"
        << Dump({{"job", started.job},
                 {"engine", started.engine},
                 {"run", record.run},
                 {"started", WallTime(started.wall_ns)},
                 {"spec", started.spec}})
        << ",\"traceEvents\":[";
  Event(Dump(
      {{"ph", "M"},
       {"name", "process_name"},
       {"pid", run_},
       {"args",
        {{"name", started.job + " (" + started.engine + ", run " + std::to_string(run_) + ")"}}}}));
}

void TraceExporter::Add(const Record& record) {
  if (const auto* started = std::get_if<RunStarted>(&record.body)) Begin(record, *started);
  if (const auto* from = std::get_if<FromWorker>(&record.body)) OnWorker(record, from->envelope);
  if (const auto* joined = std::get_if<WorkerJoined>(&record.body)) {
    const std::string name = "rank " + std::to_string(joined->rank) + " (" + joined->host_name +
                             ", pid " + std::to_string(joined->pid) + ")";
    Event(Dump({{"ph", "M"},
                {"name", "thread_name"},
                {"pid", run_},
                {"tid", joined->rank},
                {"args", {{"name", name}}}}));
    Mark("joined", joined->rank, record.now, Dump({{"reason", joined->reason}}));
  }
  if (const auto* left = std::get_if<WorkerLeft>(&record.body)) {
    Mark("left", left->rank, record.now, Dump({{"reason", left->reason}}));
  }
  tracker_.Add(record);
}

void TraceExporter::OnWorker(const Record& record, const WorkerEnvelope& envelope) {
  if (const auto* ready = std::get_if<Ready>(&envelope.body)) {
    Thread& thread = threads_[envelope.rank];
    // The same iteration again, after a failed group, computed nothing.
    if (ready->iteration != thread.iteration) {
      Slice("compute", envelope.rank, record.now - Possible(ready->step_ns, record.now - start_),
            record.now, Dump({{"iteration", ready->iteration}, {"samples", ready->samples}}));
    }
    thread.iteration = ready->iteration;
    thread.ready = record.now;
    thread.busy_until = std::max(thread.busy_until, record.now);
  } else if (const auto* finished = std::get_if<Finished>(&envelope.body)) {
    OnFinished(record, envelope.rank, *finished);
  }
}

void TraceExporter::OnFinished(const Record& record, Rank rank, const Finished& finished) {
  const auto found = tracker_.running().find(finished.group);
  if (found == tracker_.running().end()) return;
  const GroupRow& group = found->second;
  Json args = {{"group", group.id}, {"kind", KindName(group.kind)}};
  args["members"] = Json::array();
  for (const MemberRow& m : group.members) {
    args["members"].push_back(m.rank);
    if (m.rank == rank) args["weight"] = m.weight;
  }
  args["reason"] = group.reason;
  const DurationNs age = record.now - start_;
  const Instant began = record.now - Possible(finished.reduce_ns, age);
  if (group.kind == GroupKind::kTrain) {
    const Instant ready = threads_[rank].ready;
    Slice("wait", rank, ready,
          std::min(ready + Possible(finished.wait_ns, age), std::max(ready, began)), Dump(args));
  }
  args["bytes"] = finished.bytes;
  args["ok"] = finished.outcome == Outcome::kOk;
  if (!finished.detail.empty()) args["detail"] = finished.detail;
  Slice("reduce", rank, began, record.now, Dump(args));
}

void TraceExporter::Finish() {
  if (run_ == kNoRun) *out_ << "{\"traceEvents\":[";
  *out_ << "\n]}\n";
}

}  // namespace prd::ctl
