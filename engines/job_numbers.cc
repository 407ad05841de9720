// Job: the mean of numbers that its workers give (Session::Mean).
//
// Nobody trains less for it: who waits for the mean has paused. A round ends once all have given
// their numbers who train, or pause; who leaves, is lost or evicted before takes its numbers along.
// A worker that joins takes part in the round that is open when it gives some. In the run that
// follows a switch the round goes on.
#include <string>
#include <vector>

#include "engines/job.h"
#include "engines/words.h"

namespace prd {

std::string Job::OnGiveNumbers(Rank rank, const GiveNumbers& numbers) {
  const std::size_t count = numbers.values.size();
  if (numbers.call == 0 || count == 0 || count > kMaxNumbers) {
    return "numbers of call " + std::to_string(numbers.call) + ": found " + std::to_string(count) +
           ", allowed are 1 to " + std::to_string(kMaxNumbers);
  }
  switch (numbers_.Give(rank, numbers)) {
    case NumberRounds::Given::kOpen:
      break;
    case NumberRounds::Given::kEnded:
      Send(rank, NumbersMean{.call = numbers.call, .values = numbers_.last().values, .wrong = {}});
      break;
    case NumberRounds::Given::kOther:
      Send(rank,
           NumbersMean{.call = numbers.call,
                       .values = {},
                       .wrong = "found " + std::to_string(count) + " numbers, needed are " +
                                std::to_string(numbers_.needed()) + ", as rank " +
                                std::to_string(numbers_.given().front().rank) + " has given"});
  }
  return {};
}

// It is waited for: it trains, or will again.
bool Job::GivesNumbers(Rank rank) const {
  const Worker& worker = workers_[Index(rank)];
  if (orders_.Drains(rank)) return false;
  const bool ends = worker.state == State::kFinishing || worker.state == State::kFinal;
  if (ends || worker.stop_held == Stop::kFinish)
    return switching().has_value();  // of this run alone
  return worker.state == State::kStarting || worker.state == State::kActive ||
         worker.state == State::kPaused || worker.resumes;
}

void Job::EndNumberRound() {
  if (!numbers_.open() || !started_ || ended_) return;
  for (Rank rank = 0; Index(rank) < workers_.size(); ++rank) {
    if (Present(rank) && GivesNumbers(rank) && !numbers_.Has(rank)) return;
  }
  const NumbersAveraged& mean = numbers_.End();
  Write(mean);
  for (std::size_t i = 0; i < mean.ranks.size(); ++i) {
    // Of a worker that comes from the run before, and is not here yet: it asks again.
    if (!Present(mean.ranks[i])) continue;
    Send(mean.ranks[i], NumbersMean{.call = mean.calls[i], .values = mean.values, .wrong = {}});
  }
}

std::string Job::NumbersWords(Instant now, Rank rank) const {
  std::vector<Rank> others;
  for (Rank r = 0; Index(r) < workers_.size(); ++r) {
    if (Present(r) && GivesNumbers(r) && !numbers_.Has(r)) others.push_back(r);
  }
  const std::string start =
      "waits for the mean of numbers for " + words::Duration(now - workers_[Index(rank)].since);
  if (others.empty()) return start + ": until the job has its common start";
  return start + ": " + words::Ranks(others) + (others.size() == 1 ? " has" : " have") +
         " not given any";
}

}  // namespace prd
