#include "tools/sim/loader.h"

#include <string>
#include <utility>

#include "engines/violation.h"
#include "tools/sim/names.h"

namespace prd::sim {

void Loader::Init(const WorkerParts& parts, std::uint32_t worker) {
  batches_ = parts.batches;
  runs_ = parts.runs;
  worker_ = worker;
  const ClusterPart& cluster = parts.world->workload.cluster;
  Prng own(Prng(parts.world->seed ^ (0xba7c4u + worker)).Next());
  max_share_ = own.Unit() < cluster.limited ? cluster.max_share : 0;
  accumulates_ = own.Unit() < cluster.accumulates;
  lead_ = static_cast<std::uint32_t>(own.Below(static_cast<std::uint64_t>(cluster.lead) + 1));
}

void Loader::BeginStep(bool again) {
  passes_.clear();
  if (!again) BeginAgain();
}

void Loader::BeginAgain() {
  uncounted_ = 0;
  counted_ = false;
}

void Loader::BeginPass(const SessionCore& core, RunId run) {
  piece_ = core.shares().Next(core.iteration());
  if (max_share_ > 0 && piece_.samples > max_share_) {
    throw Violation("share-limit", WorkerName(worker_) + " computes " +
                                       std::to_string(piece_.samples) + " samples at once");
  }
  if (piece_.samples > 0 && lead_ > 0 && batches_->whole(run)) DrawAhead(core, run);
}

// The samples of steps to come.
void Loader::DrawAhead(const SessionCore& core, RunId run) {
  const auto drawn = drawn_.find(piece_.step);
  const bool differs = drawn != drawn_.end() && drawn->second.first != piece_.first;
  if (differs && passes_.empty() && !batches_->WentElsewhere(run, piece_.step, lead_)) {
    throw Violation("share-ahead", WorkerName(worker_) + " has drawn samples from " +
                                       std::to_string(drawn->second.first) + " on for step " +
                                       std::to_string(piece_.step) + ", and computes from " +
                                       std::to_string(piece_.first) + " on");
  }
  drawn_.erase(drawn_.begin(), drawn_.upper_bound(piece_.step));
  for (int ahead = 1; ahead <= static_cast<int>(lead_); ++ahead) {
    const StepShares::Piece piece = core.shares().Ahead(core.iteration(), ahead);
    drawn_.try_emplace(piece.step, piece);
  }
}

std::int64_t Loader::Samples() const {
  std::int64_t sum = 0;
  for (const BatchBook::Range& range : passes_) sum += range.samples;
  return sum;
}

std::int64_t Loader::Add() {
  const std::int64_t before = Samples();
  passes_.push_back({.step = piece_.step, .first = piece_.first, .samples = piece_.samples});
  uncounted_ += piece_.samples;
  return before;
}

// What a step had when it was whole before has been counted.
void Loader::Discard() {
  uncounted_ = counted_ ? uncounted_ - Samples() : 0;
  passes_.clear();
}

void Loader::Count() {
  if (piece_.samples == 0 || uncounted_ <= 0) return;
  const bool first = !std::exchange(counted_, true);
  Counted(std::exchange(uncounted_, 0), first);
}

void Loader::Counted(std::int64_t samples, bool step) {
  own_.steps += step ? 1 : 0;
  own_.samples += samples;
  runs_->Trained(samples, step);
}

}  // namespace prd::sim
