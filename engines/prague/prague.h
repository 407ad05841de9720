// Engine `prague`: Partial All-Reduce in groups that a Group Generator draws (Luo et al., Prague,
// ASPLOS 2020). Its three generators:
//
//  - random (section 4.1, Figure 8): each request draws one random group with its caller; the other
//    members are passive, and their own requests stand. Groups that share a worker run one after
//    another (engines/group_queue.h).
//  - smart (section 5): a request of a worker that is in undone groups already is served by the
//    first of them. Else a Global Division puts all idle workers, those in no undone group, into
//    random groups of their own (5.1): in two phases where they are on several hosts (5.2), and
//    without those who have requested slowdown_threshold groups fewer than the caller (5.3).
//  - static (section 4.2): common/base/static_schedule.h; the controller only says who is there.
//
// A group may be announced before its members have asked. A worker waits in its step until a group
// that answers it is through; with overlap it trains on, and may be through with a group before it
// has asked: it is served then, and its next request is answered at once, without a group. (One
// request for each such group: everybody asks as often as without overlap.)
//
// What else is decided where the paper says nothing:
//  - A worker that joins starts with the largest count of requests (c_w). With less it would count
//    as slow until it had caught up, which at the others' speed it never does; if it is slow,
//    its count says so after slowdown_threshold requests.
//  - When a worker is gone, groups with it that are not formed are dropped and drawn again for
//    those whose request they were to answer: at once for a random group's caller; for smart, the
//    members that wait and are in no other group are divided anew. A group that fails is drawn
//    again in the same way once all of its members have reported; what has succeeded for a member
//    has answered it. So every request that stands has an undone group, or an end to wait for, and
//    the oldest undone group can always run: nobody waits for ever.
//  - Two workers that do not reach each other are in no group together. A group that is drawn and
//    not formed when their link breaks is drawn again. A random group has fewer members where no
//    others reach all of them. Of a division, who does not reach its group moves to another one, or
//    stays idle; a caller that finds no group has one of its own, and goes on alone.
//  - A start of N workers makes one schedule, and ahead of requests no random groups of the first
//    few: both wait for kSettle after a worker has come (static: or gone).
#ifndef PRD_ENGINES_PRAGUE_PRAGUE_H_
#define PRD_ENGINES_PRAGUE_PRAGUE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engines/engine.h"
#include "engines/group_queue.h"
#include "engines/links.h"
#include "engines/prague/idle.h"
#include "engines/prague/options.h"
#include "engines/ring_order.h"

namespace prd {

class Prague final : public Engine {
 public:
  static constexpr DurationNs kSettle = 5 * kMillisecond;

  // REQUIRES: Validate(options, 0) is ok.
  explicit Prague(const PragueOptions& options) : options_(options) {}

  Plan plan() const override;
  void Step(Instant now, const Event& event, GroupId* next_group, Effects* out) override;
  std::optional<Instant> NextDeadline() const override { return settles_; }
  std::string Explain(Instant now, Rank rank) const override;
  std::vector<Drawn> DrawnGroups() const override;
  void Archive(StateArchive& ar) override;

 private:
  using Generator = PragueOptions::Generator;

  struct Worker {
    Iteration iteration = 0;    // of its last signal, or of its join
    Instant since;              // it computes, or waits
    std::int64_t requests = 0;  // smart: c_w (section 5.3)
    GroupId own = kNoGroup;     // random: undone, drawn for it
    std::uint32_t failing = 0;  // groups that failed for it, and have not ended
    std::uint32_t served = 0;   // groups that answer its next requests
    std::int32_t host = 0;
    bool joined = false;
    bool waiting = false;  // its signal stands
    void Archive(StateArchive& ar) {
      ar(iteration, since, requests, own, failing, served, host, joined, waiting);
    }
  };

  bool Is(Generator generator) const { return options_.generator == generator; }
  Worker& At(Rank rank) { return workers_[static_cast<std::size_t>(rank)]; }
  const Worker& At(Rank rank) const { return workers_[static_cast<std::size_t>(rank)]; }
  bool Joined(Rank rank) const;
  std::int32_t HostOf(Rank rank) const;
  auto RingOrder() const {
    return InRingOrder([this](Rank rank) { return HostOf(rank); });
  }

  void OnJoined(Instant now, const JoinedEvent& event);
  void OnReady(Instant now, const ReadyEvent& event, GroupId* next_group, Effects* out);
  void OnFinished(Instant now, const FinishedEvent& event, GroupId* next_group);
  void OnEnded(const EndedEvent& event, GroupId* next_group);
  void OnLeft(Instant now, const LeftEvent& event, GroupId* next_group);
  void OnLink(const LinkEvent& event, GroupId* next_group);
  void OnDeadline(GroupId* next_group, Effects* out);
  // Groups that are drawn, not formed, and will not be: for whom they were.
  std::vector<Rank> Release(const std::vector<GroupQueue::Group>& dropped);

  // Random: a new group for this worker, unless it has one, or none is due. `why` is empty, or
  // says why it is not the first.
  void DrawAhead(Rank rank, const std::string& why, GroupId* next_group);
  void DrawRandom(Rank rank, const std::string& why, GroupId* next_group);
  // Smart: the Global Division.
  void Divide(Rank caller, const std::string& why, GroupId* next_group);
  void DrawDivided(Rank caller, std::vector<std::vector<Rank>> groups, const std::string& reason,
                   GroupId* next_group);
  // These workers' groups are no more.
  void Redraw(const std::vector<Rank>& ranks, const std::string& why, GroupId* next_group);
  void FormRunnable(Effects* out);
  // Smart: after a change of the worker's line, and at a request.
  void UpdateIdle(Rank rank);
  void CountRequest(Rank rank);
  void SetSchedules(GroupId* next_group, Effects* out);

  std::vector<std::int32_t> Hosts() const;  // of joined_
  GroupShare ShareOf(const GroupQueue::Group& group, Rank rank) const;
  std::string ExplainSchedule(Rank rank) const;
  std::string WhoHoldsUp(Instant now, const GroupQueue::Group& group) const;
  std::string WhoIsMissing(Instant now, const GroupQueue::Group& group) const;
  bool ConsistentWorker(Rank rank) const;
  bool Consistent() const;

  const PragueOptions options_;
  std::vector<Worker> workers_;  // by rank
  std::vector<Rank> joined_;     // ascending (derived)
  HostTable hosts_;
  BrokenLinks links_;
  GroupQueue queue_;
  IdleWorkers idle_;                // smart: the joined ones in no undone group
  std::int64_t most_requests_ = 0;  // c_w of any worker so far
  std::uint64_t draws_ = 0;
  std::optional<Instant> settles_;               // kSettle after a change
  std::map<GroupId, std::vector<Rank>> failed_;  // not ended: for whom they are drawn again
};

}  // namespace prd

#endif  // PRD_ENGINES_PRAGUE_PRAGUE_H_
