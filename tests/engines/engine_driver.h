// Drives an engine with random events that keep to the contract of engines/event.h, as a job would:
// workers join, signal, reduce, fail, die and come back, in any order and at any speed. Give it an
// EngineWatch, and the engine is held to its invariants, too.
#ifndef PRD_TESTS_ENGINES_ENGINE_DRIVER_H_
#define PRD_TESTS_ENGINES_ENGINE_DRIVER_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/base/prng.h"
#include "engines/engine.h"

namespace prd {

// One event and what the engine decided on it.
struct Applied {
  Instant now;
  Event event;
  Effects effects;
};

class EngineDriver {
 public:
  EngineDriver(Engine* engine, std::uint64_t seed, Rank max_workers);

  // Each returns "" or the first thing that is wrong; nothing is done after that.
  // Random events, faults among them.
  std::string Storm(int events);
  // No more faults: every worker must get through `steps` more steps.
  std::string Calm(int steps);
  // Workers leave one by one, each time after Calm(2), down to nobody.
  std::string Drain();

  const std::vector<Applied>& applied() const { return applied_; }

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
  std::string Apply(const Event& event);
  std::string Form(const FormGroup& group);
  std::string Join();
  bool JoinsNow() const { return engine_->joining() != Engine::Joining::kPause || groups_.empty(); }
  std::string BeReady(Rank rank);
  std::string Report(GroupId group, bool ok);
  std::string BeReadyToShare(Rank rank);
  std::string Heed(const Effect& effect, const Event& cause);
  std::string ReportShared(GroupId group, bool ok);
  std::string EndShared(GroupId group);
  std::string Copy(Rank rank);
  std::string Rejoin();
  Iteration NewestReplica() const;
  std::string ReportRound(GroupId group, bool ok);
  void Receive(Worker* worker, Iteration round);
  std::string EndRound(GroupId group);
  std::string FormAhead(const FormGroup& group);
  std::string AnswerAhead(const Answer& answer);
  std::string ReportAhead(GroupId group, bool ok);
  std::string LeaveAhead(Rank rank);
  bool Finishing(Rank rank) const;
  std::string Leave(Rank rank);
  std::string PassDeadline();
  std::vector<Rank> In(State state) const;
  template <typename T>
  const T& Pick(const std::vector<T>& from) {
    return from[random_.Below(from.size())];
  }

  Engine* const engine_;
  Prng random_;
  const Rank max_workers_;
  Instant now_;
  GroupId next_group_ = 1;
  std::map<Rank, Worker> workers_;
  std::map<GroupId, Running> groups_;
  Iteration newest_ = 0;      // round with a result
  Iteration finished_ = -1;   // the newest replica of those who have finished: a source still
  std::vector<Rank> behind_;  // to catch up, while nobody has anything newer
  std::vector<Applied> applied_;
};

}  // namespace prd

#endif  // PRD_TESTS_ENGINES_ENGINE_DRIVER_H_
