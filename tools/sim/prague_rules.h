// Engine prague, beside a model of its group buffers that is too simple to be wrong.
//
//   group-size    random: group_size members, or all joined workers when they are fewer, of whom
//                 one is not passive
//   division      smart: a request of a worker that is in a group that is not done draws nothing;
//                 any other divides the idle workers, those in no such group, but for the slow
//                 ones: into floor(n / group_size) groups whose sizes differ by one at most; or,
//                 where they are on several hosts and inter_intra is on, in two phases, of which
//                 the second has all of each host together, and the first has groups within a host,
//                 and groups of one worker per host. Nobody else is put into a group
//   slow-worker   smart: who has requested slowdown_threshold groups fewer than the worker that
//                 requests is in none of the groups of its division
//   no-groups     static: the engine forms none
//
// What is drawn anew because somebody left or failed is not a request: of that, only who is in it
// is checked. Of jobs with more workers than EngineWatch looks at, nothing is.
#ifndef PRD_TOOLS_SIM_PRAGUE_RULES_H_
#define PRD_TOOLS_SIM_PRAGUE_RULES_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engines/prague/options.h"
#include "tools/sim/engine_watch.h"

namespace prd::sim {

class PragueRules final : public EngineRules {
 public:
  explicit PragueRules(const PragueOptions& options) : options_(options) {}
  void Check(Instant now, const Event& event, std::span<const Effect> effects,
             std::int64_t joined) override;
  void CheckDrawn(std::span<const Engine::Drawn> drawn) override;
  void Archive(StateArchive& ar) override;

 private:
  struct Worker {
    std::int64_t requests = 0;
    std::string host;
    void Archive(StateArchive& ar) { ar(requests, host); }
  };
  struct Undone {
    std::vector<Rank> members;  // that are not through
    bool formed = false;
    void Archive(StateArchive& ar) { ar(members, formed); }
  };
  using Groups = std::vector<std::vector<Rank>>;

  void Apply(const Event& event);
  void CheckRandom(const FormGroup& group, std::int64_t joined) const;
  void CheckRequest(Rank rank, const std::set<Rank>& idle, const Groups& groups) const;
  void CheckDivision(const std::set<Rank>& divided, const Groups& groups) const;
  void CheckPhases(const std::set<Rank>& divided, const Groups& groups) const;
  std::set<Rank> Idle() const;
  std::string HostOf(Rank rank) const;

  const PragueOptions options_;
  std::map<Rank, Worker> workers_;  // joined
  std::map<GroupId, Undone> undone_;
  GroupId newest_ = kNoGroup;  // id seen
  std::int64_t most_ = 0;      // requests of anybody so far
  bool unseen_ = false;        // there have been more workers than are looked at
  // Of the event at hand.
  std::optional<Rank> asks_;
  bool served_ = false;  // without a group
  std::vector<FormGroup> formed_;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_PRAGUE_RULES_H_
