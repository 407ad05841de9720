// How long somebody who waits for peers has heard nothing, and whether to ask the peers or to give
// up.
//
// Silence alone is no failure: a peer may be late, and a link slow. After one third of the time
// limit, and again after two thirds, the peers that are still needed are asked (kPing). The wait
// goes on if each of them answers (kPong) before the time limit ends. A peer that answers that
// nothing is to come from it any more can be reached, but is not waited for beyond the time limit.
#ifndef PRD_WORKER_MESH_SILENCE_H_
#define PRD_WORKER_MESH_SILENCE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/time.h"

namespace prd {

class Silence {
 public:
  Silence(Instant now, DurationNs timeout) : timeout_(timeout), progress_(now) {}

  // A frame came, or was sent.
  void Progress(Instant now);
  // The peer at this position answered; `over`: that nothing is to come. False: it was not asked,
  // or has answered before.
  bool Answered(Instant now, std::size_t position, bool over);

  // When Next has something to say.
  Instant At() const;
  enum class Step : std::uint8_t { kWait, kAsk, kGiveUp };
  Step Next(Instant now) const;
  // Returns the peers to ask: those awaited that have not answered. REQUIRES: Next said kAsk.
  const std::vector<std::size_t>& Ask(Instant now, std::vector<std::size_t> awaited);
  // Peers that were asked and have not answered.
  const std::vector<std::size_t>& silent() const { return silent_; }

 private:
  DurationNs timeout_;
  Instant progress_;
  std::vector<std::size_t> silent_;
  bool over_ = false;  // somebody answered so
  int asked_ = 0;      // how often
  Instant asked_at_;
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_SILENCE_H_
