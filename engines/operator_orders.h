// What operators have ordered in a run: a pause, workers that drain, and workers that were removed.
//
// Pure; not thread safe.
#ifndef PRD_ENGINES_OPERATOR_ORDERS_H_
#define PRD_ENGINES_OPERATOR_ORDERS_H_

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/archive.h"
#include "common/base/history.h"
#include "common/base/ids.h"
#include "common/base/time.h"
#include "engines/words.h"

namespace prd {

// An operator has paused the run: the engine gets no ready signal.
struct PauseOrder {
  std::string by;
  std::string reason;
  Instant since;
  void Archive(StateArchive& ar) { ar(by, reason, since); }
};

class OperatorOrders {
 public:
  static constexpr std::size_t kMaxDismissed = 256;

  void Pause(PauseOrder order) { paused_ = std::move(order); }
  void Resume() { paused_.reset(); }
  // The worker leaves once it is in no group any more. The first reason stays.
  void Drain(Rank rank, const std::string& why) { draining_.emplace(rank, why); }
  // The worker has gone.
  void Forget(Rank rank) { draining_.erase(rank); }
  void ForgetAll() { draining_.clear(); }
  // An operator has removed this worker. Only the newest kMaxDismissed are remembered.
  void Dismiss(Incarnation incarnation, const std::string& reason) {
    dismissed_.push_back({.incarnation = incarnation, .reason = reason});
    if (dismissed_.size() > kMaxDismissed) dismissed_.erase(dismissed_.begin());
  }
  // Continues what the run before remembers.
  void TakeOver(const std::vector<Dismissal>& dismissed) { dismissed_ = dismissed; }

  const std::optional<PauseOrder>& paused() const { return paused_; }
  const std::map<Rank, std::string>& draining() const { return draining_; }  // and why
  bool Drains(Rank rank) const { return draining_.contains(rank); }
  const std::vector<Dismissal>& dismissed() const { return dismissed_; }  // the newest last

  // "paused by alice for 3.1 s: REASON"; empty: the run is not paused.
  std::string PauseWords(Instant now) const {
    if (!paused_) return {};
    return "paused by " + paused_->by + " for " + words::Duration(now - paused_->since) +
           (paused_->reason.empty() ? "" : ": " + paused_->reason);
  }

  // One of the last parts of a snapshot. It is left out if there are no orders, and nothing
  // follows: so a run without any has the same snapshot as before operators existed.
  void Archive(StateArchive& ar, bool followed = false) {
    const bool any = followed || paused_ || !draining_.empty() || !dismissed_.empty();
    if (ar.saving() ? !any : ar.AtEnd()) return;
    ar(paused_, draining_, dismissed_);
  }

 private:
  std::optional<PauseOrder> paused_;
  std::map<Rank, std::string> draining_;
  std::vector<Dismissal> dismissed_;
};

}  // namespace prd

#endif  // PRD_ENGINES_OPERATOR_ORDERS_H_
