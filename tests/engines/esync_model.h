// Engine `esync`, too simple to be wrong: one record per worker, and the slowest, the overdue and
// the members are looked for from end to end. Decides for itself what each event must lead to, and
// compares.
#ifndef PRD_TESTS_ENGINES_ESYNC_MODEL_H_
#define PRD_TESTS_ENGINES_ESYNC_MODEL_H_

#include <map>
#include <optional>
#include <set>
#include <string>

#include "engines/esync/options.h"
#include "tests/engines/engine_driver.h"

namespace prd {

class EsyncModel {
 public:
  EsyncModel(const EsyncOptions& options, const Engine* engine)
      : options_(options), engine_(engine) {}

  // "" or what is wrong.
  std::string Check(const Applied& applied);

  int rounds() const { return rounds_; }
  int dropped() const { return dropped_; }
  int taken_out() const { return taken_out_; }
  int local_steps() const { return local_steps_; }

 private:
  struct Record {
    std::optional<Iteration> base;  // the newest round in its model, where that is known
    std::optional<DurationNs> c;
    DurationNs longest = 0;
    Instant last_finish;
    std::int64_t k = 0;
    bool counts = false;
    bool ready = false;    // was told so
    bool stands = false;   // at the barrier
    bool reduces = false;  // in the group that runs, and has not its result
    bool failed = false;
    bool copies = false;  // a replica, or trains on the copy
    bool untimed = false;
  };

  bool Delayed() const { return options_.mode == EsyncOptions::Mode::kDelayedAck; }
  void Follow(Instant now, const Event& event);
  void Query(Instant now, Rank rank, const Ready& ready);
  Rank Slowest() const;
  void ForgetTheOverdue(Instant now);
  bool QueryState(Instant now, Rank rank) const;
  void DropOlder(Instant now);
  void Drop(Instant now, Rank rank);
  void TakeOut(Instant now);
  std::optional<Instant> Deadline() const;
  std::string CheckGroup(const FormGroup& group);

  const EsyncOptions options_;
  const Engine* const engine_;
  std::map<Rank, Record> records_;
  bool begun_ = false;
  Iteration newest_ = 0;
  Iteration round_ = 0;  // that runs
  bool running_ = false;
  std::set<Rank> due_;          // to catch up, on this event
  std::optional<bool> answer_;  // to this event
  int rounds_ = 0;
  int dropped_ = 0;
  int taken_out_ = 0;
  int local_steps_ = 0;  // more than one in a round
};

}  // namespace prd

#endif  // PRD_TESTS_ENGINES_ESYNC_MODEL_H_
