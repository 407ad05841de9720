// Invariants of the history and of what is sent, whatever the engine. Each has a name, under which
// a violation is reported (violation.h):
//
//   one-group            no worker is in two running groups
//   weights              weights are >= 0 and sum to 1 with the initial model's share
//   members              a group's members are there, joined, and have a signal waiting; nobody
//   twice iterations           a worker's iteration never goes back, and a group goes on at the
//   largest recorded-first       what is announced is in the history before it is sent
//   messages-once        the messages of an incarnation are acted on in order, each once; but a
//                        Hello may be heard anew once its first answer has been lost for a lease
//   finished-once        every member reports on a group once, and a group ends when all have
//   no-evictions         neither end of the real protocol breaks it
//   history-whole        records follow each other without a hole (history_store.h)
#ifndef PRD_TOOLS_SIM_LAWS_H_
#define PRD_TOOLS_SIM_LAWS_H_

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "common/base/history.h"
#include "common/base/messages.h"

namespace prd::sim {

class Laws {
 public:
  // A record that has become durable. Throws Violation.
  void Seen(const Record& record);
  // A message about to leave the controller. Throws Violation.
  void Sent(const ControllerEnvelope& envelope) const;

 private:
  struct Worker {
    Incarnation incarnation = 0;
    Iteration iteration = 0;
    GroupId group = kNoGroup;
    bool joined = false;
    bool waiting = false;  // its signal
    bool ordered = false;  // this rank to adopt, at least once
  };
  struct Running {
    std::vector<Rank> pending;
    Iteration iteration = 0;
  };
  struct Run {
    std::vector<Worker> workers;  // by rank
    std::map<GroupId, Running> groups;
    GroupId last_group = kNoGroup;
  };
  struct Life {  // of an incarnation
    RunId run = kNoRun;
    Rank rank = kNoRank;
    Seq seq = 0;
    bool there = false;
  };

  Worker& At(Run* run, Rank rank);
  void OnMessage(const Record& record, const WorkerEnvelope& envelope);
  void OnFinished(Run* run, Rank rank, const Finished& finished);
  void OnLeft(Run* run, const WorkerLeft& left);
  void OnFormed(Run* run, const GroupFormed& formed);

  std::map<RunId, Run> runs_;
  std::unordered_map<Incarnation, Life> lives_;  // looked up only, never walked
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_LAWS_H_
