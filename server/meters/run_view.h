// A run as its records tell it, folded one by one: who trains, and which groups there are. What a
// record means for these is decided here and nowhere else. The daemon's metrics and prdctl take the
// changes, and look into records themselves only for what they alone show.
#ifndef PRD_SERVER_METERS_RUN_VIEW_H_
#define PRD_SERVER_METERS_RUN_VIEW_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/base/history.h"
#include "common/base/plan.h"
#include "server/meters/groups.h"

namespace prd::meters {

// How a record moves a worker: into the hands of the run's engine, where it trains, or out of them.
// It takes no state to tell, so a reader that asks for no more needs no RunView.
struct Moved {
  explicit Moved(const RecordBody& body)
      : came(std::get_if<WorkerJoined>(&body)), went(std::get_if<WorkerLeft>(&body)) {
    if (went != nullptr) Leave();
  }

  // At most one is not null. Both point into the record.
  const WorkerJoined* came = nullptr;
  const WorkerLeft* went = nullptr;
  // It has left the job. Otherwise it pauses or has finished, is still in the groups that were
  // announced before, and comes back or goes with another record.
  bool gone = false;
  // It is gone and did not ask to be.
  bool lost = false;
  // Its own gradients in no round, gone with it. Those of a worker that stays may still get into
  // one.
  std::uint32_t gradients_lost = 0;

 private:
  void Leave();
};

// How a run's workers ended it (RunEnded::finished): "finished", with the final average, or "left".
const char* HowEnded(const std::string& reason);

// Follows a run. Memory is that of its workers and of the groups that run now, not of the history.
class RunView {
 public:
  struct Change : Moved {
    using Moved::Moved;
    const GroupRow* formed = nullptr;  // by this record, or null; valid until the next Apply
    std::optional<GroupRow> ended;     // by this record
  };
  // Records in order, from the run's first. One of another run begins anew.
  Change Apply(const Record& record);

  Instant start() const { return start_; }
  const Plan& plan() const { return plan_; }
  // Since when. A worker that pauses or has finished is not among them.
  const std::map<Rank, Instant>& training() const { return training_; }
  const std::map<GroupId, GroupRow>& running() const { return running_; }
  std::uint64_t train_groups() const { return train_groups_; }  // formed
  std::uint64_t conflicts() const { return conflicts_; }        // of these

 private:
  struct Signal {
    Instant at;
    Ready ready;
  };
  void OnReady(Instant now, Rank rank, const Ready& ready);
  void OnWent(Instant now, const Moved& moved);
  void OnForm(const Record& record, const GroupFormed& formed);
  void OnFormAhead(const GroupShare& share, MemberRow* member);
  void OnReportAhead(Instant now, Rank rank, MemberRow* member);
  void OnReport(Instant now, Rank rank, const Finished& finished);
  void OnAdopted(Instant now, Rank rank, const Adopted& adopted);
  void OnEnd(const Record& record, const GroupEnded& ended, Change* change);
  MemberRow* Find(GroupId group, Rank rank);

  RunId run_ = kNoRun;
  Instant start_;
  Plan plan_;
  std::map<Rank, Instant> training_;
  std::uint64_t train_groups_ = 0;
  std::uint64_t conflicts_ = 0;
  std::map<GroupId, GroupRow> running_;
  std::map<Rank, Signal> signals_;     // not yet answered
  std::map<Rank, GroupId> ahead_;      // that a worker is in, where groups form ahead
  std::map<Rank, Instant> computing_;  // since when, the same; also of those who have come since
  std::map<Rank, GroupId> fetching_;   // the round whose result a worker was told to fetch
};

}  // namespace prd::meters

#endif  // PRD_SERVER_METERS_RUN_VIEW_H_
