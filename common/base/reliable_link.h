// Sending again over a link that loses messages. LinkEnd (link.h) keeps what the peer has not
// acknowledged; Resends says when that is sent again, and how much of it. Pure.
//
// Both ends use it, in two ways. The worker looks at the clock: it calls Restart with `first` when
// another message becomes the oldest one that is not acknowledged, and SendAgain at due(). The
// controller looks at what a worker's message proves to be lost: it calls Restart with 0, and
// SendAgain with each such message.
#ifndef PRD_COMMON_BASE_RELIABLE_LINK_H_
#define PRD_COMMON_BASE_RELIABLE_LINK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "common/base/ids.h"
#include "common/base/link.h"
#include "common/base/time.h"

namespace prd {

struct ResendLimits {
  // Pauses between two times: `first`, and twice as long each time that the peer has acknowledged
  // nothing more, up to `longest`.
  DurationNs first;
  DurationNs longest;
  // What is sent at once: this many messages, and none after this many bytes.
  std::size_t messages;
  std::size_t bytes = std::numeric_limits<std::size_t>::max();
};

template <ResendLimits kLimits>
class Resends {
 public:
  static constexpr ResendLimits limits() { return kLimits; }

  // The peer has acknowledged more, or is reached anew: pauses are short again. The next time is
  // in `wait`, which counts as the first pause if it is not 0.
  void Restart(Instant now, DurationNs wait) {
    due_ = now + wait;
    pause_ = wait == 0 ? kLimits.first : std::min(2 * kLimits.first, kLimits.longest);
    in_vain_ = 0;
  }

  // Nothing is sent again before this.
  Instant due() const { return due_; }
  // Times that messages were sent again since Restart.
  int in_vain() const { return in_vain_; }

  // Sends the oldest messages up to `up_to` again, if there are any and it is time. `send(seq,
  // body)` returns how many bytes that is, about.
  template <typename Out, typename Send>
  void SendAgain(Instant now, const LinkEnd<Out>& link, Seq up_to, Send send) {
    if (link.unacked().empty() || link.oldest() > up_to || now < due_) return;
    ++in_vain_;
    due_ = now + pause_;
    pause_ = std::min(2 * pause_, kLimits.longest);
    std::size_t messages = 0;
    std::size_t bytes = 0;
    for (const auto& [seq, body] : link.unacked()) {
      if (seq > up_to || messages >= kLimits.messages || bytes >= kLimits.bytes) break;
      ++messages;
      bytes += send(seq, body);
    }
  }

 private:
  Instant due_{std::numeric_limits<std::int64_t>::min()};
  DurationNs pause_ = kLimits.first;
  int in_vain_ = 0;
};

}  // namespace prd

#endif  // PRD_COMMON_BASE_RELIABLE_LINK_H_
