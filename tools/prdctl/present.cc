#include "tools/prdctl/present.h"

#include <algorithm>
#include <cstdio>
#include <string_view>
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
const RunningGroup* RoundOf(const Run& run, const RunWorker& worker) {
  if (worker.group == kNoGroup || worker.source != kNoRank) return nullptr;
  const auto found = run.groups().find(worker.group);
  if (found == run.groups().end() || found->second.kind != GroupKind::kRound) return nullptr;
  return &found->second;
}

// Active in a job whose groups do not take its training loop: the round is said beside.
bool RunsBeside(const Run& run, const RunWorker& worker) {
  return worker.state == WorkerState::kActive && RoundOf(run, worker) != nullptr;
}

// Its training loop waits, as far as the controller knows, and can take part in a group.
bool IsThere(const RunWorker& worker) {
  return worker.state != WorkerState::kActive || (worker.signal && worker.signal->waiting);
}

// The group formed ahead that it is in, or null.
const RunningGroup* AheadOf(const Run& run, const RunWorker& worker) {
  if (!DrawnAhead(run.engine().plan()) || worker.group == kNoGroup) return nullptr;
  const auto found = run.groups().find(worker.group);
  const bool train = found != run.groups().end() && found->second.kind == GroupKind::kTrain;
  return train ? &found->second : nullptr;
}

// The members that compute still, in a group that starts once all wait.
std::vector<Rank> Computing(const Run& run, const RunningGroup& group) {
  std::vector<Rank> computing;
  if (AveragesInBackground(run.engine().plan())) return computing;
  for (const Rank rank : group.pending) {
    if (!IsThere(run.workers()[static_cast<std::size_t>(rank)])) computing.push_back(rank);
  }
  return computing;
}

// How it goes about its steps under engines whose groups do not take its training loop, or not yet.
// Empty: the group says.
std::string AheadWord(const Run& run, const RunWorker& worker) {
  const Plan plan = run.engine().plan();
  if (worker.state != WorkerState::kActive) return "";
  if (FollowsSchedule(plan)) return "training";
  if (RunAhead(plan) > 0) {
    return worker.signal ? "signalled" : "computing";
  }
  const RunningGroup* group = AheadOf(run, worker);
  if (group == nullptr) return "";
  if (!IsThere(worker)) return "computing";
  return AveragesInBackground(plan) || Computing(run, *group).empty() ? "" : "waiting";
}

std::string StateWord(const Run& run, const RunWorker& worker) {
  if (const std::string word = AheadWord(run, worker); !word.empty()) return word;
  if (worker.group != kNoGroup && worker.source != kNoRank) return "fetching";
  if (worker.group != kNoGroup && !RunsBeside(run, worker))
    return "in group " + std::to_string(worker.group);
  if (worker.source != kNoRank) return "adopting";
  switch (worker.state) {
    case WorkerState::kAbsent:
      return "gone";
    case WorkerState::kJoining:
      return worker.resumes ? "resuming" : "joining";
    case WorkerState::kStarting:
      return "starting";
    case WorkerState::kAdopting:
      return "adopting";
    case WorkerState::kActive:
      return worker.signal && worker.signal->waiting ? "waiting" : "computing";
    case WorkerState::kPaused:
      return "paused";
    case WorkerState::kFinishing:
      return "finishing";
    case WorkerState::kFinal:
      return "final";
  }
  return "unknown";
}

std::string Gradients(std::uint32_t count) {
  return std::to_string(count) + (count == 1 ? " gradient" : " gradients");
}

// What a group has to do with a worker that it does not hold, or not yet.
std::string GroupBeside(const Run& run, const std::string& state, const RunWorker& worker) {
  const auto found = run.groups().find(worker.group);
  if (worker.state != WorkerState::kActive || found == run.groups().end()) return "";
  const std::string group = GroupName(worker.group);
  if (found->second.kind != GroupKind::kTrain || state == "in " + group) return "";
  if (AveragesInBackground(run.engine().plan())) return "in " + group + " meanwhile";
  if (AheadOf(run, worker) == nullptr) return "";
  if (!IsThere(worker)) return group + " waits for it";
  return "for " + words::Ranks(Computing(run, found->second)) + " in " + group;
}

std::string Detail(const Run& run, const WorkerRow& row, const RunWorker& worker) {
  std::string text;
  const auto add = [&text](const std::string& more) { text += (text.empty() ? "" : "; ") + more; };
  const std::vector<Rank>& differ = run.divergence().ranks;
  if (std::binary_search(differ.begin(), differ.end(), row.rank)) {
    add("differs from the others since group " + std::to_string(run.divergence().group));
  }
  if (row.owed > 0) add("owes " + Gradients(row.owed));
  if (row.local_steps > 0) {
    add(std::to_string(row.local_steps) + (row.local_steps == 1 ? " local step" : " local steps"));
  }
  if (row.state == "signalled") {
    const std::uint32_t steps = RunAhead(run.engine().plan());
    add("trains on, up to " + std::to_string(steps) + (steps == 1 ? " step" : " steps"));
  }
  if (const std::string beside = GroupBeside(run, row.state, worker); !beside.empty()) add(beside);
  if (RunsBeside(run, worker)) {
    add("in round " + std::to_string(RoundOf(run, worker)->iteration) + " meanwhile");
  }
  if (worker.group != kNoGroup && worker.source != kNoRank) {
    add("the result of group " + std::to_string(worker.group) + " from rank " +
        std::to_string(worker.source));
  }
  return text;
}

