// The invariants of engine esync (Li et al.), beside Algorithm 2 of its paper, worked out anew at
// every event: one record per worker, and the slowest, the overdue and the members are looked for
// from end to end.
//
// ready: a worker is told READY if and only if it is the slowest, the slowest is ready, or it could
// not end another iteration before the slowest ends its own.
//
// dropped: what has counted and is trained on a model older than the newest is dropped, at once,
// and before a group forms; and nothing else is.
//
// round: a group has all that wait, each once. One runs at a time, and one forms as soon as all
// that count wait.
//
// weights: by the samples of a local iteration, on average, where all have told them, else equal.
//
// stall: the engine's deadline is when every worker that the others wait for is overdue:
// stall_factor times its longest iteration of late after its last sign of life. Then none of them
// counts any more. So no worker holds up those that wait for longer.
//
// explained: a worker has a reason to wait while it is at the barrier, and only then (in jobs of up
// to kMaxWatched workers).
#include "engines/rules.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engines/esync/options.h"

namespace prd {
namespace {

constexpr DurationNs kLongestRoundTrip = 60 * kSecond;
constexpr DurationNs kLongestIteration = 24 * 3600 * kSecond;
constexpr DurationNs kShortestStall = kMillisecond;

std::string Text(const std::optional<bool>& answer) {
  if (!answer) return "nothing";
  return *answer ? "READY" : "NOT-READY";
}

class EsyncRules final : public EngineRules {
 public:
  explicit EsyncRules(const EsyncOptions& options) : options_(options) {}
  void Check(const Decision& of) override;
  void Archive(StateArchive& ar) override { ar(records_, begun_, newest_, round_, running_); }

 private:
  struct Record {
    std::optional<Iteration> base;  // the newest round in its model, where that is known
    std::optional<DurationNs> c;
    DurationNs longest = 0;
    Instant last_finish;
    std::int64_t k = 0;
    std::vector<std::int64_t> samples;  // of each of these
    bool counts = false;
    bool ready = false;    // was told so
    bool stands = false;   // at the barrier
    bool reduces = false;  // in the group that runs, and has not its result
    bool failed = false;
    bool copies = false;  // a replica, or trains on the copy
    bool untimed = false;
    void Archive(StateArchive& ar) {
      ar(base, c, longest, last_finish, k, samples, counts, ready, stands, reduces, failed, copies,
         untimed);
    }
    // On average; 0: not known.
    double Samples() const {
      if (samples.empty() || std::find(samples.begin(), samples.end(), 0) != samples.end())
        return 0;
      return std::accumulate(samples.begin(), samples.end(), 0.0) /
             static_cast<double>(samples.size());
    }
  };

  bool Delayed() const { return options_.mode == EsyncOptions::Mode::kDelayedAck; }
  void Follow(Instant now, const Event& event);
  void OnJoined(Instant now, const JoinedEvent& event);
  void OnFinished(Instant now, const FinishedEvent& event);
  void OnEnded(Instant now, bool ok);
  void Query(Instant now, Rank rank, const Ready& ready);
  Rank Slowest() const;
  void ForgetTheOverdue(Instant now);
  bool QueryState(Instant now, Rank rank) const;
  void DropOlder(Instant now);
  void Drop(Instant now, Rank rank);
  void TakeOut(Instant now);
  std::optional<Instant> Deadline() const;
  const GroupFormed* CheckEffects(std::span<const Effect> effects);
  void CheckGroup(const GroupFormed& group);
  void CheckExplained(const Decision& of) const;

