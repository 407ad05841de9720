// Workers that reduce in groups: they signal, reduce, fail, copy replicas, die and come back.
#ifndef PRD_TESTS_ENGINES_GROUP_DRIVER_H_
#define PRD_TESTS_ENGINES_GROUP_DRIVER_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/engines/engine_driver.h"

namespace prd {

class GroupDriver final : public EngineDriver {
 public:
  GroupDriver(Engine* engine, std::uint64_t seed, Rank max_workers)
      : EngineDriver(engine, seed, max_workers, 20 * kMillisecond, 1) {}

 private:
  enum class State {
    kComputing,
    kWaiting,
    kReducing,
    kFailed,   // Shares(): the group that still runs has failed for it
    kCopying,  // Shares(): a replica
  };
  struct Worker {
    State state = State::kComputing;
    Iteration iteration = 0;
    GroupId group = kNoGroup;
    int steps = 0;  // groups that it came out of with the result
    // Rounds (TrainsInRounds), in which it takes part in any state.
    Iteration received = 0;   // the newest round of which it has the result
    std::uint32_t owed = 0;   // its gradients in no round yet
    std::uint32_t given = 0;  // to the round that runs
    // Shares(): `iteration` is that of its replica.
    Iteration source = 0;             // of the replica that it copies
    std::uint32_t local_steps = 0;    // AsksBeforeGroups
    bool told_ready = false;          // the same
    bool again = false;               // it signals what it has signalled before
    GroupId newest_group = kNoGroup;  // Ahead()
  };
  struct Running {
    GroupKind kind = GroupKind::kTrain;
    std::vector<Rank> pending;
    Iteration iteration = 0;
    bool failed = false;
    std::vector<Rank> with_result;     // kRound: of those who have reported
    std::vector<Rank> without_result;  // the same
    std::set<Rank> passive;            // Ahead()
    std::set<Rank> finishing;          // Ahead(): the engine hears no more of them
  };

  bool Rounds() const { return TrainsInRounds(engine_->plan()); }
  // All have the same replica, and who has missed a round copies it.
  bool Shares() const {
    return !Rounds() && !CountsLocalSteps(engine_->plan()) &&
           engine_->joining() == Engine::Joining::kAnytime;
  }
  // Groups form before their members are ready. Its workers are kComputing or, while a signal
  // stands, kWaiting, and may be in a group either way.
  bool Ahead() const { return DrawnAhead(engine_->plan()); }
  std::vector<Rank> Present() const override;
  std::string Heed(const Effect& effect, const Event& cause) override;
  bool JoinsNow() const override {
    return engine_->joining() != Engine::Joining::kPause || groups_.empty();
  }
  std::string JoinOne() override;
  std::string LeaveOne(Rank rank) override;
  bool Urgent(std::string* wrong) override;
  bool Act(bool storms, std::uint64_t dice, std::string* wrong) override;
  void ForgetSteps() override;
  bool AllHave(int steps) const override;

  std::string Form(const GroupFormed& group);
  std::string BeReady(Rank rank);
  std::string Report(GroupId group, bool ok);
  // In the batch of its next signal; now and then not told. Not drawn: events without samples are
  // the same.
  std::int64_t Samples(Rank rank) const;
  std::string BeReadyToShare(Rank rank);
  std::string ReportShared(GroupId group, bool ok);
  std::string EndShared(GroupId group);
  std::string Copy(Rank rank);
  std::string Rejoin();
  Iteration NewestReplica() const;
  std::string ReportRound(GroupId group, bool ok);
  void Receive(Worker* worker, Iteration round);
  std::string EndRound(GroupId group);
  std::string FormAhead(const GroupFormed& group);
  std::string AnswerAhead(const QueryAnswered& answer);
  std::string ReportAhead(GroupId group, bool ok);
  std::string LeaveAhead(Rank rank);
  bool Finishing(Rank rank) const;
  std::vector<Rank> In(State state) const;

  std::map<Rank, Worker> workers_;
  std::map<GroupId, Running> groups_;
  Iteration newest_ = 0;      // round with a result
  Iteration finished_ = -1;   // the newest replica of those who have finished: a source still
  std::vector<Rank> behind_;  // to catch up, while nobody has anything newer
};

}  // namespace prd

#endif  // PRD_TESTS_ENGINES_GROUP_DRIVER_H_
