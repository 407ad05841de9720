#include "engines/batch_shares.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "engines/words.h"

namespace prd {
namespace {

std::int64_t Sum(const std::vector<ShareOf>& shares) {
  std::int64_t sum = 0;
  for (const ShareOf& share : shares) sum += share.samples;
  return sum;
}

bool Has(const std::vector<ShareOf>& shares, Rank rank) {
  return std::any_of(shares.begin(), shares.end(),
                     [rank](const ShareOf& share) { return share.rank == rank; });
}

BatchRuleOptions RuleOf(const JobSpec& spec, std::int64_t batch) {
  return {.batch = batch, .multiple = spec.batch_multiple, .rebalance_min = spec.rebalance_min};
}

}  // namespace

BatchShares::BatchShares(const RunContext& run, Engine::Batches use, ReadyQueue* ready,
                         const ReplicaCopies* copies)
    : run_(run),
      use_(use),
      ready_(*ready),
      copies_(*copies),
      rule_(RuleOf(run.spec, run.spec.batch)),
      batch_(use == Engine::Batches::kNone ? 0 : run.spec.batch) {}

// ---- membership ----

std::string BatchShares::Refuses(const Hello& hello, int workers) const {
  const bool first = !on() && workers == 0 && use_ != Engine::Batches::kNone;
  const std::int64_t batch = first ? hello.batch : batch_;
  if (batch == 0) return {};
  if (!hello.takes_shares) {
    return "the job has a batch of " + std::to_string(batch) +
           " samples, which this worker's library is too old to divide";
  }
  const int most = std::max({workers + 1, first ? hello.world_size : 0, run_.spec.workers});
  if (most <= batch) return {};
  return "the job has a batch of " + std::to_string(batch) + " samples, too few for " +
         std::to_string(most) + " workers";
}

void BatchShares::Enter(Rank rank, const Hello& hello) {
  if (use_ == Engine::Batches::kNone) return;
  if (!on() && run_.roster.live() == 1 && hello.batch > 0) {
    batch_ = hello.batch;
    rule_ = BatchRule(RuleOf(run_.spec, batch_));
  }
  if (!on()) return;
  if (RankIndex(rank) >= workers_.size()) workers_.resize(RankIndex(rank) + 1);
  workers_[RankIndex(rank)] = {.limit = hello.max_share, .accumulates = hello.accumulates};
  rule_.Forget(rank);
}

void BatchShares::Begin(Iteration iteration, const std::vector<Rank>& ranks) {
  if (!on()) return;
  for (Worker& worker : workers_) worker.told = {};
  plans_.clear();
  group_ = kNoGroup;
  auto decision = rule_.Decide(Ask(ranks), {});
  PRD_CHECK(decision.has_value());
  Set(whole() ? iteration + 1 : 0, *std::move(decision));
  BeginStep(iteration + 1);
  for (const Rank rank : ranks) Tell(plans_.front(), rank);
}

bool BatchShares::MayJoin(Rank rank) const {
  if (!on() || !whole() || plans_.empty()) return true;
  return HasPiece(rank) && std::all_of(plans_.begin(), plans_.end(),
                                       [rank](const Plan& plan) { return Has(plan.shares, rank); });
}

bool BatchShares::HasPiece(Rank rank) const {
  return std::any_of(pieces_.begin(), pieces_.end(),
                     [rank](const Piece& piece) { return piece.rank == rank; });
}

void BatchShares::ServeIdle() {
  if (!on() || !whole() || plans_.empty() || active_ > 0 || group_ != kNoGroup) return;
  const std::vector<Rank> ranks = Sharers();
  const bool all = std::all_of(ranks.begin(), ranks.end(), [this](Rank r) { return MayJoin(r); });
  Iteration newest = 0;  // of a replica: the job may go back to an earlier step
  for (const Rank rank : ranks) newest = std::max(newest, run_.roster[rank].iteration);
  if (!all) Begin(newest, ranks);
}

// ---- shares ----

// The limits of shares, so that the batch fits into them if it can: in several passes of workers
// that add up gradients.
std::vector<BatchRule::Asked> BatchShares::Ask(const std::vector<Rank>& ranks) const {
  std::vector<BatchRule::Asked> asked;
  std::int64_t once = 0;    // fits into all at once
  std::int64_t passes = 0;  // of that, into workers that make several passes
  bool limited = true;
  for (const Rank rank : ranks) {
    const Worker& worker = workers_[RankIndex(rank)];
    asked.push_back({.rank = rank, .limit = worker.limit});
    limited = limited && worker.limit > 0;
    once += std::min(worker.limit, batch_);
    if (worker.accumulates) passes += std::min(worker.limit, batch_);
  }
  if (!limited || once >= batch_ || passes == 0) return asked;
  const std::int64_t more = (batch_ - once + passes - 1) / passes;  // passes, rounded up
  for (BatchRule::Asked& of : asked) {
    if (workers_[RankIndex(of.rank)].accumulates) of.limit *= 1 + more;
  }
  return asked;
}

// Workers that are to have shares train; under kWhole those that join have some, too.
std::vector<Rank> BatchShares::Sharers() const {
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < static_cast<Rank>(workers_.size()); ++rank) {
    if (workers_[RankIndex(rank)].active || (whole() && Joins(rank))) ranks.push_back(rank);
  }
  return ranks;
}