  const EsyncOptions options_;
  std::map<Rank, Record> records_;
  bool begun_ = false;
  Iteration newest_ = 0;
  Iteration round_ = 0;  // that runs
  bool running_ = false;
  // Due on the event at hand.
  std::set<Rank> due_;  // to be dropped
  std::optional<bool> answer_;
};

void EsyncRules::Drop(Instant now, Rank rank) {
  due_.insert(rank);
  Record& record = records_[rank];
  record.base.reset();
  record.copies = true;
  record.ready = record.stands = false;
  record.k = 0;
  record.samples.clear();
  record.untimed = record.c.has_value();
  record.last_finish = now;
}

// Whoever has counted, and trains on an older model than the newest, is dropped.
void EsyncRules::DropOlder(Instant now) {
  for (const auto& [rank, record] : records_) newest_ = std::max(newest_, record.base.value_or(0));
  for (const auto& [rank, record] : records_) {
    const bool first = !record.counts && !record.c;
    if (record.base && *record.base < newest_ && !first && !record.failed) Drop(now, rank);
  }
}

Rank EsyncRules::Slowest() const {
  Rank slowest = kNoRank;
  for (const auto& [rank, record] : records_) {
    if (!record.counts) continue;
    const bool slower = slowest == kNoRank || !record.c || *record.c > *records_.at(slowest).c;
    if (slower) slowest = rank;
    if (!record.c) break;
  }
  return slowest;
}

// A worker that catches up keeps the others from being ready only until it is overdue.
void EsyncRules::ForgetTheOverdue(Instant now) {
  while (options_.stall_factor > 0) {
    Record& of = records_.at(Slowest());
    const Instant overdue = of.last_finish + options_.stall_factor * of.longest;
    if (!of.copies || !of.c || now < overdue) return;
    of.counts = false;
  }
}

// The line numbers are those of Algorithm 2.
bool EsyncRules::QueryState(Instant now, Rank rank) const {
  const Record& current = records_.at(rank);
  const Rank slowest = Slowest();  // 4
  if (running_ && *current.base == newest_) return false;
  const Record& of = records_.at(slowest);
  if (current.k == 0 || !of.c || of.reduces || of.failed || of.copies) return false;  // 5-6
  const DurationNs rest = *of.c - (now - of.last_finish);                             // 7-8
  return rank == slowest || of.ready || of.stands ||
         *current.c + options_.margin_ms * kMillisecond > rest;  // 9
}

// Line 3. Of a worker that trains on meanwhile, the round trip is part of an iteration.
void EsyncRules::Query(Instant now, Rank rank, const Ready& ready) {
  Record& record = records_[rank];
  const std::int64_t steps = ready.local_steps - record.k;
  const bool ends = !record.untimed && steps > 0 && !(Delayed() && ready.waiting);
  if (now > record.last_finish && (ends || !record.c)) {
    record.c = (now - record.last_finish) / std::max<std::int64_t>(1, steps) +
               (Delayed() ? std::clamp<DurationNs>(ready.rtt_ns, 0, kLongestRoundTrip) : 0);
    record.longest = std::max(record.longest, *record.c);
  } else if (record.untimed && options_.stall_factor > 0) {
    const DurationNs most = options_.stall_factor * std::max(record.longest, kShortestStall);
    const DurationNs since = std::min({now - record.last_finish, most, kLongestIteration});
    record.longest = std::max(record.longest, since);
  }
  begun_ = true;
  record.k = ready.local_steps;
  record.samples.resize(ready.local_steps, ready.samples);
  record.last_finish = now;
  record.untimed = record.copies = false;
  record.base = ready.iteration - 1;
  record.counts = true;
  if (*record.base < newest_) return Drop(now, rank);
  if (!running_ && *record.base > newest_) DropOlder(now);
  ForgetTheOverdue(now);
  const bool told = record.ready;
  const bool last = ready.last && !(running_ && *record.base == newest_);
  const bool is_ready = told || last || QueryState(now, rank);
  if (!Delayed() || (is_ready && !told && !ready.waiting)) answer_ = is_ready;
  record.ready = is_ready;
  record.stands = ready.waiting && (is_ready || Delayed());
  if (record.stands) record.ready = true;
}

void EsyncRules::OnJoined(Instant now, const JoinedEvent& event) {
  const bool there = std::any_of(records_.begin(), records_.end(),
                                 [this](const auto& of) { return of.second.base == newest_; });
  if (records_.empty()) newest_ = event.iteration;
  Record& record = records_[event.rank];
  record.base = event.iteration;
  record.last_finish = now;
  record.counts = !begun_;
  if (!running_ && event.iteration < newest_ && !there) newest_ = 0;
  if (!running_ && event.iteration > newest_) DropOlder(now);
}

void EsyncRules::OnFinished(Instant now, const FinishedEvent& event) {
  Record& record = records_[event.rank];
  record.reduces = record.ready = record.stands = false;
  record.failed = !event.ok;
  record.last_finish = now;
  if (!event.ok) return;
  record.base = round_;
  record.k = 0;
  record.samples.clear();
  record.longest = std::max(*record.c, record.longest - record.longest / 8);
}

void EsyncRules::OnEnded(Instant now, bool ok) {
  running_ = false;
  const bool known = std::any_of(records_.begin(), records_.end(), [&](const auto& of) {
    return of.second.base && !(of.second.failed && ok);
  });
  for (auto& [rank, record] : records_) {
    if (!record.failed) continue;
    record.untimed = true;
    record.last_finish = now;
    if (ok) {
      record.base.reset();
      record.k = 0;
      record.samples.clear();
    }
    record.copies = ok;
    record.ready = !ok;
  }
  newest_ = ok ? round_ : known ? 0 : newest_;
  DropOlder(now);
  for (auto& [rank, record] : records_) record.failed = false;
}

void EsyncRules::Follow(Instant now, const Event& event) {
  if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    OnJoined(now, *joined);
  } else if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    Query(now, ready->rank, ready->ready);
  } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
    OnFinished(now, *finished);
  } else if (const auto* ended = std::get_if<EndedEvent>(&event)) {
    OnEnded(now, ended->ok);
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    records_.erase(left->rank);
    if (records_.empty()) begun_ = false;
  } else if (std::holds_alternative<DeadlineEvent>(event)) {
    TakeOut(now);
  }
}

// When every one of those that the round waits for is overdue.
std::optional<Instant> EsyncRules::Deadline() const {
  if (running_ || options_.stall_factor == 0) return std::nullopt;
  bool anybody = false;
  std::optional<Instant> last;
  for (const auto& [rank, record] : records_) {
    if (!record.counts) continue;
    anybody = anybody || record.stands;
    if (record.stands) continue;
    if (!record.c || record.reduces) return std::nullopt;
    const Instant overdue = record.last_finish + options_.stall_factor * record.longest;
    last = last ? std::max(*last, overdue) : overdue;
  }
  return anybody ? last : std::nullopt;
}

