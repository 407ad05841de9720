// Engine `backup`, too simple to be wrong: maps that are looked through from end to end. Decides
// for itself what each event must lead to, and compares.
#ifndef PRD_TESTS_ENGINES_BACKUP_MODEL_H_
#define PRD_TESTS_ENGINES_BACKUP_MODEL_H_

#include <map>
#include <set>
#include <string>

#include "engines/backup/options.h"
#include "tests/engines/engine_driver.h"

namespace prd {

class BackupModel {
 public:
  BackupModel(const BackupOptions& options, const Engine* engine)
      : options_(options), engine_(engine) {}

  // "" or what is wrong.
  std::string Check(const Applied& applied);

  int rounds() const { return rounds_; }
  int dropped() const { return dropped_; }

 private:
  void Follow(const Event& event);
  void DropOlder();
  std::string CheckRound(const FormGroup& group);

  const BackupOptions options_;
  const Engine* const engine_;
  std::map<Rank, Iteration> replicas_;  // of the workers whose iteration is known
  std::set<Rank> joined_;
  std::set<Rank> waiting_;
  std::set<Rank> members_;  // of the round that runs
  std::set<Rank> failed_;   // of them, those for whom it has failed
  Iteration newest_ = 0;
  Iteration round_ = 0;  // that runs
  GroupId running_ = kNoGroup;
  std::set<Rank> due_;  // to catch up, on this event
  int rounds_ = 0;
  int dropped_ = 0;
};

}  // namespace prd

#endif  // PRD_TESTS_ENGINES_BACKUP_MODEL_H_