void BatchShares::Decide(Iteration from) {
  const std::vector<Rank> ranks = Sharers();
  if (ranks.empty()) return;
  if (auto decision = rule_.Decide(Ask(ranks), plans_.back().shares)) {
    Set(from, *std::move(decision));
    for (const Rank rank : ranks) {
      if (workers_[RankIndex(rank)].active) Tell(plans_.back(), rank);
    }
  }
}

void BatchShares::Set(Iteration from, BatchRule::Decision decision) {
  while (!plans_.empty() && plans_.back().from >= from) plans_.pop_back();
  SharesSet record{.from = from,
                   .batch = Sum(decision.shares),
                   .shares = {},
                   .reason = std::move(decision.reason)};
  if (record.batch < batch_) {
    record.reason += "; a batch of " + std::to_string(batch_) + " does not fit: max_share of all " +
                     "workers is " + std::to_string(record.batch);
  }
  std::int64_t first = 0;
  for (const ShareOf& share : decision.shares) {
    record.shares.push_back({.rank = share.rank,
                             .first = first,
                             .samples = share.samples,
                             .expected_ns = rule_.Expected(share.rank, share.samples)});
    first += share.samples;
  }
  plans_.push_back({.from = from,
                    .shares = std::move(decision.shares),
                    .reason = record.reason,
                    .since = run_.now()});
  run_.log.Write(std::move(record));
}

// Tells the worker its share in this plan, unless it knows.
void BatchShares::Tell(const Plan& plan, Rank rank) {
  SetShare share{.from = plan.from};
  for (const ShareOf& of : plan.shares) {
    share.samples = of.samples;
    if (of.rank == rank) break;
    share.first += of.samples;
    share.samples = 0;
  }
  Worker& worker = workers_[RankIndex(rank)];
  if (share.samples == 0) return;
  if (share.first == worker.told.first && share.samples == worker.told.samples) return;
  worker.told = share;
  run_.roster.Send(rank, share);
}

// ---- training ----

bool BatchShares::Take(Rank rank, const Ready& ready) {
  if (!on()) return true;
  Worker& worker = workers_[RankIndex(rank)];
  worker.lead = std::min(ready.lead, kMaxLead);
  if (whole() && ready.iteration == step_ && ready.made_up < worker.orders) return false;
  const bool fresh = ready.iteration > worker.observed && ready.made_up == 0;
  const bool offers = !TrainsInRounds(run_.plan) || ready.gradients > 0;
  if (fresh && offers && ready.samples > 0 && ready.step_ns > 0) {
    worker.observed = ready.iteration;
    rule_.Observe(rank, ready.samples, ready.step_ns);
  }
  return true;
}

bool BatchShares::Collect(Rank rank) {
  if (!on() || !whole() || plans_.empty()) return false;
  const Iteration step = run_.roster[rank].signal->iteration;
  if (group_ == kNoGroup && step != step_) GoTo(step);
  ready_.Hold(rank, ReadySlot::kForBatch);
  ++collected_;
  return true;
}

void BatchShares::Note(const Event& event) {
  if (!on()) return;
  if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    // What it was to compute besides its share before it left, it is not told of again.
    if (whole()) {
      workers_[RankIndex(joined->rank)].orders = 0;
      bool share = true;  // comes first
      std::erase_if(pieces_, [&](const Piece& piece) {
        if (piece.rank != joined->rank || std::exchange(share, false)) return false;
        lost_.push_back(piece);
        return true;
      });
    }
    workers_[RankIndex(joined->rank)].active = true;
    ++active_;
    if (plans_.empty()) return;
    if (!whole() && !Has(plans_.back().shares, joined->rank)) return Decide(0);
    for (const Plan& plan : plans_) Tell(plan, joined->rank);
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    Worker& worker = workers_[RankIndex(left->rank)];
    if (!worker.active) return;
    worker.active = false;
    worker.told = {};
    --active_;
    left_ = true;
  } else if (const auto* ended = std::get_if<EndedEvent>(&event)) {
    if (ended->group != group_ || group_ == kNoGroup) return;
    group_ = kNoGroup;
    left_ = true;
    if (ended->ok) BeginStep(group_iteration_ + 1);
  }
}

