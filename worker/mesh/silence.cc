#include "worker/mesh/silence.h"

#include <utility>

namespace prd {
namespace {

// A silent member is asked this often, and has a third of the time limit for each answer.
constexpr int kAsks = 2;

}  // namespace

void Silence::Progress(Instant now) {
  progress_ = now;
  silent_.clear();
  asked_ = 0;
}

bool Silence::Answered(Instant now, std::size_t position) {
  if (std::erase(silent_, position) == 0) return false;
  if (silent_.empty()) Progress(now);
  return true;
}

Instant Silence::At() const {
  if (!asks_) return progress_ + timeout_;
  return (asked_ == 0 ? progress_ : asked_at_) + timeout_ / 3;
}

Silence::Step Silence::Next(Instant now) const {
  if (now <= At()) return Step::kWait;
  return asks_ && asked_ < kAsks ? Step::kAsk : Step::kGiveUp;
}

const std::vector<std::size_t>& Silence::Ask(Instant now, std::vector<std::size_t> awaited) {
  if (asked_ == 0) silent_ = std::move(awaited);
  ++asked_;
  asked_at_ = now;
  return silent_;
}

std::string Silence::Reason(const SharedList<GroupMember>& members) const {
  std::string who;
  for (const std::size_t position : silent_) {
    who += (who.empty() ? ", nor do these answer: rank " : ", ") +
           std::to_string(members[position].rank);
  }
  return "nothing was received for too long" + who;
}

}  // namespace prd
