// What Prague must do, written too simply to be wrong: all undone groups in one list, by id. Checks
// the random and the smart generator.
#ifndef PRD_TESTS_ENGINES_PRAGUE_MODEL_H_
#define PRD_TESTS_ENGINES_PRAGUE_MODEL_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engines/engine.h"
#include "engines/prague/options.h"
#include "tests/engines/engine_driver.h"

namespace prd {

class PragueModel {
 public:
  PragueModel(const PragueOptions& options, const Engine* engine)
      : options_(options), engine_(engine) {}

  // "" or what is wrong with the engine after this event.
  std::string Check(const Applied& applied);

  int divisions() const { return divisions_; }
  int in_two_phases() const { return in_two_phases_; }
  int excluded() const { return excluded_; }  // divisions that left somebody idle as slow
  int served() const { return served_; }      // requests that needed no group
  int conflicts() const { return conflicts_; }
  int redraws() const { return redraws_; }

 private:
  struct Group {
    std::vector<Rank> members;
    std::set<Rank> undone;
    Rank caller = kNoRank;  // random
    bool formed = false;
  };
  struct Worker {
    std::int32_t host = 0;
    std::int64_t requests = 0;
    int served = 0;
    bool waiting = false;
    std::set<GroupId> failing;
  };

  bool Smart() const { return options_.generator == PragueOptions::Generator::kSmart; }
  std::string Apply(const Applied& applied);
  std::string ApplyFinished(const FinishedEvent& finished);
  void ApplyLeft(const LeftEvent& left);
  // Those drawn by this event, by id; and checks that no other is gone or new.
  std::string Collect(const Applied& applied, std::map<GroupId, Group>* fresh);
  std::string CheckRandom(const Applied& applied, const std::map<GroupId, Group>& fresh);
  std::string CheckDivision(const Applied& applied, const std::map<GroupId, Group>& fresh,
                            const std::set<Rank>& idle);
  std::string CheckPhases(const std::map<GroupId, Group>& fresh,
                          const std::map<std::int32_t, std::set<Rank>>& hosts);
  std::string CheckFormed(const Applied& applied);
  std::string CheckNobodyForgotten(Instant now) const;
  std::set<Rank> Idle() const;
  bool InGroup(Rank rank) const;

  const PragueOptions options_;
  const Engine* const engine_;
  std::map<Rank, Worker> workers_;
  std::map<GroupId, Group> groups_;
  std::map<std::string, std::int32_t> host_numbers_;
  std::int64_t most_requests_ = 0;
  std::map<GroupId, bool> conflict_;
  int divisions_ = 0;
  int in_two_phases_ = 0;
  int excluded_ = 0;
  int served_ = 0;
  int conflicts_ = 0;
  int redraws_ = 0;
};

}  // namespace prd

#endif  // PRD_TESTS_ENGINES_PRAGUE_MODEL_H_