void BatchShares::OnGroup(const GroupFormed& form) {
  const bool trains = form.kind == GroupKind::kTrain || form.kind == GroupKind::kRound;
  if (!on() || !trains || plans_.empty()) return;
  if (!whole()) return Decide(0);
  group_ = form.id;
  group_iteration_ = form.iteration;
  std::uint32_t lead = 0;
  for (const Worker& worker : workers_) {
    if (worker.active) lead = std::max(lead, worker.lead);
  }
  Decide(std::max(form.iteration + 1 + lead, plans_.back().from));
}

void BatchShares::BeginStep(Iteration step) {
  step_ = step;
  if (!whole()) return;
  while (plans_.size() > 1 && plans_[1].from <= step) plans_.pop_front();
  pieces_.clear();
  lost_.clear();
  std::int64_t first = 0;
  for (const ShareOf& share : plans_.front().shares) {
    pieces_.push_back({.rank = share.rank, .first = first, .samples = share.samples});
    first += share.samples;
  }
  for (Worker& worker : workers_) worker.orders = 0;
  left_ = true;
}

// The newest replica has gone with its worker, and the job goes back to the step of the one before;
// or a worker has brought a newer one. Some have computed that step already, under other shares.
void BatchShares::GoTo(Iteration step) {
  run_.log.Write(SharesSet{.from = step,
                           .batch = batch_,
                           .shares = {},
                           .more = true,
                           .reason = std::string(kGoesOnElsewhere) + std::to_string(step) +
                                     ": what was computed of it counts as it is"});
  plans_.front().from = std::min(plans_.front().from, step);
  BeginStep(step);
  pieces_.clear();
  for (Rank rank = 0; rank < static_cast<Rank>(workers_.size()); ++rank) {
    Worker& worker = workers_[RankIndex(rank)];
    worker.told = {};  // so that orders of the same step before are void
    for (const Plan& plan : plans_) {
      if (worker.active) Tell(plan, rank);
    }
  }
}

std::vector<Rank> BatchShares::Look() {
  if (!on() || !whole() || plans_.empty() || group_ != kNoGroup || active_ == 0) return {};
  const bool complete = Complete();
  if (complete && CopiesFirst()) return {};
  if (complete || left_) FindLost(complete);
  if (!lost_.empty() && MakeUp()) return {};
  if (!complete) return {};
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < static_cast<Rank>(workers_.size()); ++rank) {
    if (!workers_[RankIndex(rank)].active) continue;
    ready_.Release(rank, ReadySlot::kForBatch);
    ranks.push_back(rank);
  }
  collected_ = 0;
  return ranks;
}

// All who train have signalled.
bool BatchShares::Complete() {
  if (collected_ < active_) return false;
  collected_ = 0;  // some may have gone
  for (Rank rank = 0; rank < static_cast<Rank>(workers_.size()); ++rank) {
    const RunWorker& worker = run_.roster[rank];
    if (IsActive(rank) && worker.Waits() && worker.Held(ReadySlot::kForBatch)) ++collected_;
  }
  return collected_ == active_;
}

// A worker that copies a replica now has a share of the step, and joins in a moment.
bool BatchShares::CopiesFirst() const {
  return std::any_of(pieces_.begin(), pieces_.end(), [this](const Piece& piece) {
    return run_.roster[piece.rank].state == WorkerState::kAdopting;
  });
}

bool BatchShares::Joins(Rank rank) const {
  const WorkerState state = run_.roster[rank].state;
  if (state == WorkerState::kAdopting) return true;
  return state == WorkerState::kJoining && !copies_.CutOff(rank);
}

// A worker that pauses, or is about to join, may still come in time. When one has finished, the
// others may be about to, and there is no such step.
bool BatchShares::Comes(Rank rank) const {
  const WorkerState state = run_.roster[rank].state;
  return state != WorkerState::kAbsent && state != WorkerState::kActive;
}

void BatchShares::FindLost(bool complete) {
  left_ = false;
  std::erase_if(pieces_, [&](const Piece& piece) {
    if (IsActive(piece.rank) || (Comes(piece.rank) && !complete)) return false;
    lost_.push_back(piece);
    return true;
  });
}

