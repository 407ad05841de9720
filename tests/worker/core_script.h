// The controller, the data plane and the user of one SessionCore as a script.
#ifndef PRD_TESTS_WORKER_CORE_SCRIPT_H_
#define PRD_TESTS_WORKER_CORE_SCRIPT_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <variant>
#include <vector>

#include "tests/plans.h"
#include "worker/core/session_core.h"

namespace prd::testing {

inline constexpr Incarnation kMe = 1001;
inline constexpr Incarnation kPeer = 2002;

class Script {
 public:
  Script() { core.GiveIncarnation(kMe); }

  // ---- the user ----
  void Attach(DurationNs timeout = 0) {
    SessionCore::Options options;
    options.hello.job = "job";
    options.hello.rank = 3;
    options.timeout = timeout;
    core.Attach(now, options, &actions);
  }
  // `taken`: averages that the thread that calls Step has just added (AveragesInBackground).
  void Step(Iteration iteration, bool discard = false, std::int64_t taken = 0) {
    core.Step(now, {.iteration = iteration, .step_ns = 5, .samples = 6}, discard, taken, &actions);
  }
  // What the thread that calls Step does on ApplyNow.
  void Applied(Iteration iteration, std::int64_t rounds = 1) {
    core.Applied(now, iteration, rounds, &actions);
  }

  // ---- the controller ----
  void Say(ControllerBody body) { SayAt(++seq, std::move(body)); }
  void SayAt(Seq at, ControllerBody body) {
    core.OnEnvelope(now,
                    {.identity = identity,
                     .incarnation = core.incarnation(),
                     .seq = at,
                     .ack = heard,
                     .body = std::move(body)},
                    &actions);
  }
  void Aside(ControllerBody body) { SayAt(0, std::move(body)); }
  void Welcome(const Plan& plan = plans::kModels) {
    seq = 0;
    heard = 1;
    Say(prd::Welcome{.run = 9,
                     .rank = 3,
                     .job = "job",
                     .engine = "e",
                     .plan = plan,
                     .workers = 2,
                     .lease_ms = 2000,
                     .heartbeat_ms = 100});
  }
  static prd::Group MakeGroup(GroupId id, GroupKind kind = GroupKind::kTrain, Iteration at = 1) {
    prd::Group group{.id = id, .kind = kind, .iteration = at, .reason = "because"};
    group.members.push_back({.rank = 3, .incarnation = kMe, .weight = 0.5});
    group.members.push_back({.rank = 4, .incarnation = kPeer, .weight = 0.5});
    return group;
  }
  // A round to which this worker gives what it owes, or nothing.
  void Round(GroupId id, Iteration round, bool gives) {
    prd::Group group = MakeGroup(id, GroupKind::kRound, round);
    if (!gives) group.members.Mutable()[0].weight = 0;
    Say(group);
  }
  void Reduced(GroupId id, bool ok = true) {
    const Status status = ok ? Status::Ok() : Status(Code::kUnavailable, "gone");
    core.OnReduced(now, id, status, 10, &actions);
  }
  void Fetched(Iteration iteration, bool ok = true, Iteration in_inbox = 0) {
    const Status status = ok ? Status::Ok() : Status(Code::kUnavailable, "gone");
    core.OnFetched(now, status, ok ? iteration : 0, &actions, in_inbox);
  }
  void SayAdopt(GroupId result = kNoGroup) {
    Say(Adopt{.source = {.rank = 4, .incarnation = kPeer}, .reason = "r", .result = result});
  }
  // Attached and through the common start.
  void Join(const Plan& plan = plans::kModels) {
    Attach();
    Welcome(plan);
    Say(MakeGroup(1, GroupKind::kInitial, 0));
    core.OnReduced(now, 1, Status::Ok(), 0, &actions);
    EXPECT_TRUE(Done()->ok());
    Acknowledge();
    actions.clear();
  }
  void Acknowledge() {
    for (const WorkerEnvelope& envelope : Sent()) heard = std::max(heard, envelope.seq);
    Aside(HeartbeatAck{});
  }

  // ---- what happened ----
  void Clear() { actions.clear(); }  // forgets it
  std::vector<WorkerEnvelope> Sent() const {
    std::vector<WorkerEnvelope> sent;
    for (const Action& action : actions) {
      if (const auto* send = std::get_if<SendToController>(&action)) sent.push_back(send->envelope);
    }
    return sent;
  }
  template <typename T>
  std::vector<T> Said() const {
    std::vector<T> said;
    for (const WorkerEnvelope& envelope : Sent()) {
      if (const auto* body = std::get_if<T>(&envelope.body)) said.push_back(*body);
    }
    return said;
  }
  // The only one said since Clear.
  template <typename T>
  T Only() const {
    const std::vector<T> said = Said<T>();
    EXPECT_EQ(said.size(), 1u);
    return said.empty() ? T{} : said.front();
  }
  template <typename T>
  std::size_t Count() const {
    std::size_t count = 0;
    for (const Action& action : actions) count += std::holds_alternative<T>(action) ? 1 : 0;
    return count;
  }
  std::optional<Status> Done() const {
    std::optional<Status> status;
    for (const Action& action : actions) {
      if (const auto* done = std::get_if<CallDone>(&action)) {
        EXPECT_FALSE(status.has_value()) << "a call ended twice";
        status = done->status;
      }
    }
    return status;
  }
  void Pass(DurationNs time) {
    now = now + time;
    core.OnTime(now, &actions);
  }

  RunIdentity identity = {7, 8};  // of the controller's envelopes
  SessionCore core;
  Actions actions;
  Instant now{1'000'000'000};
  Seq seq = 0;    // the controller's last
  Seq heard = 0;  // what it acknowledges
};

}  // namespace prd::testing

#endif  // PRD_TESTS_WORKER_CORE_SCRIPT_H_
