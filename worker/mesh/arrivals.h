// Which numbered frames have come from each peer, and what of them is to be acknowledged.
//
// A sender numbers the frames of a stream (peers.h) in the order in which it sends them. After a
// break it sends unacknowledged frames again, over another connection, so a frame may come twice.
// It counts once. Over each connection numbers ascend by one; the two connections may be read in
// any order. So if a number is missing, its frame is lost. What has come from a sender is never
// forgotten in a run: its streams may go on. No sockets; not thread safe.
#ifndef PRD_WORKER_MESH_ARRIVALS_H_
#define PRD_WORKER_MESH_ARRIVALS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/base/ids.h"
#include "common/base/time.h"
#include "worker/mesh/frame.h"

namespace prd {

class Arrivals {
 public:
  // An acknowledgement is due after so many bytes or so much time. Less than what a sender keeps
  // (Peers::kMaxUnacknowledged).
  static constexpr std::size_t kTellBytes = 2 << 20;
  static constexpr DurationNs kTellAfter = 20 * kMillisecond;
  // How many of a sender's streams are remembered, the newest. Frames of older ones always count.
  static constexpr std::size_t kStreams = 4;

  struct Acknowledgement {
    Incarnation to = 0;
    std::uint64_t stream = 0;
    std::uint64_t number = 0;  // all up to this one have come
  };

  // Whether frames of its stream have yet to come that were sent before it. REQUIRES: header.stream
  // != 0.
  bool Misses(const FrameHeader& header) const;
  // False: it has come before. REQUIRES: header.stream != 0.
  bool Take(Instant now, const FrameHeader& header);
  // Those that are due; each is due once.
  std::vector<Acknowledgement> TakeDue(Instant now);
  std::optional<Instant> NextDeadline() const { return tell_at_; }

  void Clear();

 private:
  struct Stream {
    std::uint64_t newest = 0;
    std::size_t bytes = 0;  // that are not acknowledged
    bool owes = false;
  };
  std::map<Incarnation, std::map<std::uint64_t, Stream>> streams_;
  std::optional<Instant> tell_at_;  // if anybody is owed anything
  bool much_ = false;               // somebody is owed kTellBytes
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_ARRIVALS_H_