void EsyncRules::TakeOut(Instant now) {
  const std::optional<Instant> deadline = Deadline();
  if (!deadline || now < *deadline) return;
  for (auto& [rank, record] : records_) {
    if (record.stands || !record.counts) continue;
    record.counts = false;
    Count("taken_out");
  }
}

// The group that forms, or null.
const GroupFormed* EsyncRules::CheckEffects(std::span<const Effect> effects) {
  std::set<Rank> dropped;
  std::optional<bool> answer;
  const GroupFormed* formed = nullptr;
  for (const Effect& effect : effects) {
    if (const auto* late = std::get_if<UpdateDropped>(&effect)) {
      if (formed != nullptr || !dropped.insert(late->rank).second || !due_.contains(late->rank)) {
        throw Violation("dropped", RankName(late->rank) + " loses its update: " + late->reason);
      }
    } else if (const auto* group = std::get_if<GroupFormed>(&effect)) {
      if (formed != nullptr) throw Violation("round", NameOf(*group) + " is a second one");
      formed = group;
    } else if (const auto* said = std::get_if<QueryAnswered>(&effect)) {
      answer = said->ready;
    } else {
      throw Violation("round", "a decision of another engine");
    }
  }
  if (answer != answer_) {
    throw Violation("ready", "the worker is told " + Text(answer) + ", due is " + Text(answer_));
  }
  if (dropped.size() != due_.size()) {
    throw Violation("dropped", std::to_string(due_.size()) + " updates are late, and " +
                                   std::to_string(dropped.size()) + " are dropped");
  }
  Count("dropped", std::ssize(dropped));
  return formed;
}

void EsyncRules::Check(const Decision& of) {
  due_.clear();
  answer_.reset();
  Follow(of.now, of.event);
  const GroupFormed* formed = CheckEffects(of.effects);
  bool due = !running_;
  bool anybody = false;
  for (const auto& [rank, record] : records_) {
    due = due && (record.stands || !record.counts);
    anybody = anybody || record.stands;
  }
  due = due && anybody;
  if (due && formed == nullptr) throw Violation("round", "all wait, and no group forms");
  if (!due && formed != nullptr) {
    throw Violation("round", NameOf(*formed) + " forms while one runs, or does not wait for all");
  }
  if (due) CheckGroup(*formed);
  CheckExplained(of);
  if (of.engine.NextDeadline() != Deadline()) {
    throw Violation("stall", "the engine's deadline is not when all who are awaited are overdue");
  }
}

void EsyncRules::CheckExplained(const Decision& of) const {
  if (of.joined > kMaxWatched) return;
  for (const auto& [rank, record] : records_) {
    const bool explained = !of.engine.Explain(of.now, rank).empty();
    if (explained == record.stands) continue;
    throw Violation("explained", RankName(rank) + " waits without a reason, or has one");
  }
}

void EsyncRules::CheckGroup(const GroupFormed& group) {
  std::set<Rank> members;
  bool by_samples = options_.weights == EsyncOptions::Weights::kSamples;
  double total = 0;
  std::int64_t standing = 0;
  for (const auto& [rank, record] : records_) {
    if (!record.stands) continue;
    ++standing;
    by_samples = by_samples && record.Samples() > 0;
    total += record.Samples();
  }
  for (const GroupShare& member : group.members) {
    members.insert(member.rank);
    if (member.iteration != newest_ + 1) {
      throw Violation("round",
                      RankName(member.rank) + " has another iteration in " + NameOf(group));
    }
    const double due =
        by_samples ? records_[member.rank].Samples() / total : 1 / static_cast<double>(standing);
    if (std::abs(member.weight - due) <= 1e-9) continue;
    throw Violation("weights", RankName(member.rank) + " has " + std::to_string(member.weight) +
                                   " in " + NameOf(group) + ", due is " + std::to_string(due));
  }
  bool all = members.size() == group.members.size();
  for (auto& [rank, record] : records_) {
    all = all && members.contains(rank) == record.stands;
    if (!record.stands) continue;
    record.stands = record.ready = false;
    record.reduces = true;
    Count("local_steps", record.k > 1 ? 1 : 0);
  }
  if (!all) throw Violation("round", NameOf(group) + " has not all that wait, once");
  if (group.iteration != newest_ + 1 || group.kind != GroupKind::kTrain) {
    throw Violation("round", NameOf(group) + " is round " + std::to_string(group.iteration) +
                                 ", due is " + std::to_string(newest_ + 1));
  }
  running_ = true;
  round_ = group.iteration;
  Count("rounds");
  Count("by_samples", by_samples ? 1 : 0);
}

}  // namespace

// Counts rounds, dropped, taken_out (as stalled), local_steps (members with several in a round),
// by_samples (rounds with such weights).
std::unique_ptr<EngineRules> EsyncOptions::Rules() const {
  return std::make_unique<EsyncRules>(*this);
}

}  // namespace prd
