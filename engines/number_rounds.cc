#include "engines/number_rounds.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace prd {

NumberRounds::NumberRounds(std::vector<GivenNumbers> given, NumbersAveraged last)
    : given_(std::move(given)), last_(std::move(last)) {}

std::vector<GivenNumbers>::iterator NumberRounds::Find(Rank rank) {
  return std::lower_bound(given_.begin(), given_.end(), rank,
                          [](const GivenNumbers& one, Rank other) { return one.rank < other; });
}

bool NumberRounds::Has(Rank rank) const {
  return std::any_of(given_.begin(), given_.end(),
                     [rank](const GivenNumbers& one) { return one.rank == rank; });
}

NumberRounds::Given NumberRounds::Give(Rank rank, const GiveNumbers& numbers) {
  const auto& calls = last_.calls;
  if (std::find(calls.begin(), calls.end(), numbers.call) != calls.end()) return Given::kEnded;
  const auto at = Find(rank);
  const bool again = at != given_.end() && at->rank == rank;
  const bool alone = given_.empty() || (again && given_.size() == 1);
  if (!alone && numbers.values.size() != needed()) return Given::kOther;
  const GivenNumbers given{.rank = rank, .call = numbers.call, .values = numbers.values};
  if (again) {
    *at = given;
  } else {
    given_.insert(at, given);
  }
  return Given::kOpen;
}

void NumberRounds::Forget(Rank rank) {
  std::erase_if(given_, [rank](const GivenNumbers& one) { return one.rank == rank; });
}

const NumbersAveraged& NumberRounds::End() {
  PRD_CHECK(open());
  NumbersAveraged ended{.round = last_.round + 1,
                        .ranks = {},
                        .calls = {},
                        .values = std::vector<double>(needed(), 0)};
  for (const GivenNumbers& one : given_) {
    ended.ranks.push_back(one.rank);
    ended.calls.push_back(one.call);
    for (std::size_t i = 0; i < one.values.size(); ++i) ended.values[i] += one.values[i];
  }
  for (double& value : ended.values) value /= static_cast<double>(given_.size());
  given_.clear();
  last_ = std::move(ended);
  return last_;
}

}  // namespace prd
