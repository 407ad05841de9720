#include "engines/run_switch.h"

#include <algorithm>

#include "engines/words.h"

namespace prd {

void RunSwitch::TakeOver(const FormerRun& former, Instant until) {
  former_ = former;
  awaits_until_ = until;
}

void RunSwitch::Arrive(Rank rank) {
  for (FormerRank& of : former_.ranks) of.awaited = of.awaited && of.rank != rank;
}

bool RunSwitch::Awaits(Instant now) const {
  return former_.known() && now < awaits_until_ && !Awaited().empty();
}

std::vector<Rank> RunSwitch::Awaited() const {
  std::vector<Rank> awaited;
  for (const FormerRank& of : former_.ranks) {
    if (of.awaited) awaited.push_back(of.rank);
  }
  return awaited;
}

bool RunSwitch::HadModel(Rank rank) const {
  return std::any_of(former_.ranks.begin(), former_.ranks.end(),
                     [rank](const FormerRank& of) { return of.rank == rank && of.has_model; });
}

std::string RunSwitch::Words(Instant now) const {
  return "the job goes on in run " + std::to_string(switching_->next) + ", by " + switching_->by +
         (now > switching_->since ? ", " + words::Duration(now - switching_->since) + " ago" : "");
}

}  // namespace prd
