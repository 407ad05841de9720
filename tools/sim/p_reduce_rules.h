// Engine p-reduce, beside a model of its controller that is too simple to be wrong.
//
//   group-size      P members, or all joined workers when they are fewer; a smaller group of at
//   least
//                   two only when its head has waited for max_wait_ms
//   fifo            first come, first grouped, but for a bridge
//   bridge          when a window of T groups fell apart, then until its components are joined (or
//                   another falls apart, or a worker leaves) a group that keeps it apart forms only
//                   if nobody of another component waits; else the order is never left
//   no-idle-queue   P signals wait only for a bridge that is due, and never 2 P
#ifndef PRD_TOOLS_SIM_P_REDUCE_RULES_H_
#define PRD_TOOLS_SIM_P_REDUCE_RULES_H_

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "engines/p_reduce/options.h"
#include "tools/sim/engine_watch.h"

namespace prd::sim {

class PReduceRules final : public EngineRules {
 public:
  explicit PReduceRules(const PReduceOptions& options) : options_(options) {}
  void Check(Instant now, const Event& event, std::span<const Effect> effects,
             std::int64_t joined) override;
  void Archive(StateArchive& ar) override;

 private:
  void CheckGroup(Instant now, const FormGroup& group, std::int64_t joined);
  void CheckOrder(const FormGroup& group, const std::set<Rank>& members, std::size_t p,
                  std::int64_t joined);
  void CheckQueue(std::size_t p, std::int64_t joined) const;
  // Of the split window; kNoRank for a worker it does not have.
  Rank Component(Rank rank) const;
  // Components among the queue's signals from `from` to before `to`.
  std::set<Rank> Components(std::size_t from, std::size_t to) const;
  void Link(const FormGroup& group);  // in the split window
  void Close();                       // the window being collected

  const PReduceOptions options_;
  std::vector<std::pair<Rank, Instant>> queue_;
  std::vector<std::vector<Rank>> window_;  // groups being collected
  std::vector<Rank> component_;            // of the split window, by rank; empty: it is not split
  std::int64_t components_ = 0;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_P_REDUCE_RULES_H_
