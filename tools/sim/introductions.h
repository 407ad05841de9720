// Laws of what the controller says to whom, beside those of laws.h:
//
//   introduced   whoever the controller names to a worker, as one to turn to, is told of that
//                worker as well, in the same turn or before: else its mesh lets nobody in
//   ordered      whoever is told to copy a replica, or who may be asked for one, the source is told
//                so in the same turn, or before and for this copy alone: else it gives none
//
// Looked at until the controller first dies, since a new one says to each worker what that has not
// heard, when it hears of the worker; and in runs of up to 64 workers, since what is said grows
// with the square of their number.
#ifndef PRD_TOOLS_SIM_INTRODUCTIONS_H_
#define PRD_TOOLS_SIM_INTRODUCTIONS_H_

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/messages.h"
#include "engines/violation.h"

namespace prd::sim {

class Introductions {
 public:
  // A message about to leave the controller.
  void Sent(const ControllerEnvelope& envelope) {
    Seq& counted = counted_[envelope.incarnation];
    const bool again = envelope.seq <= counted;
    counted = std::max(counted, envelope.seq);
    std::visit(
        [&](const auto& body) {
          Hear(envelope.incarnation, body);
          if (!again) HearOrder(envelope.incarnation, body);
        },
        envelope.body);
  }
  // All messages of the turn have left. Throws Violation.
  void EndTurn() {
    if (over_) named_.clear();
    for (const auto& [asks, asked] : std::exchange(named_, {})) {
      if (asks == asked || told_[asked].contains(asks)) continue;
      throw Violation("introduced", "incarnation " + std::to_string(asks) + " is told of " +
                                        std::to_string(asked) + ", which is not told of it");
    }
    for (const auto& [asks, asked] : std::exchange(copies_, {})) {
      if (asks == asked || over_) continue;
      if (const auto order = ordered_.find({asks, asked}); order != ordered_.end()) {
        if (--order->second == 0) ordered_.erase(order);
        continue;
      }
      throw Violation("ordered", "incarnation " + std::to_string(asks) + " may copy from " +
                                     std::to_string(asked) + ", which is not told so");
    }
  }
  void ControllerDied() { over_ = true; }

 private:
  static constexpr std::size_t kMost = 64;

  void Hear(Incarnation to, const auto& body) {
    constexpr bool kAnnounces = std::is_same_v<std::decay_t<decltype(body)>, Announce>;
    if constexpr (requires { Name(to, body.members, true); }) Name(to, body.members, !kAnnounces);
    if constexpr (requires { Name(to, body.targets, true); }) Name(to, body.targets, true);
    if constexpr (requires { Name(to, body.in, true); }) Name(to, body.in, true);
    if constexpr (requires { Name(to, body.out, true); }) Name(to, body.out, true);
    if constexpr (requires { body.source.incarnation; }) Name(to, {body.source}, true);
  }
  void HearOrder(Incarnation to, const auto& body) {
    if constexpr (std::is_same_v<std::decay_t<decltype(body)>, Announce>) {
      for (const GroupMember& member : body.members) {
        if (body.copies) ++ordered_[{member.incarnation, to}];
      }
    }
    if constexpr (std::is_same_v<std::decay_t<decltype(body)>, Adopt>) {
      if (body.result == kNoGroup) copies_.emplace(to, body.source.incarnation);
    }
    if constexpr (std::is_same_v<std::decay_t<decltype(body)>, Members>) {
      for (const GroupMember& member : body.members) copies_.emplace(to, member.incarnation);
    }
  }
  void Name(Incarnation to, const SharedList<GroupMember>& members, bool to_turn_to) {
    if (members.size() > kMost) return;
    for (const GroupMember& member : members) {
      told_[to].insert(member.incarnation);
      if (to_turn_to) named_.emplace_back(to, member.incarnation);
    }
  }

  std::map<Incarnation, std::set<Incarnation>> told_;
  std::vector<std::pair<Incarnation, Incarnation>> named_;  // in this turn
  std::map<Incarnation, Seq> counted_;                      // the newest message, by receiver
  // To copy a replica: in this turn, and orders that no copy has used.
  std::set<std::pair<Incarnation, Incarnation>> copies_;
  std::map<std::pair<Incarnation, Incarnation>, int> ordered_;
  bool over_ = false;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_INTRODUCTIONS_H_
