// Asks peers whether they answer, beside all else: each until it has.
//
// A question and its answer are as large as what a path carries at once, in both directions: a path
// may swallow large packets while small ones pass.
#ifndef PRD_WORKER_MESH_PROBER_H_
#define PRD_WORKER_MESH_PROBER_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <string>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "worker/mesh/directory.h"
#include "worker/mesh/peers.h"

namespace prd {

class Prober {
 public:
  // Targets that are asked at once, in turns.
  static constexpr std::size_t kAtOnce = 64;
  static constexpr DurationNs kInterval = 250 * kMillisecond;
  // Of a question: more than a packet of any Ethernet.
  static constexpr std::size_t kBytes = 16 << 10;

  // The pointers outlive it.
  Prober(Peers* peers, const Directory* directory) : peers_(peers), directory_(directory) {}

  // Asks these, from now on, instead of those before.
  void Start(Instant now, const SharedList<GroupMember>& targets);
  // Asks those that are due.
  void Ask(Instant now);
  // The rank of the target that has answered. nullopt: it is none, or has answered before.
  std::optional<Rank> Answered(Incarnation from);
  void Forget(Incarnation member);
  void Clear() { targets_.clear(); }
  std::optional<Instant> NextDeadline() const;

 private:
  struct Target {
    GroupMember member;
    std::string endpoint;
  };

  Peers* peers_;
  const Directory* directory_;
  std::deque<Target> targets_;  // that have not answered; those to be asked next in front
  Instant ask_at_;
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_PROBER_H_
