// A law of what the controller says to whom, beside those of laws.h:
//
//   introduced   whoever the controller names to a worker, as one to turn to, is told of that
//   worker
//                as well, in the same turn or before: else its mesh lets nobody in
//
// Looked at until the controller first dies, since a new one says to each worker what that has not
// heard, when it hears of the worker; and in runs of up to 64 workers, since what is said grows
// with the square of their number.
#ifndef PRD_TOOLS_SIM_INTRODUCTIONS_H_
#define PRD_TOOLS_SIM_INTRODUCTIONS_H_

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
    std::visit([&](const auto& body) { Hear(envelope.incarnation, body); }, envelope.body);
  }
  // All messages of the turn have left. Throws Violation.
  void EndTurn() {
    if (over_) named_.clear();
    for (const auto& [asks, asked] : std::exchange(named_, {})) {
      if (asks == asked || told_[asked].contains(asks)) continue;
      throw Violation("introduced", "incarnation " + std::to_string(asks) + " is told of " +
                                        std::to_string(asked) + ", which is not told of it");
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
  void Name(Incarnation to, const SharedList<GroupMember>& members, bool to_turn_to) {
    if (members.size() > kMost) return;
    for (const GroupMember& member : members) {
      told_[to].insert(member.incarnation);
      if (to_turn_to) named_.emplace_back(to, member.incarnation);
    }
  }

  std::map<Incarnation, std::set<Incarnation>> told_;
  std::vector<std::pair<Incarnation, Incarnation>> named_;  // in this turn
  bool over_ = false;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_INTRODUCTIONS_H_
