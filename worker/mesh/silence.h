// How long a reduction has been silent, and whether to give it up or to ask its members first.
//
// A peer that sends nothing for a time limit fails the reduction. If members may begin at different
// times (kTrain under DrawnAhead), silence alone is no failure. After one third of the time limit,
// and again after two thirds, the members that are still needed are asked (kPing). The reduction
// goes on if each of them answers (kPong) before the time limit ends.
#ifndef PRD_WORKER_MESH_SILENCE_H_
#define PRD_WORKER_MESH_SILENCE_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "common/base/messages.h"
#include "common/base/time.h"

namespace prd {

class Silence {
 public:
  // `asks`: members may be late.
  Silence(Instant now, DurationNs timeout, bool asks)
      : timeout_(timeout), asks_(asks), progress_(now) {}

  // A frame came, or was sent.
  void Progress(Instant now);
  // The member at this position answered. False: it was not asked, or has answered before.
  bool Answered(Instant now, std::size_t position);

  // When Next has something to say.
  Instant At() const;
  enum class Step : std::uint8_t { kWait, kAsk, kGiveUp };
  Step Next(Instant now) const;
  // Returns the members to ask: those awaited that have not answered. REQUIRES: Next said kAsk.
  const std::vector<std::size_t>& Ask(Instant now, std::vector<std::size_t> awaited);
  // Why the reduction is given up, in words.
  std::string Reason(const SharedList<GroupMember>& members) const;

 private:
  DurationNs timeout_;
  bool asks_;
  Instant progress_;
  std::vector<std::size_t> silent_;  // positions asked since then that have not answered
  int asked_ = 0;                    // how often
  Instant asked_at_;
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_SILENCE_H_
