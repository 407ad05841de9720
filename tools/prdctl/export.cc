#include "tools/prdctl/export.h"

#include <algorithm>

#include "tools/prdctl/json.h"
#include "tools/prdctl/meters.h"
#include "tools/prdctl/text.h"

namespace prd::ctl {
namespace {

// A text that begins like a formula begins with an apostrophe: a spreadsheet then computes nothing.
std::string CsvCell(const std::string& written) {
  std::string text = Harmless(written);
  if (!text.empty() && std::string_view("=+-@").find(text[0]) != std::string_view::npos) {
    text.insert(0, 1, '\'');
  }
  if (text.find_first_of(",\"") == std::string::npos) return text;
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
           "wait_s,reduce_s,bytes,outcome,reason,failure,included,local_steps,fetched_from,"
           "passive,conflict,run\n";
}

void CsvExporter::Add(const Record& record) {
  if (record.run != run_) {
    if (run_ == kNoRun) start_ = record.now;
    run_ = record.run;
  }
  const RunView::Change change = view_.Apply(record);
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
          << CsvCell(group.failure) << ',' << m.included << ',' << m.local_steps << ','
          << (m.fetched_from == kNoRank ? std::string() : std::to_string(m.fetched_from)) << ','
          << (m.passive ? "true" : "false") << ',' << (group.conflict ? "true" : "false") << ','
          << run_ << "\r\n";
  }
}

void TraceExporter::Event(const std::string& json) {
  if (out_ == nullptr) return;
  *out_ << (first_ ? "\n" : ",\n") << json;
  first_ = false;
}

void TraceExporter::Slice(const char* name, int thread, Instant from, Instant to, const Json& args,
                          GroupId group) {
  Instant& busy_until = busy_until_[thread];
  from = std::max(from, busy_until);
  if (to <= from) return;
  busy_until = to;
  Did(name, thread, from, to, group);
  if (out_ == nullptr) return;
  Event("{\"ph\":\"X\",\"name\":\"" + std::string(name) + "\",\"cat\":\"" + name +
        "\",\"pid\":" + std::to_string(run_) + ",\"tid\":" + std::to_string(thread) + ",\"ts\":" +
        Micros(from - start_) + ",\"dur\":" + Micros(to - from) + ",\"args\":" + Dump(args) + "}");
}

void TraceExporter::Mark(const std::string& name, Rank rank, Instant at, const Json& args) {
  if (out_ == nullptr) return;
  Event("{\"ph\":\"i\",\"s\":\"t\",\"name\":" + Dump(name) + ",\"pid\":" + std::to_string(run_) +
        ",\"tid\":" + std::to_string(rank) + ",\"ts\":" + Micros(at - start_) +
        ",\"args\":" + Dump(args) + "}");
}

void TraceExporter::Begin(const Record& record, const RunStarted& started) {
  if (run_ != kNoRun) {  // the job goes on under another engine
    threads_.clear();
    Event("{\"ph\":\"i\",\"s\":\"p\",\"name\":" + Dump("switch to " + started.engine) +
          ",\"pid\":" + std::to_string(run_) + ",\"tid\":0,\"ts\":" + Micros(record.now - start_) +
          ",\"args\":" + Dump({{"run", record.run}, {"spec", started.spec}}) + "}");
    return;
  }
  run_ = record.run;
  start_ = record.now;
  if (out_ == nullptr) return;
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

void TraceExporter::NameThread(int thread, const std::string& name) {
  Event(Dump({{"ph", "M"},
              {"name", "thread_name"},
              {"pid", run_},
              {"tid", thread},
              {"args", {{"name", name}}}}));
}

// A worker's two threads are shown one under the other.
void TraceExporter::SortThread(int thread, int place) {
  Event(Dump({{"ph", "M"},
              {"name", "thread_sort_index"},
              {"pid", run_},
              {"tid", thread},
              {"args", {{"sort_index", place}}}}));
}

int TraceExporter::Background(Rank rank) {
  const int thread = kBackground + rank;
  if (!busy_until_.contains(thread)) {
    const char* name = TrainsInRounds(view_.plan()) ? " rounds" : " groups";
    NameThread(thread, RankName(rank) + name);
    SortThread(rank, 2 * rank);
    SortThread(thread, 2 * rank + 1);
    busy_until_[thread] = start_;
  }
  return thread;
}

void TraceExporter::Add(const Record& record) {
  const RunView::Change change = view_.Apply(record);
  if (const auto* started = std::get_if<RunStarted>(&record.body)) {
    Begin(record, *started);
  } else if (const auto* from = std::get_if<FromWorker>(&record.body)) {
    OnWorker(record, from->envelope);
  } else {
    OnDecision(record, change);
  }
}

void TraceExporter::OnDecision(const Record& record, const Moved& moved) {
  if (const WorkerJoined* joined = moved.came) {
    NameThread(joined->rank, RankName(joined->rank) + " (" + joined->host_name + ", pid " +
                                 std::to_string(joined->pid) + ")");
    Mark("joined", joined->rank, record.now, {{"reason", joined->reason}});
    threads_[joined->rank].entered = record.now;
  } else if (moved.went != nullptr) {
    Json args = {{"reason", moved.went->reason}};
    if (moved.went->gradients > 0) args["gradients_lost"] = moved.went->gradients;
    Mark("left", moved.went->rank, record.now, args);
    threads_[moved.went->rank] = {};
  } else if (const auto* late = std::get_if<UpdateDropped>(&record.body)) {
    Mark("dropped", late->rank, record.now,
         {{"iteration", late->iteration}, {"reason", late->reason}});
  } else if (const auto* answer = std::get_if<QueryAnswered>(&record.body)) {
    OnAnswer(record.now, *answer);
  } else if (const auto* schedule = std::get_if<ScheduleSet>(&record.body)) {
    for (const Rank rank : schedule->members) {
      Mark("schedule: draws its groups itself, unreported", rank, record.now,
           {{"members", schedule->members}, {"reason", schedule->reason}});
    }
  } else if (const auto* order = std::get_if<AdoptOrdered>(&record.body)) {
    if (order->result == kNoGroup) return;
    threads_[order->rank].fetch = record.now;
    threads_[order->rank].fetched = order->result;
  } else {
    OnPlaces(record);
  }
}

// The neighbours of each worker, and where the shards are.
void TraceExporter::OnPlaces(const Record& record) {
  if (const auto* set = std::get_if<NeighboursSet>(&record.body)) {
    std::vector<Rank> in;
    for (const InEdge& edge : set->in) in.push_back(edge.rank);
    Mark("neighbours", set->rank, record.now,
         {{"in", in}, {"out", set->out}, {"at", set->at}, {"reason", set->reason}});
  } else if (const auto* placement = std::get_if<PlacementSet>(&record.body)) {
    for (const Rank rank : placement->members) {
      Mark("placement", rank, record.now,
           {{"epoch", placement->epoch}, {"reason", placement->reason}});
    }
  } else if (const auto* opened = std::get_if<PlacementOpened>(&record.body)) {
    for (const Rank rank : opened->members) {
      Mark("placement opened", rank, record.now, {{"epoch", opened->epoch}});
    }
  }
}

void TraceExporter::OnAnswer(Instant now, const QueryAnswered& answer) {
  if (TrainsInGroups(view_.plan())) {
    return Mark(answer.ready ? "query: ready" : "query: go on", answer.rank, now,
                {{"iteration", answer.iteration},
                 {"local_steps", answer.local_steps},
                 {"reason", answer.reason}});
  }
  const Json args = {{"next", answer.next}, {"reason", answer.reason}};
  Thread& thread = threads_[answer.rank];
  if (thread.signalled) Slice("wait", answer.rank, thread.ready, now, args);
  if (answer.next > answer.iteration) Mark("jump", answer.rank, now, args);
  thread.signalled = false;
  thread.entered = now;
}

void TraceExporter::OnExchanged(Instant now, Rank rank, const Ready& ready) {
  const Thread& thread = threads_[rank];
  // When it came to this step may be in a record that was removed.
  const Instant entered = thread.entered.value_or(now - ready.step_ns);
  const Instant computed = entered + Possible(ready.step_ns, now - entered);
  const Json args = {{"iteration", ready.iteration}, {"samples", ready.samples}};
  Slice("compute", rank, entered, computed, args);
  Slice(HasNeighbours(view_.plan()) ? "receive" : "push", rank, computed, now,
        {{"queued", ready.queued}, {"dropped", ready.dropped}, {"suppressed", ready.suppressed}});
}

void TraceExporter::OnWorker(const Record& record, const WorkerEnvelope& envelope) {
  if (const auto* ready = std::get_if<Ready>(&envelope.body)) {
    OnReady(record.now, envelope.rank, *ready);
  } else if (const auto* finished = std::get_if<Finished>(&envelope.body)) {
    OnFinished(record, envelope.rank, *finished);
  } else if (const auto* adopted = std::get_if<Adopted>(&envelope.body)) {
    OnAdopted(record.now, envelope.rank, *adopted);
  }
}

void TraceExporter::OnReady(Instant now, Rank rank, const Ready& ready) {
  Thread& thread = threads_[rank];
  if (!TrainsInGroups(view_.plan())) {
    OnExchanged(now, rank, ready);
  } else if (thread.counter.Ends(ready)) {
    Json args = {{"iteration", ready.iteration}, {"samples", ready.samples}};
    if (ready.local_steps > 0) args["local_steps"] = ready.local_steps;
    Slice("compute", rank, now - Possible(ready.step_ns, now - start_), now, args);
  }
  thread.ready = now;
  thread.signalled = true;
  thread.awaited = ready.waiting ? ready.iteration : -1;
  busy_until_[rank] = std::max(busy_until_[rank], now);
}

void TraceExporter::OnFinished(const Record& record, Rank rank, const Finished& finished) {
  const auto found = view_.running().find(finished.group);
  if (found == view_.running().end()) return;
  const GroupRow& group = found->second;
  Json args = {{"group", group.id}, {"kind", KindName(group.kind)}};
  args["members"] = Json::array();
  for (const MemberRow& m : group.members) {
    if (out_ != nullptr) args["members"].push_back(m.rank);
    if (m.rank == rank) args["weight"] = m.weight;
  }
  args["reason"] = group.reason;
  if (group.kind == GroupKind::kRound) {
    return OnRound(record.now, rank, group, finished, std::move(args));
  }
  if (group.kind == GroupKind::kTrain && DecouplesSteps(view_.plan())) {
    return OnAhead(record.now, rank, group, finished, args);
  }
  const DurationNs age = record.now - start_;
  const Instant began = record.now - Possible(finished.reduce_ns, age);
  Thread& thread = threads_[rank];
  if (group.kind == GroupKind::kTrain) {
    Slice("wait", rank, thread.ready,
          std::min(thread.ready + Possible(finished.wait_ns, age), std::max(thread.ready, began)),
          args, group.id);
  } else if (group.kind == GroupKind::kAverage) {
    Slice("wait", rank, thread.ready, began, args, group.id);
    thread.ready = record.now;  // and on for the next round
  }
  args["bytes"] = finished.bytes;
  args["ok"] = finished.outcome == Outcome::kOk;
  if (!finished.detail.empty()) args["detail"] = finished.detail;
  Slice("reduce", rank, began, record.now, args, group.id);
}

void TraceExporter::OnAhead(Instant now, Rank rank, const GroupRow& group, const Finished& finished,
                            const Json& args) {
  const auto member = std::find_if(group.members.begin(), group.members.end(),
                                   [rank](const MemberRow& m) { return m.rank == rank; });
  if (member == group.members.end()) return;
  Json more = args;
  more["passive"] = member->passive;
  more["conflict"] = group.conflict;
  more["bytes"] = finished.bytes;
  more["ok"] = finished.outcome == Outcome::kOk;
  if (!finished.detail.empty()) more["detail"] = finished.detail;
  const Instant said = now - Possible(finished.reduce_ns, now - start_);
  // A worker that never started had only waited.
  const Instant began = std::max(said, group.Started().value_or(now));
  if (!group.held) return OnBeside(now, rank, *member, began, more);
  Thread& thread = threads_[rank];
  if (thread.signalled) Slice("wait", rank, thread.ready, began, more, group.id);
  Slice(member->passive ? "reduce (passive)" : "reduce", rank, began, now, more, group.id);
  thread.ready = now;
  if (!member->passive && finished.outcome == Outcome::kOk) thread.signalled = false;
}

void TraceExporter::OnBeside(Instant now, Rank rank, const MemberRow& member, Instant began,
                             const Json& args) {
  Thread& thread = threads_[rank];
  const bool own = member.ready && !member.passive;
  const bool stops = RunAhead(view_.plan()) == 0;
  if (own && stops) Slice("wait", rank, thread.ready, now, args);
  if (own && !stops) Slice("signalled", Background(rank), thread.ready, began, args);
  Slice(member.passive ? "reduce (passive)" : "reduce", Background(rank), began, now, args);
}

void TraceExporter::OnRound(Instant now, Rank rank, const GroupRow& group, const Finished& finished,
                            Json args) {
  const bool ok = finished.outcome == Outcome::kOk;
  const bool passive = args.value("weight", 0.0) == 0;
  args["round"] = group.iteration;
  args["gradients"] = finished.included;
  args["bytes"] = finished.bytes;
  args["ok"] = ok;
  if (!finished.detail.empty()) args["detail"] = finished.detail;
  Slice(passive ? "reduce (passive)" : "reduce", Background(rank),
        now - Possible(finished.reduce_ns, now - start_), now, args);
  if (ok) EndWait(now, rank, group.iteration);
}

void TraceExporter::OnAdopted(Instant now, Rank rank, const Adopted& adopted) {
  Thread& thread = threads_[rank];
  if (thread.fetched == kNoGroup) return;
  const auto group = view_.running().find(thread.fetched);
  Slice("fetch", Background(rank), thread.fetch, now,
        {{"group", thread.fetched}, {"ok", adopted.ok}, {"gradients", adopted.included}});
  thread.fetched = kNoGroup;
  if (adopted.ok && group != view_.running().end()) EndWait(now, rank, group->second.iteration);
}

// A worker has the result of a round, and goes on if it waits for that one.
void TraceExporter::EndWait(Instant now, Rank rank, Iteration round) {
  Thread& thread = threads_[rank];
  if (thread.awaited < 0 || thread.awaited > round) return;
  Slice("wait", rank, thread.ready, now, {{"round", round}});
  thread.awaited = -1;
}

void TraceExporter::Finish() {
  if (run_ == kNoRun) *out_ << "{\"traceEvents\":[";
  *out_ << "\n]}\n";
}

}  // namespace prd::ctl
