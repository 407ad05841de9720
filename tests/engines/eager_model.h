// The engine `eager` once more, by the book and as slow as it likes: what must form on each event,
// worked out anew from all that has happened.
#ifndef PRD_TESTS_ENGINES_EAGER_MODEL_H_
#define PRD_TESTS_ENGINES_EAGER_MODEL_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "engines/eager/options.h"
#include "tests/engines/engine_driver.h"

namespace prd {

class EagerModel {
 public:
  // The engine is asked to explain itself.
  EagerModel(const EagerOptions& options, const Engine* engine)
      : options_(options), engine_(engine) {}

  // "" or what is wrong with the engine's decisions on this event.
  std::string Check(const Applied& applied);

  // How often the runs got there: a worker passed over as often as it may be; a round held up by
  // one; averages; rounds that failed.
  int bounds() const { return bounds_; }
  int holds() const { return holds_; }
  int averages() const { return averages_; }
  int failures() const { return failures_; }

 private:
  struct Worker {
    Ready signal;  // the last
    std::uint32_t owed = 0;
    int passed_over = 0;  // rounds in a row
    std::string host;
  };

  void Learn(const Event& event);
  std::set<Rank> Arrived() const;
  std::set<Rank> Overdue() const;
  std::string CheckNothing(const Applied& applied);
  std::string CheckRound(const FormGroup& group);
  std::string CheckAverage(const FormGroup& group);
  std::string CheckStart(const FormGroup& group);

  const EagerOptions options_;
  const Engine* const engine_;
  std::map<Rank, Worker> workers_;
  Iteration done_ = 0;  // the last round that succeeded
  Iteration last_sync_ = 0;
  std::optional<FormGroup> running_;
  std::set<Rank> taking_part_;  // of a running round: with gradients, or arrived
  Rank drawn_ = kNoRank;        // as the engine has said
  int bounds_ = 0;
  int holds_ = 0;
  int averages_ = 0;
  int failures_ = 0;
};

}  // namespace prd

#endif  // PRD_TESTS_ENGINES_EAGER_MODEL_H_
