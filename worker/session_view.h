// How far a session and its job are, as its thread tells all others. Thread safe; what begins with
// Set or Publish is for the session's thread.
#ifndef PRD_WORKER_SESSION_VIEW_H_
#define PRD_WORKER_SESSION_VIEW_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "worker/core/session_core.h"
#include "worker/core/step_shares.h"
#include "worker/mesh/mesh.h"

namespace prd {

class SessionView {
 public:
  SessionView() { welcome_.rank = kNoRank; }

  struct Progress {
    JobProgress job;
    Trained own;
    Trained goal;
  };
  Progress progress() const;
  StepShares shares() const;  // as SessionCore's
  Welcome welcome() const;    // the newest; rank -1 before the first
  bool interrupted() const { return interrupted_.load(std::memory_order_relaxed); }
  // Sent to peers outside of reductions, since the start.
  std::uint64_t exchanged_bytes() const { return exchanged_bytes_.load(std::memory_order_relaxed); }
  // That ended ok, since the start.
  std::uint64_t groups(Way way) const {
    return groups_[static_cast<std::size_t>(way)].load(std::memory_order_relaxed);
  }

  void SetWelcome(const Welcome& welcome);
  void SetInterrupted(bool on) { interrupted_.store(on, std::memory_order_relaxed); }
  void Publish(const SessionCore& core);
  void Publish(const Mesh& mesh);

 private:
  std::atomic<bool> interrupted_{false};
  std::atomic<std::uint64_t> exchanged_bytes_{0};
  std::array<std::atomic<std::uint64_t>, 3> groups_{};  // by Way
  mutable std::mutex mutex_;                            // of the next ones
  Welcome welcome_;
  JobProgress job_;
  Trained own_;
  StepShares shares_;
};

}  // namespace prd

#endif  // PRD_WORKER_SESSION_VIEW_H_
