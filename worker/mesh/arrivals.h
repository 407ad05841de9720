// Which numbered frames have come from each peer, and what of them is to be acknowledged.
//
// A sender numbers the frames of a stream (peers.h) in the order in which it sends them. When the
// stream's connection breaks, it opens another one and sends again what has not been acknowledged;
// so a frame may come over both, in any order between the two, and counts once. A number that is
// left out was given up by its sender. No sockets; not thread safe.
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
  // Told at once after so many bytes, and else after so long. A sender keeps more than this.
  static constexpr std::size_t kTellBytes = 2 << 20;
  static constexpr DurationNs kTellAfter = 20 * kMillisecond;
  // A sender's newest streams: what comes of older ones is not looked at.
  static constexpr std::size_t kStreams = 4;

  struct Acknowledgement {
    Incarnation to = 0;
    std::uint64_t stream = 0;
    std::uint64_t number = 0;  // all up to this one have come
  };

  // False: it has come before. REQUIRES: header.stream != 0.
  bool Take(Instant now, const FrameHeader& header);
  // Those that are due; each is due once.
  std::vector<Acknowledgement> TakeDue(Instant now);
  std::optional<Instant> NextDeadline() const { return tell_at_; }

  void Forget(Incarnation from);
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
