#include "tools/sim/connection_book.h"

#include <algorithm>
#include <string>

#include "engines/violation.h"

namespace prd::sim {

void ConnectionBook::Spoke(Instant now, Incarnation incarnation, std::uint64_t connection) {
  Known& known = known_[incarnation];
  if (connection == known.connection && known.ended) known.late = now;
  if (connection <= known.connection) return;
  known = {.connection = connection, .since = now, .ended = std::nullopt, .late = {}};
  if (ended_.contains(connection)) known.ended = now;
}

void ConnectionBook::Ended(Instant now, std::uint64_t connection) {
  ended_.insert(connection);
  for (auto& [incarnation, known] : known_) {
    if (known.connection == connection && !known.ended) known.ended = now;
  }
}

void ConnectionBook::Held(Instant now, Instant until) {
  if (now > held_until_) held_from_ = now;
  held_until_ = std::max(held_until_, until);
  if (held_until_ - held_from_ > grace_ / 4) waits_anew_ = held_until_;
}

void ConnectionBook::ControllerDied() { known_.clear(); }

void ConnectionBook::Seen(Instant decided, const ProcessEnded& ended) const {
  const auto known = known_.find(ended.incarnation);
  const char* why = nullptr;
  if (known == known_.end()) {
    why = "it has not spoken since the controller's start";
  } else if (known->second.since >= decided) {
    return;  // too late
  } else if (!known->second.ended) {
    why = "its connection has not ended";
  } else if (decided - *known->second.ended < grace_) {
    why = "its connection has just ended";
  }
  if (why == nullptr) return;
  throw Violation("ended-alive", "the process of rank " + std::to_string(ended.rank) +
                                     " is taken for ended: " + why);
}

void ConnectionBook::Check(Instant now, const Controller& controller) const {
  for (const auto& [id, run] : controller.runs()) {
    if (run->ended()) continue;
    for (const RunWorker& worker : run->workers()) {
      if (worker.state == WorkerState::kAbsent) continue;
      const auto known = known_.find(worker.incarnation);
      if (known == known_.end() || !known->second.ended) continue;
      const DurationNs since =
          now - std::max({*known->second.ended, known->second.late, waits_anew_});
      if (since <= 2 * grace_ + grace_ / 2) continue;
      throw Violation("death-known", "the connection of rank " +
                                         std::to_string(&worker - run->workers().data()) +
                                         " ended " + std::to_string(since / kMillisecond) +
                                         " ms ago, and it is still in run " + std::to_string(id));
    }
  }
}

}  // namespace prd::sim