// Has others compute what is lost. False: nobody can, and the step goes on without it.
bool BatchShares::MakeUp() {
  std::vector<Rank> helpers;
  for (Rank rank = 0; rank < static_cast<Rank>(workers_.size()); ++rank) {
    // A worker that missed the group before still signals the step of that group.
    const bool at_step = IsActive(rank) && run_.roster[rank].iteration + 1 == step_;
    if (at_step && workers_[RankIndex(rank)].accumulates) helpers.push_back(rank);
  }
  std::int64_t samples = 0;
  std::vector<Rank> from;
  for (const Piece& piece : lost_) {
    samples += piece.samples;
    if (from.empty() || from.back() != piece.rank) from.push_back(piece.rank);
  }
  SharesSet record{.from = step_, .batch = batch_, .shares = {}, .more = true, .reason = {}};
  const std::string what = words::Ranks(from) + (from.size() == 1 ? " does" : " do") +
                           " not compute " + std::to_string(samples) + " samples of step " +
                           std::to_string(step_);
  std::vector<Piece> lost;
  lost.swap(lost_);
  if (helpers.empty()) {
    record.reason = what + ", and no worker can besides its own: the step goes on without them";
    run_.log.Write(std::move(record));
    return false;
  }
  record.reason = what + ": others do, besides their own";
  std::size_t at = 0;
  for (const ShareOf& share : rule_.Divide(samples, helpers)) {
    std::int64_t wanted = share.samples;
    while (wanted > 0) {
      Piece& piece = lost[at];
      const std::int64_t cut = std::min(wanted, piece.samples);
      Give({.rank = share.rank, .first = piece.first, .samples = cut});
      record.shares.push_back({.rank = share.rank, .first = piece.first, .samples = cut});
      wanted -= cut;
      piece.first += cut;
      piece.samples -= cut;
      if (piece.samples == 0) ++at;
    }
  }
  run_.log.Write(std::move(record));
  return true;
}

void BatchShares::Give(const Piece& piece) {
  pieces_.push_back(piece);
  ++workers_[RankIndex(piece.rank)].orders;
  ready_.Clear(piece.rank);  // the worker signals again
  run_.roster.Send(
      piece.rank,
      SetShare{.from = step_, .first = piece.first, .samples = piece.samples, .more = true});
}

// ---- display and state ----

BatchShares::Shown BatchShares::Show(Rank rank) const {
  if (!on() || plans_.empty()) return {};
  const Plan& plan = plans_.front();
  for (const ShareOf& share : plan.shares) {
    if (share.rank != rank) continue;
    return {.samples = share.samples,
            .expected_ns = rule_.Expected(rank, share.samples),
            .reason = plan.reason,
            .since = plan.since};
  }
  return {};
}

std::string BatchShares::Words() const {
  std::int64_t there = 0;
  std::vector<Rank> missing;
  for (const Piece& piece : pieces_) {
    const RunWorker& worker = run_.roster[piece.rank];
    if (IsActive(piece.rank) && worker.Held(ReadySlot::kForBatch)) {
      there += piece.samples;
    } else if (missing.empty() || missing.back() != piece.rank) {
      missing.push_back(piece.rank);
    }
  }
  return "waiting: " + std::to_string(there) + " of " + std::to_string(batch_) +
         " samples of the batch are computed; still to come: " + words::Ranks(missing);
}

void BatchShares::Archive(StateArchive& ar) {
  ar(batch_, workers_, active_, plans_, step_, group_, group_iteration_, pieces_, lost_, left_,
     rule_);
  std::vector<Rank> held;
  for (Rank rank = 0; ar.saving() && rank < static_cast<Rank>(workers_.size()); ++rank) {
    if (run_.roster[rank].Held(ReadySlot::kForBatch)) held.push_back(rank);
  }
  ar(held);
  if (ar.saving()) return;
  rule_.SetOptions(RuleOf(run_.spec, batch_));
  for (const Rank rank : held) {
    if (rank < 0 || rank >= run_.roster.size()) return ar.Fail();
    ready_.Hold(rank, ReadySlot::kForBatch);
    ++collected_;
  }
}

bool BatchShares::Restore() {
  if (!on()) return true;
  if (workers_.size() > static_cast<std::size_t>(run_.roster.size())) return false;
  const auto known = [this](Rank rank) { return rank >= 0 && RankIndex(rank) < workers_.size(); };
  for (const Plan& plan : plans_) {
    for (const ShareOf& share : plan.shares) {
      if (!known(share.rank)) return false;
    }
  }
  for (const std::vector<Piece>* pieces : {&pieces_, &lost_}) {
    for (const Piece& piece : *pieces) {
      if (!known(piece.rank)) return false;
    }
  }
  return true;
}

}  // namespace prd
