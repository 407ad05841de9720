// Notes and requests of peers that this worker does not meet yet, until it does. Part of Exchange:
// used by the background thread alone.
#ifndef PRD_WORKER_MESH_EARLY_ASKS_H_
#define PRD_WORKER_MESH_EARLY_ASKS_H_

#include <cstddef>
#include <cstdint>
#include <deque>

#include "common/base/messages.h"
#include "worker/mesh/exchange_peers.h"
#include "worker/mesh/frame.h"

namespace prd {

class EarlyAsks {
 public:
  // The newest so many are kept.
  static constexpr std::size_t kMax = 256;

  struct Frame {
    FrameHeader header;
    SharedBytes payload;
  };

  // False: it is larger than any note or request.
  bool Keep(const FrameHeader& header, SharedBytes payload);
  // Those of peers that are met by now, in the order in which they came.
  std::deque<Frame> TakeMet(const ExchangePeers& peers);

  bool HasPull(Incarnation from, std::uint64_t number) const;
  // False: there is none.
  bool DropPull(Incarnation from, std::uint64_t number);
  void Forget(Incarnation peer);
  void Clear() { frames_.clear(); }

 private:
  std::deque<Frame> frames_;
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_EARLY_ASKS_H_
