// Engine `ad-psgd`: asynchronous decentralised parallel SGD (Lian et al., ICML 2018), in the form
// of Figure 3 of Prague (Luo et al., ASPLOS 2020).
//
//  - After its local update a worker asks for an average (Ready), and the engine draws one of its
//    present neighbours in the graph, all equally likely (Figure 3, step 3). The two are a group:
//    x_i, x_j <- (x_i + x_j) / 2 (step 4). The neighbour is passive: whatever it computes, it takes
//    part in the background, and its own signal, if one stands, is not answered.
//  - The average is atomic: groups that share a worker run one after another (group_queue.h).
//  - No deadlock, on any graph: all groups have one order, that of their draws. A group waits only
//    for those drawn before it, so the oldest that is not through waits for none; there is no cycle
//    as in Prague's Figure 2(a), where each worker holds itself and waits for the next. So every
//    worker may ask, and the graph need not be bipartite as in the authors' implementation
//    (Prague, section 2.3).
//  - A worker asks for one average at a time, so that at most as many groups are undone as there
//    are workers.
//  - Workers come and go: who asked and whose neighbour left before their turn gets another one at
//    once, and so does who asked when the group failed for it, once the group has ended. Both go to
//    the end of the line. Who has no present neighbour is told to go on alone.
//  - A neighbour that a worker does not reach is not drawn, and who has drawn it and is not in that
//    group yet gets another one.
#ifndef PRD_ENGINES_AD_PSGD_AD_PSGD_H_
#define PRD_ENGINES_AD_PSGD_AD_PSGD_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engines/ad_psgd/options.h"
#include "engines/engine.h"
#include "engines/graph.h"
#include "engines/group_queue.h"
#include "engines/links.h"
#include "engines/ring_order.h"

namespace prd {

class AdPsgd final : public Engine {
 public:
  // REQUIRES: Validate(options, 0) is ok.
  explicit AdPsgd(const AdPsgdOptions& options);

  Plan plan() const override;
  void Step(Instant now, const Event& event, GroupId* next_group, Effects* out) override;
  std::optional<Instant> NextDeadline() const override { return std::nullopt; }
  std::string Explain(Instant now, Rank rank) const override;
  std::vector<Drawn> DrawnGroups() const override;
  void Archive(StateArchive& ar) override;

 private:
  struct Worker {
    Iteration iteration = 0;   // of its last signal, or of its join
    Instant since;             // of its last signal
    GroupId asked = kNoGroup;  // drawn for its signal, which stands until that is through
    std::int32_t host = 0;
    bool joined = false;
    void Archive(StateArchive& ar) { ar(iteration, since, asked, host, joined); }
  };

  Worker& At(Rank rank) { return workers_[static_cast<std::size_t>(rank)]; }
  const Worker& At(Rank rank) const { return workers_[static_cast<std::size_t>(rank)]; }
  bool Joined(Rank rank) const;
  void OnJoined(const JoinedEvent& event);
  void OnFinished(const FinishedEvent& event);
  void OnLeft(const LeftEvent& event, GroupId* next_group, Effects* out);
  void OnLink(const LinkEvent& event, GroupId* next_group, Effects* out);
  // Draws a neighbour for this worker, whose signal stands, or answers it. `again`: why it is not
  // the first, or empty.
  void Draw(Rank rank, const std::string& again, GroupId* next_group, Effects* out);
  void FormRunnable(Effects* out);
  std::vector<GroupShare> Shares(const GroupQueue::Group& group) const;
  Rank Busy(const GroupQueue::Group& group) const;
  std::string WhatIsFirst(const GroupQueue::Group& group) const;
  bool Consistent() const;

  const AdPsgdOptions options_;
  const std::uint64_t draws_;    // where the random draws begin
  std::vector<Worker> workers_;  // by rank
  HostTable hosts_;
  Neighbours neighbours_;
  BrokenLinks links_;
  GroupQueue queue_;
  // Groups that failed for who had asked, and have not ended: who gets another one then.
  std::map<GroupId, Rank> failed_;
};

}  // namespace prd

#endif  // PRD_ENGINES_AD_PSGD_AD_PSGD_H_