// The job's words, or the engine's; of who computes or waits while a round runs, both.
std::string Why(const Run& run, Rank rank, Instant now) {
  const RunWorker& worker = run.workers()[static_cast<std::size_t>(rank)];
  std::string why = run.Explain(now, rank);
  if (!RunsBeside(run, worker)) return why;
  const RunningGroup& round = *RoundOf(run, worker);
  const auto self = std::find_if(round.members.begin(), round.members.end(),
                                 [&](const GroupShare& share) { return share.rank == rank; });
  const bool gives = self != round.members.end() && self->weight > 0;
  std::string own = worker.signal && worker.signal->waiting ? run.engine().Explain(now, rank) : "";
  if (own.empty()) own = "computing after round " + std::to_string(worker.iteration);
  return own + "; round " + std::to_string(round.iteration) +
         " reduces in the background, to which it gives " +
         (gives ? "its gradients" : "nothing (it had none)") + ": " + why +
         (worker.owed > 0 ? "; owes " + Gradients(worker.owed) + " until a round has taken them"
                          : "");
}

// In a few words, seen from another member of `group`.
std::string Does(const Run& run, GroupId group, const RunWorker& worker, const Trail* trail,
                 Instant now) {
  const Plan plan = run.engine().plan();
  const RunningGroup* in = AheadOf(run, worker);
  if (worker.group == group && AveragesInBackground(plan)) return "reduces";
  std::string text;
  if (in != nullptr && worker.group != group) {
    text = "in group " + std::to_string(worker.group);
    const std::vector<Rank> computing = Computing(run, *in);
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
GroupAhead GroupOf(const Run& run, const std::vector<Engine::Drawn>& drawn, Rank rank) {
  const RunWorker& worker = run.workers()[static_cast<std::size_t>(rank)];
  if (const RunningGroup* in = AheadOf(run, worker)) return {worker.group, in->members};
  for (const Engine::Drawn& group : drawn) {
    for (const GroupShare& share : group.members) {
      if (share.rank == rank) return {group.id, group.members};
    }
  }
  return {};
}

void AddOthers(const Run& run, const Trails& trails, const std::vector<Engine::Drawn>& drawn,
               Instant now, WorkerRow* row) {
  const GroupAhead group = GroupOf(run, drawn, row->rank);
  for (const GroupShare& share : group.members) {
    const auto place = static_cast<std::size_t>(share.rank);
    if (share.rank == row->rank || place >= run.workers().size()) continue;
    const RunWorker& worker = run.workers()[place];
    const auto trail = trails.find(share.rank);
    std::string does =
        worker.state == WorkerState::kAbsent
            ? "gone"
            : Does(run, group.id, worker, trail == trails.end() ? nullptr : &trail->second, now);
    if (share.passive) does += "; passive there";
    row->others.emplace_back(share.rank, std::move(does));
  }
}

void AddShare(const Run& run, Instant now, WorkerRow* row) {
  const BatchShares::Shown share = run.shares().Show(row->rank);
  if (share.samples == 0) return;
  row->share = share.samples;
  if (share.expected_ns > 0) row->expected_ns = share.expected_ns;
  row->why += "; its share is " + std::to_string(share.samples) + " of " +
              std::to_string(run.shares().batch()) + " samples, as decided " +
              words::Duration(now - share.since) + " ago: " + share.reason;
}

WorkerRow RowOfHere(const Run& run, Rank rank, Instant now) {
  const RunWorker& worker = run.workers()[static_cast<std::size_t>(rank)];
  return {.rank = rank,
          .state = StateWord(run, worker),
          .detail = {},
          .here = true,
          .iteration = worker.iteration,
          .last_group = worker.last_group,
          .last_ok = worker.last_ok,
          .owed = worker.owed,
          .host_name = worker.host_name,
          .pid = worker.pid,
          .step_ns = worker.signal ? std::optional(worker.signal->step_ns) : std::nullopt,
          .why = Why(run, rank, now)};
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
std::optional<PauseRow> PauseOf(HistorySource& source, const RunInfo& info, const Run& run) {
  if (!run.paused()) return std::nullopt;
  PauseRow row{.by = run.paused()->by, .reason = run.paused()->reason};
  const Result<std::vector<Record>> first = source.Read(info.run, 0, 1, 0);
  if (first.ok() && !first->empty()) {
    row.since_wall_ns = info.started_wall_ns + (run.paused()->since - first->front().now);
  }
  return row;
}

}  // namespace

std::optional<StallRow> StallOf(const DaemonStatus& daemon) {
  if (daemon.stalled_ns == 0) return std::nullopt;
  return StallRow{.for_ns = daemon.stalled_ns, .reason = daemon.stalled};
}

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

const Run* PresentReader::run() const { return state_->replayer.run(); }

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
  present.paused = PauseOf(source, run, *reader.run());
  if (daemon.ok() && !run.ended) present.stalled = StallOf(*daemon);
  return present;
}

Present PresentReader::Read(const RunInfo& info, const DaemonStatus* daemon) const {
  const Run& run = *state_->replayer.run();
  const Trails& trails = state_->trails;
  Present present{.run = info,
                  .plan = run.engine().plan(),
                  .now = run.last_now(),
                  .pace = {},
                  .workers = {},
                  .links = {},
                  .refusals = {},
                  .paused = {},
                  .stalled = {}};
  std::map<Rank, DurationNs> silences;
  if (daemon != nullptr) {
    // A run that has ended is explained as of its end.
    if (!run.ended()) present.now = std::max(present.now, daemon->now);
    for (const WorkerSilence& silence : daemon->silences) {
      if (silence.run == info.run) silences[silence.rank] = silence.silent_ns;
    }
  }
  if (!run.ended()) present.pace = SlowestSetsPace(run.spec().engine, run.live());
  const auto endpoints = [&run](Rank rank) {
    return run.workers()[static_cast<std::size_t>(rank)].endpoints;
  };
  for (const auto& [pair, link] : run.broken_links()) {
    present.links.push_back({.a = pair.first,
                             .b = pair.second,
                             .asks = link.asks,
                             .broken_ns = present.now - link.since,
                             .reason = link.reason,
                             .a_endpoints = endpoints(pair.first),
                             .b_endpoints = endpoints(pair.second)});
  }
  for (auto it = run.refusals().rbegin(); it != run.refusals().rend(); ++it) {
    present.refusals.push_back({.refused = it->hello, .ago_ns = present.now - it->at});
  }
  std::map<Rank, WorkerRow> rows;
  for (const auto& [rank, trail] : trails) {
    if (trail.left) rows[rank] = RowOfGone(rank, trail, present.now, run.ended());
  }
  const std::vector<Engine::Drawn> drawn = run.engine().DrawnGroups();
  for (std::size_t i = 0; i < run.workers().size(); ++i) {
    if (run.workers()[i].state == WorkerState::kAbsent) continue;
    const auto rank = static_cast<Rank>(i);
    WorkerRow row = RowOfHere(run, rank, present.now);
    const auto trail = trails.find(rank);
    if (trail != trails.end()) {
      if (!row.step_ns) row.step_ns = trail->second.step_ns;
      row.heard_ns = present.now - trail->second.heard;
      // Its last signal tells, unless it has had a round since.
      const Ready& ready = trail->second.ready;
      if (ready.iteration > row.iteration) row.local_steps = ready.local_steps;
    }
    row.detail = Detail(run, row, run.workers()[i]);
    AddOthers(run, trails, drawn, present.now, &row);
    AddShare(run, present.now, &row);
    if (const auto silence = silences.find(rank); silence != silences.end()) {
      row.heard_ns = silence->second;
    }
    rows[rank] = std::move(row);
  }
  for (auto& [rank, row] : rows) {
    const auto place = static_cast<std::size_t>(rank);
    if (rank >= 0 && place < run.tallies().size()) {
      const RankTally& tally = run.tallies()[place];
      if (tally.last.known()) row.trained = tally.last;
      row.nonfinite = tally.nonfinite;
      row.memory = tally.memory;
    }
    present.workers.push_back(std::move(row));
  }
  return present;
}

std::optional<RunProgress> LoadProgress(HistorySource& source, const RunInfo& info) {
  if (info.ended) return std::nullopt;
  Replayer replayer;
  const Status status = ReplayToPresent(source, info.run, &replayer, nullptr);
  if (!status.ok()) return std::nullopt;
  const Run& run = *replayer.run();
  return RunProgress{.job = run.progress(),
                     .differ = run.divergence().ranks,
                     .paused = PauseOf(source, info, run),
                     .stopped = run.stopped_by()};
}

// "...; the job has trained 80 steps, 640 samples; ...".
std::optional<Trained> TrainedAtEnd(const RunInfo& run) {
  constexpr std::string_view kWords = "; the job has trained ";
  const std::size_t at = run.end.rfind(kWords);
  if (!run.ended || at == std::string::npos) return std::nullopt;
  long long steps = 0, samples = 0;
  const char* text = run.end.c_str() + at + kWords.size();
  if (std::sscanf(text, "%lld steps, %lld samples", &steps, &samples) < 1) return std::nullopt;
  return Trained{.steps = steps, .samples = samples};
}

}  // namespace prd::ctl
