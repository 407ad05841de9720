// Asks peers whether they answer, beside all else: each until it has.
//
// A path may swallow large packets while small ones pass. So a peer that has answered a small
// question is asked a large one, and answers that with as many bytes. One large question at a time
// is on its way: a slow link has other things to carry.
#ifndef PRD_WORKER_MESH_PROBER_H_
#define PRD_WORKER_MESH_PROBER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "worker/memory/shared_bytes.h"
#include "worker/mesh/directory.h"
#include "worker/mesh/peers.h"

namespace prd {

class Prober {
 public:
  // Targets that are asked at once, in turns.
  static constexpr std::size_t kAtOnce = 64;
  static constexpr DurationNs kInterval = 250 * kMillisecond;
  // The pointers outlive it. A large question has so many bytes.
  Prober(Peers* peers, const Directory* directory, std::size_t large_bytes)
      : peers_(peers), directory_(directory), large_bytes_(large_bytes) {}

  // Asks these, from now on, instead of those before.
  void Start(Instant now, const SharedList<GroupMember>& targets);
  // Asks those that are due.
  void Ask(Instant now);
  // An answer of so many bytes. Gives the rank of the target if its path carries large packets,
  // too. nullopt: that is not known yet, or was known before, or it is no target.
  std::optional<Rank> Answered(Instant now, Incarnation from, std::uint64_t bytes);
  void Forget(Incarnation member);
  void Clear();
  std::optional<Instant> NextDeadline() const;

 private:
  struct Target {
    GroupMember member;
    std::string endpoint;
    bool answered = false;  // a small question
  };

  void AskLarge(Instant now);
  void Send(Instant now, const Target& target, SharedBytes payload);

  Peers* peers_;
  const Directory* directory_;
  std::size_t large_bytes_;
  std::deque<Target> targets_;  // that have not answered; those to be asked next in front
  Incarnation large_ = 0;       // the large question on its way is to this one; 0: none is
  Instant ask_at_;
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_PROBER_H_
