#include "engines/number_calls.h"

#include <vector>

#include "engines/words.h"

namespace prd {

std::string NumberCalls::Give(Rank rank, const GiveNumbers& numbers) {
  const std::size_t count = numbers.values.size();
  if (numbers.call == 0 || count == 0 || count > kMaxNumbers) {
    return "numbers of call " + std::to_string(numbers.call) + ": found " + std::to_string(count) +
           ", allowed are 1 to " + std::to_string(kMaxNumbers);
  }
  switch (rounds_.Give(rank, numbers)) {
    case NumberRounds::Given::kOpen:
      break;
    case NumberRounds::Given::kEnded:
      run_.roster.Send(
          rank, NumbersMean{.call = numbers.call, .values = rounds_.last().values, .wrong = {}});
      break;
    case NumberRounds::Given::kOther:
      run_.roster.Send(
          rank, NumbersMean{.call = numbers.call,
                            .values = {},
                            .wrong = "found " + std::to_string(count) + " numbers, needed are " +
                                     std::to_string(rounds_.needed()) + ", as rank " +
                                     std::to_string(rounds_.given().front().rank) + " has given"});
  }
  return {};
}

// The worker is waited for: it trains, or will again.
bool NumberCalls::Gives(Rank rank) const {
  if (!run_.roster.Present(rank) || orders_.Drains(rank)) return false;
  const RunWorker& worker = run_.roster[rank];
  const bool ends = worker.state == WorkerState::kFinishing || worker.state == WorkerState::kFinal;
  if (ends || worker.stop_held == StopReason::kFinish) {
    return switch_.switching().has_value();  // only this run is over for it
  }
  return worker.state == WorkerState::kStarting || worker.state == WorkerState::kActive ||
         worker.state == WorkerState::kPaused || worker.resumes;
}

void NumberCalls::EndRound() {
  if (!rounds_.open()) return;
  for (Rank rank = 0; rank < run_.roster.size(); ++rank) {
    if (Gives(rank) && !rounds_.Has(rank)) return;
  }
  const NumbersAveraged& mean = rounds_.End();
  run_.log.Write(mean);
  for (std::size_t i = 0; i < mean.ranks.size(); ++i) {
    // A worker that comes from the run before, and is not here yet, asks again.
    if (!run_.roster.Present(mean.ranks[i])) continue;
    run_.roster.Send(mean.ranks[i],
                     NumbersMean{.call = mean.calls[i], .values = mean.values, .wrong = {}});
  }
}

std::string NumberCalls::Words(Instant now, Rank rank) const {
  std::vector<Rank> others;
  for (Rank r = 0; r < run_.roster.size(); ++r) {
    if (Gives(r) && !rounds_.Has(r)) others.push_back(r);
  }
  const std::string start =
      "waits for the mean of numbers for " + words::Duration(now - run_.roster[rank].since);
  if (others.empty()) return start + ": until the job has its common start";
  return start + ": " + words::Ranks(others) + (others.size() == 1 ? " has" : " have") +
         " not given any";
}

}  // namespace prd
