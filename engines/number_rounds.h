// The mean of numbers that workers give, round after round: each gives its own once, and all who
// have given get the same mean. Who is waited for, the job says. Pure; not thread safe.
#ifndef PRD_ENGINES_NUMBER_ROUNDS_H_
#define PRD_ENGINES_NUMBER_ROUNDS_H_

#include <cstdint>
#include <vector>

#include "common/base/archive.h"
#include "common/base/history.h"
#include "common/base/ids.h"
#include "common/base/messages.h"

namespace prd {

class NumberRounds {
 public:
  NumberRounds() = default;
  // What a run before has left.
  NumberRounds(std::vector<GivenNumbers> given, NumbersAveraged last);

  enum class Given : std::uint8_t {
    kOpen,   // counts in the round that is open
    kEnded,  // was in the round that has ended last, of which last() is the mean
    kOther,  // as many as needed() have been given in this round; nothing has changed
  };
  // Replaces what was given under the rank.
  Given Give(Rank rank, const GiveNumbers& numbers);
  // The rank's numbers do not count in the round that is open.
  void Forget(Rank rank);

  bool open() const { return !given_.empty(); }
  bool Has(Rank rank) const;
  // How many numbers each gives in the round that is open.
  std::size_t needed() const { return open() ? given_.front().values.size() : 0; }
  const std::vector<GivenNumbers>& given() const { return given_; }  // by rank, ascending

  // Ends the round that is open. REQUIRES: open().
  const NumbersAveraged& End();
  const NumbersAveraged& last() const { return last_; }  // round 0: none has ended

  void Archive(StateArchive& ar) { ar(given_, last_); }

 private:
  std::vector<GivenNumbers>::iterator Find(Rank rank);

  std::vector<GivenNumbers> given_;
  NumbersAveraged last_;
};

}  // namespace prd

#endif  // PRD_ENGINES_NUMBER_ROUNDS_H_
