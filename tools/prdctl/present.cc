#include "tools/prdctl/present.h"

#include <algorithm>
#include <utility>

#include "engines/words.h"
#include "tools/prdctl/meters.h"
#include "tools/prdctl/text.h"

namespace prd::ctl {

// What the records say about a rank, besides the job's own state.
struct Trail {
  std::optional<DurationNs> step_ns;
  Instant heard;
  std::string host_name;
  std::uint32_t pid = 0;
  Iteration iteration = 0;
  Ready ready;                      // the last one
  std::optional<Instant> answered;  // it computes since then, if no signal of it stands
  std::optional<LeftReason> left;
  Instant left_at;
  std::string left_because;
  std::uint32_t left_gradients = 0;
};

using Trails = std::map<Rank, Trail>;

namespace {

void Follow(const Record& record, Trails* trails) {
  const Moved moved(record.body);
  if (const auto* from = std::get_if<FromWorker>(&record.body)) {
    if (from->envelope.rank == kNoRank) return;  // a Hello that asks for any rank
    Trail& trail = (*trails)[from->envelope.rank];
    trail.heard = record.now;
    if (const auto* ready = std::get_if<Ready>(&from->envelope.body)) {
      trail.step_ns = ready->step_ns;
      trail.iteration = ready->iteration;
      trail.ready = *ready;
      trail.answered.reset();
    }
    const auto* finished = std::get_if<Finished>(&from->envelope.body);
    if (finished != nullptr && finished->group != kNoGroup) trail.answered = record.now;
  } else if (const auto* answer = std::get_if<QueryAnswered>(&record.body)) {
    (*trails)[answer->rank].answered = record.now;
  } else if (moved.came != nullptr) {
    Trail& trail = (*trails)[moved.came->rank];
    trail.host_name = moved.came->host_name;
    trail.pid = moved.came->pid;
    trail.iteration = moved.came->iteration;
    trail.answered = record.now;
    trail.left.reset();
  } else if (moved.went != nullptr) {
    Trail& trail = (*trails)[moved.went->rank];
    trail.left_at = record.now;
    // A worker that finished and is then released has finished.
    if (trail.left == LeftReason::kFinished && moved.went->why == LeftReason::kLeft) return;
    trail.left = moved.went->why;
    trail.left_because = moved.went->reason;
    trail.left_gradients = moved.went->gradients;
  }
}

// The round in which the worker takes part whatever its training loop does; null: none.
const Job::Running* RoundOf(const Job& job, const Job::Worker& worker) {
  if (worker.group == kNoGroup || worker.source != kNoRank) return nullptr;
  const auto found = job.groups().find(worker.group);
  if (found == job.groups().end() || found->second.kind != GroupKind::kRound) return nullptr;
  return &found->second;
}

// Active in a job whose groups do not take its training loop: the round is said beside.
bool RunsBeside(const Job& job, const Job::Worker& worker) {
  return worker.state == Job::State::kActive && RoundOf(job, worker) != nullptr;
}

// Its training loop waits, as far as the controller knows, and can take part in a group.
bool IsThere(const Job::Worker& worker) {
  return worker.state != Job::State::kActive || (worker.signal && worker.signal->waiting);
}

// The group formed ahead that it is in, or null.
const Job::Running* AheadOf(const Job& job, const Job::Worker& worker) {
  if (!DrawnAhead(job.engine().plan()) || worker.group == kNoGroup) return nullptr;
  const auto found = job.groups().find(worker.group);
  const bool train = found != job.groups().end() && found->second.kind == GroupKind::kTrain;
  return train ? &found->second : nullptr;
}

// The members that compute still, in a group that starts once all wait.
std::vector<Rank> Computing(const Job& job, const Job::Running& group) {
  std::vector<Rank> computing;
  if (AveragesInBackground(job.engine().plan())) return computing;
  for (const Rank rank : group.pending) {
    if (!IsThere(job.workers()[static_cast<std::size_t>(rank)])) computing.push_back(rank);
  }
  return computing;
}

// How it goes about its steps under engines whose groups do not take its training loop, or not yet.
// Empty: the group says.
std::string AheadWord(const Job& job, const Job::Worker& worker) {
  const Plan plan = job.engine().plan();
  if (worker.state != Job::State::kActive) return "";
  if (FollowsSchedule(plan)) return "training";
  if (RunAhead(plan) > 0) {
    return worker.signal ? "signalled" : "computing";
  }
  const Job::Running* group = AheadOf(job, worker);
  if (group == nullptr) return "";
  if (!IsThere(worker)) return "computing";
  return AveragesInBackground(plan) || Computing(job, *group).empty() ? "" : "waiting";
}

std::string StateWord(const Job& job, const Job::Worker& worker) {
  if (const std::string word = AheadWord(job, worker); !word.empty()) return word;
  if (worker.group != kNoGroup && worker.source != kNoRank) return "fetching";
  if (worker.group != kNoGroup && !RunsBeside(job, worker))
    return "in group " + std::to_string(worker.group);
  if (worker.source != kNoRank) return "adopting";
  switch (worker.state) {
    case Job::State::kAbsent:
      return "gone";
    case Job::State::kJoining:
      return worker.resumes ? "resuming" : "joining";
    case Job::State::kStarting:
      return "starting";
    case Job::State::kAdopting:
      return "adopting";
    case Job::State::kActive:
      return worker.signal && worker.signal->waiting ? "waiting" : "computing";
    case Job::State::kPaused:
      return "paused";
    case Job::State::kFinishing:
      return "finishing";
    case Job::State::kFinal:
      return "final";
  }
  return "unknown";
}

std::string Gradients(std::uint32_t count) {
  return std::to_string(count) + (count == 1 ? " gradient" : " gradients");
}

// What a group has to do with a worker that it does not hold, or not yet.
std::string GroupBeside(const Job& job, const std::string& state, const Job::Worker& worker) {
  const auto found = job.groups().find(worker.group);
  if (worker.state != Job::State::kActive || found == job.groups().end()) return "";
  const std::string group = GroupName(worker.group);
  if (found->second.kind != GroupKind::kTrain || state == "in " + group) return "";
  if (AveragesInBackground(job.engine().plan())) return "in " + group + " meanwhile";
  if (AheadOf(job, worker) == nullptr) return "";
  if (!IsThere(worker)) return group + " waits for it";
  return "for " + words::Ranks(Computing(job, found->second)) + " in " + group;
}

std::string Detail(const Job& job, const WorkerRow& row, const Job::Worker& worker) {
  std::string text;
  const auto add = [&text](const std::string& more) { text += (text.empty() ? "" : "; ") + more; };
  const std::vector<Rank>& differ = job.divergence().ranks;
  if (std::binary_search(differ.begin(), differ.end(), row.rank)) {
    add("differs from the others since group " + std::to_string(job.divergence().group));
  }
  if (row.owed > 0) add("owes " + Gradients(row.owed));
  if (row.local_steps > 0) {
    add(std::to_string(row.local_steps) + (row.local_steps == 1 ? " local step" : " local steps"));
  }
  if (row.state == "signalled") {
    const std::uint32_t steps = RunAhead(job.engine().plan());
    add("trains on, up to " + std::to_string(steps) + (steps == 1 ? " step" : " steps"));
  }
  if (const std::string beside = GroupBeside(job, row.state, worker); !beside.empty()) add(beside);
  if (RunsBeside(job, worker)) {
    add("in round " + std::to_string(RoundOf(job, worker)->iteration) + " meanwhile");
  }
  if (worker.group != kNoGroup && worker.source != kNoRank) {
    add("the result of group " + std::to_string(worker.group) + " from rank " +
        std::to_string(worker.source));
  }
  return text;
}

// The job's words, or the engine's; of who computes or waits while a round runs, both.
std::string Why(const Job& job, Rank rank, Instant now) {
  const Job::Worker& worker = job.workers()[static_cast<std::size_t>(rank)];
  std::string why = job.Explain(now, rank);
  if (!RunsBeside(job, worker)) return why;
  const Job::Running& round = *RoundOf(job, worker);
  const auto self = std::find_if(round.members.begin(), round.members.end(),
                                 [&](const GroupShare& share) { return share.rank == rank; });
  const bool gives = self != round.members.end() && self->weight > 0;
  std::string own = worker.signal && worker.signal->waiting ? job.engine().Explain(now, rank) : "";
  if (own.empty()) own = "computing after round " + std::to_string(worker.iteration);
  return own + "; round " + std::to_string(round.iteration) +
         " reduces in the background, to which it gives " +
         (gives ? "its gradients" : "nothing (it had none)") + ": " + why +
         (worker.owed > 0 ? "; owes " + Gradients(worker.owed) + " until a round has taken them"
                          : "");
}

// In a few words, seen from another member of `group`.
std::string Does(const Job& job, GroupId group, const Job::Worker& worker, const Trail* trail,
                 Instant now) {
  const Plan plan = job.engine().plan();
  const Job::Running* in = AheadOf(job, worker);
  if (worker.group == group && AveragesInBackground(plan)) return "reduces";
  std::string text;
  if (in != nullptr && worker.group != group) {
    text = "in group " + std::to_string(worker.group);
    const std::vector<Rank> computing = Computing(job, *in);
    if (!computing.empty()) text += ", which waits for " + words::Ranks(computing);
  } else if (in == nullptr && worker.last_group == group) {
    return worker.last_ok ? "through with it" : "failed";
  } else if (IsThere(worker)) {
    text = "waits in its step";
  }
  if (IsThere(worker)) return text;
  text += text.empty() ? "computes" : "; computes";
  if (trail == nullptr) return text;
  // In the background it may be through with passive groups since.
  if (trail->answered && !AveragesInBackground(plan))
    text += " for " + words::Duration(now - *trail->answered);
  if (trail->step_ns) text += " (its last step: " + words::Duration(*trail->step_ns) + ")";
  return text;
}

// The group for which a worker waits, or that waits for it: the announced one, else the first that
// is drawn with it.
struct GroupAhead {
  GroupId id = kNoGroup;
  std::vector<GroupShare> members;
};
GroupAhead GroupOf(const Job& job, const std::vector<Engine::Drawn>& drawn, Rank rank) {
  const Job::Worker& worker = job.workers()[static_cast<std::size_t>(rank)];
  if (const Job::Running* in = AheadOf(job, worker)) return {worker.group, in->members};
  for (const Engine::Drawn& group : drawn) {
    for (const GroupShare& share : group.members) {
      if (share.rank == rank) return {group.id, group.members};
    }
  }
  return {};
}

void AddOthers(const Job& job, const Trails& trails, const std::vector<Engine::Drawn>& drawn,
               Instant now, WorkerRow* row) {
  const GroupAhead group = GroupOf(job, drawn, row->rank);
  for (const GroupShare& share : group.members) {
    const auto place = static_cast<std::size_t>(share.rank);
    if (share.rank == row->rank || place >= job.workers().size()) continue;
    const Job::Worker& worker = job.workers()[place];
    const auto trail = trails.find(share.rank);
    std::string does =
        worker.state == Job::State::kAbsent
            ? "gone"
            : Does(job, group.id, worker, trail == trails.end() ? nullptr : &trail->second, now);
    if (share.passive) does += "; passive there";
    row->others.emplace_back(share.rank, std::move(does));
  }
}

WorkerRow RowOfHere(const Job& job, Rank rank, Instant now) {
  const Job::Worker& worker = job.workers()[static_cast<std::size_t>(rank)];
  return {.rank = rank,
          .state = StateWord(job, worker),
          .detail = {},
          .here = true,
          .iteration = worker.iteration,
          .last_group = worker.last_group,
          .last_ok = worker.last_ok,
          .owed = worker.owed,
          .host_name = worker.host_name,
          .pid = worker.pid,
          .step_ns = worker.signal ? std::optional(worker.signal->step_ns) : std::nullopt,
          .why = Why(job, rank, now)};
}

WorkerRow RowOfGone(Rank rank, const Trail& trail, Instant now, bool ended) {
  return {.rank = rank,
          .state = LeftWord(*trail.left),
          .detail = trail.left_gradients > 0
                        ? Gradients(trail.left_gradients) + " in no round went with it"
                        : std::string(),
          .iteration = trail.iteration,
          .host_name = trail.host_name,
          .pid = trail.pid,
          .step_ns = trail.step_ns,
          .heard_ns = ended ? std::nullopt : std::optional(now - trail.heard),
          .why = std::string(LeftWord(*trail.left)) + " " + words::Duration(now - trail.left_at) +
                 (ended ? " before the run's end: " : " ago: ") + trail.left_because};
}

// The first record of a run has both its clocks.
std::optional<PauseRow> PauseOf(HistorySource& source, const RunInfo& run, const Job& job) {
  if (!job.paused()) return std::nullopt;
  PauseRow row{.by = job.paused()->by, .reason = job.paused()->reason};
  const Result<std::vector<Record>> first = source.Read(run.run, 0, 1, 0);
  if (first.ok() && !first->empty()) {
    row.since_wall_ns = run.started_wall_ns + (job.paused()->since - first->front().now);
  }
  return row;
}

}  // namespace

struct PresentReader::State {
  Replayer replayer;
  Trails trails;
};

PresentReader::PresentReader() : state_(std::make_unique<State>()) {}
PresentReader::~PresentReader() = default;

Status PresentReader::Add(const Record& record) {
  PRD_RETURN_IF_ERROR(state_->replayer.Add(record));
  Follow(record, &state_->trails);
  return Status::Ok();
}

const Job* PresentReader::job() const { return state_->replayer.job(); }

Result<Present> LoadPresent(HistorySource& source, const RunInfo& run) {
  PresentReader reader;
  Replayer& replayer = reader.state_->replayer;
  const auto seen = [&](const Record& record) { Follow(record, &reader.state_->trails); };
  // The workers of a run that has ended are what its records tell, so all of them are read.
  if (run.ended) {
    PRD_RETURN_IF_ERROR(ReplayAll(source, run, &replayer, seen));
  } else {
    PRD_RETURN_IF_ERROR(ReplayToPresent(source, run.run, &replayer, seen));
  }
  Result<DaemonStatus> daemon = source.Daemon();
  if (!daemon.ok() && daemon.status().code() != Code::kFailedPrecondition) return daemon.status();
  Present present = reader.Read(run, daemon.ok() ? &*daemon : nullptr);
  present.paused = PauseOf(source, run, *reader.job());
  return present;
}

Present PresentReader::Read(const RunInfo& run, const DaemonStatus* daemon) const {
  const Job& job = *state_->replayer.job();
  const Trails& trails = state_->trails;
  Present present{.run = run,
                  .plan = job.engine().plan(),
                  .now = job.last_now(),
                  .pace = {},
                  .workers = {},
                  .links = {},
                  .refusals = {},
                  .paused = {}};
  std::map<Rank, DurationNs> silences;
  if (daemon != nullptr) {
    // A run that has ended is explained as of its end.
    if (!job.ended()) present.now = std::max(present.now, daemon->now);
    for (const WorkerSilence& silence : daemon->silences) {
      if (silence.run == run.run) silences[silence.rank] = silence.silent_ns;
    }
  }
  if (!job.ended()) present.pace = SlowestSetsPace(job.spec().engine, job.live());
  for (const auto& [pair, link] : job.broken_links()) {
    present.links.push_back({.a = pair.first,
                             .b = pair.second,
                             .asks = link.asks,
                             .broken_ns = present.now - link.since,
                             .reason = link.reason});
  }
  for (auto it = job.refusals().rbegin(); it != job.refusals().rend(); ++it) {
    present.refusals.push_back({.refused = it->hello, .ago_ns = present.now - it->at});
  }
  std::map<Rank, WorkerRow> rows;
  for (const auto& [rank, trail] : trails) {
    if (trail.left) rows[rank] = RowOfGone(rank, trail, present.now, job.ended());
  }
  const std::vector<Engine::Drawn> drawn = job.engine().DrawnGroups();
  for (std::size_t i = 0; i < job.workers().size(); ++i) {
    if (job.workers()[i].state == Job::State::kAbsent) continue;
    const auto rank = static_cast<Rank>(i);
    WorkerRow row = RowOfHere(job, rank, present.now);
    const auto trail = trails.find(rank);
    if (trail != trails.end()) {
      if (!row.step_ns) row.step_ns = trail->second.step_ns;
      row.heard_ns = present.now - trail->second.heard;
      // Its last signal tells, unless it has had a round since.
      const Ready& ready = trail->second.ready;
      if (ready.iteration > row.iteration) row.local_steps = ready.local_steps;
    }
    row.detail = Detail(job, row, job.workers()[i]);
    AddOthers(job, trails, drawn, present.now, &row);
    if (const auto silence = silences.find(rank); silence != silences.end()) {
      row.heard_ns = silence->second;
    }
    rows[rank] = std::move(row);
  }
  for (auto& [rank, row] : rows) {
    const auto place = static_cast<std::size_t>(rank);
    if (rank >= 0 && place < job.tallies().size()) {
      const Job::Tally& tally = job.tallies()[place];
      if (tally.last.known()) row.trained = tally.last;
      row.nonfinite = tally.nonfinite;
    }
    present.workers.push_back(std::move(row));
  }
  return present;
}

std::optional<RunProgress> LoadProgress(HistorySource& source, const RunInfo& run) {
  if (run.ended) return std::nullopt;
  Replayer replayer;
  const Status status = ReplayToPresent(source, run.run, &replayer, nullptr);
  if (!status.ok()) return std::nullopt;
  const Job& job = *replayer.job();
  return RunProgress{.job = job.progress(),
                     .differ = job.divergence().ranks,
                     .paused = PauseOf(source, run, job),
                     .stopped = job.stopped_by()};
}

}  // namespace prd::ctl
