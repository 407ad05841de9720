#include "worker/core/step_shares.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace prd {
namespace {

// Bounds what a controller may plan ahead, far above what one does.
constexpr std::size_t kMostPlanned = 100'000;

}  // namespace

void StepShares::Begin(const Options& options) {
  options_ = options;
  Forget();
}

void StepShares::OnWelcome(const Welcome& welcome) {
  ++version_;
  batch_ = std::max<std::int64_t>(welcome.batch, 0);
  workers_ = std::max(welcome.workers, 1);
}

void StepShares::Set(const SetShare& share) {
  ++version_;
  if (share.more) {
    if (!more_.empty() && more_.front().from != share.from) more_.clear();
    if (more_.size() < kMostPlanned) more_.push_back(share);
    return;
  }
  if (!more_.empty() && share.from <= more_.front().from) more_.clear();  // the step comes again
  while (!shares_.empty() && shares_.back().from >= share.from) shares_.pop_back();
  shares_.push_back(share);
  while (shares_.size() > kMostPlanned) shares_.pop_front();
}

void StepShares::Forget() {
  ++version_;
  shares_.clear();
  more_.clear();
  open_ = false;
}

StepShares::Piece StepShares::Standing(Iteration step) const {
  if (batch_ == 0) return {.step = step};
  if (shares_.empty()) {
    return {.step = step, .first = 0, .samples = std::max<std::int64_t>(batch_ / workers_, 1)};
  }
  const SetShare* newest = &shares_.front();
  for (const SetShare& share : shares_) {
    if (share.from <= step) newest = &share;
  }
  return {.step = step, .first = newest->first, .samples = newest->samples};
}

std::vector<StepShares::Piece> StepShares::PiecesOf(Iteration step) const {
  std::vector<Piece> pieces = {Standing(step)};
  for (const SetShare& share : more_) {
    if (share.from != step) continue;
    pieces.push_back({.step = step, .first = share.first, .samples = share.samples});
  }
  return pieces;
}

bool StepShares::Lacks(Iteration step, std::uint32_t made_up) const {
  return options_.accumulates && PiecesOf(step).size() > 1 + std::size_t{made_up};
}

StepShares::Piece StepShares::Next(Iteration iteration) const {
  const Iteration step = iteration + 1;
  std::int64_t done = Done(step);
  for (Piece piece : PiecesOf(step)) {
    const std::int64_t skipped = std::min(done, piece.samples);
    done -= skipped;
    piece.first += skipped;
    piece.samples -= skipped;
    if (piece.samples == 0) continue;
    if (options_.max_share > 0) piece.samples = std::min(piece.samples, options_.max_share);
    return piece;
  }
  return Standing(step);
}

StepShares::Piece StepShares::Ahead(Iteration iteration, int ahead) const {
  return Standing(iteration + 1 + ahead);
}

StepShares::Taken StepShares::Take(Iteration step, bool discard, Ready* ready) {
  Taken taken{.samples = ready->samples};
  // A run without a batch: the step is whole with this pass. What was computed of it in a run that
  // had one is in its gradient, too.
  const bool begun = batch_ == 0 && open_ && step_ == step;
  if (batch_ == 0 && !begun) return taken;
  ++version_;
  if (discard) {
    open_ = open_ && step_ == step;  // a step that was whole before has been counted still
    done_ = computed_ = 0;
    return taken;
  }
  if (!open_ || step_ != step) counted_ = done_ = computed_ = 0;
  const std::int64_t samples = ready->samples > 0 ? ready->samples : Next(step - 1).samples;
  while (shares_.size() > 1 && shares_[1].from <= step) shares_.pop_front();
  step_ = step;
  done_ += samples;
  computed_ += ready->step_ns;
  std::int64_t wanted = 0;
  const std::vector<Piece> pieces = PiecesOf(step);
  for (const Piece& piece : pieces) wanted += piece.samples;
  taken.again = counted_ > 0;
  open_ = taken.partial = options_.accumulates && done_ < wanted;
  if (taken.partial) return taken;
  taken.samples = std::max<std::int64_t>(done_ - std::exchange(counted_, done_), 0);
  ready->samples = done_;
  ready->step_ns = computed_;
  ready->made_up = static_cast<std::uint32_t>(pieces.size() - 1);
  return taken;
}

}  // namespace prd
