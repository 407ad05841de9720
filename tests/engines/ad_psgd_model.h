// AD-PSGD's rules (Figure 3 of Prague), too simple to be wrong: a list of pairs in the order of
// their draws, of which one runs when no earlier one has a member of it.
#ifndef PRD_TESTS_ENGINES_AD_PSGD_MODEL_H_
#define PRD_TESTS_ENGINES_AD_PSGD_MODEL_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "engines/ad_psgd/options.h"
#include "tests/engines/engine_driver.h"

namespace prd {

class AdPsgdModel {
 public:
  AdPsgdModel(const AdPsgdOptions& options, const Engine* engine)
      : options_(options), engine_(engine) {}

  // Follows one event. "" or what is wrong with what the engine did on it.
  std::string Check(const Applied& applied);

  int pairs() const { return pairs_; }
  int conflicts() const { return conflicts_; }
  int redrawn() const { return redrawn_; }
  int alone() const { return alone_; }

 private:
  struct Pair {
    Rank caller = kNoRank;
    Rank other = kNoRank;
    bool formed = false;
    bool conflict = false;
    std::set<Rank> in;  // those who have not reported and are there
    bool Has(Rank rank) const { return rank == caller || rank == other; }
  };

  std::set<Rank> NeighboursOf(Rank rank) const;
  // Whom the event leaves without a pair for the signal that stands.
  std::set<Rank> Follow(const Event& event);
  std::string Add(GroupId id, const std::vector<GroupShare>& members, std::set<Rank>* askers);
  std::string CheckFormed(const Effects& effects);
  std::string CheckWaiting(Instant now) const;

  const AdPsgdOptions options_;
  const Engine* const engine_;
  std::set<Rank> present_;
  std::set<Rank> asking_;  // their signal stands
  std::map<GroupId, Pair> undone_;
  std::map<GroupId, Rank> failed_;
  GroupId last_ = kNoGroup;
  int pairs_ = 0;
  int conflicts_ = 0;
  int redrawn_ = 0;
  int alone_ = 0;
};

}  // namespace prd

#endif  // PRD_TESTS_ENGINES_AD_PSGD_MODEL_H_
