#include "worker/mesh/silence.h"

#include <utility>

namespace prd {
namespace {

// A silent peer is asked this often, and has a third of the time limit for each answer.
constexpr int kAsks = 2;

}  // namespace

void Silence::Progress(Instant now) {
  progress_ = now;
  silent_.clear();
  over_ = false;
  asked_ = 0;
}

bool Silence::Answered(Instant now, std::size_t position, bool over) {
  if (std::erase(silent_, position) == 0) return false;
  over_ = over_ || over;
  if (silent_.empty() && !over_) Progress(now);
  return true;
}

Instant Silence::At() const { return (asked_ == 0 ? progress_ : asked_at_) + timeout_ / 3; }

Silence::Step Silence::Next(Instant now) const {
  if (now <= At()) return Step::kWait;
  return asked_ < kAsks ? Step::kAsk : Step::kGiveUp;
}

const std::vector<std::size_t>& Silence::Ask(Instant now, std::vector<std::size_t> awaited) {
  if (asked_ == 0) silent_ = std::move(awaited);
  ++asked_;
  asked_at_ = now;
  return silent_;
}

}  // namespace prd
