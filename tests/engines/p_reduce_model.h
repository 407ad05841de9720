// A model of P-Reduce that is too simple to be wrong: it keeps the queue and the groups as lists
// and checks every decision of the real engine against the rules.
#ifndef PRD_TESTS_ENGINES_P_REDUCE_MODEL_H_
#define PRD_TESTS_ENGINES_P_REDUCE_MODEL_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engines/engine.h"
#include "engines/p_reduce/options.h"
#include "tests/engines/engine_driver.h"

namespace prd {

class PReduceModel {
 public:
  PReduceModel(const PReduceOptions& options, const Engine* engine)
      : options_(options), engine_(engine) {}

  // A Watch: "" or the rule that was broken.
  std::string Check(const Applied& applied);

  int bridges() const { return bridges_; }
  int holds() const { return holds_; }

 private:
  struct Waiting {
    Rank rank = kNoRank;
    Iteration iteration = 0;
    Instant at;
  };
  using Groups = std::vector<std::set<Rank>>;

  std::size_t Size() const;  // min(P, joined)
  std::string CheckGroup(Instant now, const FormGroup& group);
  std::string CheckMembers(Instant now, const FormGroup& group) const;
  std::string CheckWeights(const FormGroup& group) const;
  std::string CheckHold(Instant now);
  void AddToWindow(const std::set<Rank>& ranks);
  // The components of the split window, with all groups since; none if they are one.
  Groups Components() const;

  const PReduceOptions options_;
  const Engine* const engine_;
  std::set<Rank> joined_;
  std::vector<Waiting> queue_;
  Groups window_;                // the groups of the window being collected
  std::optional<Groups> split_;  // components of the last full one, two or more
  std::optional<Instant> held_since_;
  std::size_t held_size_ = 0;
  double held_ns_ = 0;  // worker-ns in all holds
  double step_ns_ = 0;  // worker-ns in all steps of groups' members
  double longest_step_ns_ = 0;
  std::map<Rank, Instant> released_;
  std::map<Rank, double> steps_;
  std::set<Rank> repeats_;
  int bridges_ = 0;
  int holds_ = 0;
};

// Eq. 9 and section 3.3.3 word for word: walks over every relative iteration. The weights are in
// the order of `iterations`, the initial model's share is last.
std::vector<double> WeightsByTheBook(const PReduceOptions& options,
                                     const std::vector<Iteration>& iterations);

}  // namespace prd

#endif  // PRD_TESTS_ENGINES_P_REDUCE_MODEL_H_
