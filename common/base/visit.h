// The fields of workers' messages and of records by name, each listed once: for tools that show
// them, and for tests that fill them.
//
// Visit(m, visitor) calls visitor(name, field, shown) for every field, in the order in which tools
// show the fields; a field of a constant m is constant. The visitor returns itself. TypeName(m) is
// what tools call the kind of m.
#ifndef PRD_COMMON_BASE_VISIT_H_
#define PRD_COMMON_BASE_VISIT_H_

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "common/base/history.h"
#include "common/base/messages.h"

namespace prd {

// When a tool shows a field.
enum class Visible : std::uint8_t { kAlways, kUnlessZero /* nor empty */, kNever };
inline constexpr Visible kUnlessZero = Visible::kUnlessZero;

// T, or a constant T.
template <typename M, typename T>
concept Is = std::same_as<std::remove_const_t<M>, T>;

// ---- worker to controller ----

constexpr const char* TypeName(const Hello&) { return "hello"; }
void Visit(Is<Hello> auto& m, auto&& visit) {
  visit("version", m.version, Visible::kNever)("job", m.job)("wanted_rank", m.rank);
  visit("world_size", m.world_size)("host", m.host)("host_name", m.host_name)("pid", m.pid);
  visit("endpoints", m.endpoints)("model_bytes", m.model_bytes);
  visit("model_hash", m.model_hash, Visible::kNever)("iteration", m.iteration);
  visit("former", m.former, kUnlessZero)("launch", m.launch, kUnlessZero);
  visit("goal_steps", m.goal.steps, kUnlessZero)("goal_samples", m.goal.samples, kUnlessZero);
  visit("own_steps", m.own.steps, kUnlessZero)("own_samples", m.own.samples, kUnlessZero);
  visit("job_steps", m.job_trained.steps, kUnlessZero);
  visit("job_samples", m.job_trained.samples, kUnlessZero);
  visit("mesh_key", m.mesh_key, Visible::kNever)("gradients", m.gradients, kUnlessZero);
  visit("identity", m.identity, kUnlessZero);
  visit("returns_at_once", m.returns_at_once, Visible::kNever);
}
constexpr const char* TypeName(const Ready&) { return "ready"; }
void Visit(Is<Ready> auto& m, auto&& visit) {
  visit("iteration", m.iteration)("step_ns", m.step_ns)("samples", m.samples);
  visit("waiting", m.waiting)("gradients", m.gradients, kUnlessZero);
  visit("local_steps", m.local_steps, kUnlessZero)("rtt_ns", m.rtt_ns, kUnlessZero);
  visit("queued", m.queued, kUnlessZero)("dropped", m.dropped, kUnlessZero);
  visit("suppressed", m.suppressed, kUnlessZero);
  visit("own_steps", m.own.steps, kUnlessZero)("own_samples", m.own.samples, kUnlessZero);
  visit("nonfinite", m.nonfinite, kUnlessZero);
  visit("losses", m.losses.count, kUnlessZero)("loss", m.losses.mean, kUnlessZero);
}
constexpr const char* TypeName(const Finished&) { return "finished"; }
void Visit(Is<Finished> auto& m, auto&& visit) {
  visit("group", m.group)("outcome", m.outcome)("detail", m.detail, kUnlessZero);
  visit("wait_ns", m.wait_ns)("reduce_ns", m.reduce_ns)("bytes", m.bytes);
  visit("included", m.included, kUnlessZero)("unreachable", m.unreachable, kUnlessZero);
  visit("digest", m.digest, kUnlessZero);
}
constexpr const char* TypeName(const Adopted&) { return "adopted"; }
void Visit(Is<Adopted> auto& m, auto&& visit) {
  visit("ok", m.ok)("iteration", m.iteration)("detail", m.detail, kUnlessZero);
  visit("included", m.included, kUnlessZero);
}
constexpr const char* TypeName(const Finish&) { return "finish"; }
void Visit(Is<Finish> auto&, auto&&) {}
constexpr const char* TypeName(const Leave&) { return "leave"; }
void Visit(Is<Leave> auto& m, auto&& visit) { visit("reason", m.reason); }
constexpr const char* TypeName(const Heartbeat&) { return "heartbeat"; }
void Visit(Is<Heartbeat> auto&, auto&&) {}
constexpr const char* TypeName(const Placed&) { return "placed"; }
void Visit(Is<Placed> auto& m, auto&& visit) { visit("epoch", m.epoch); }
constexpr const char* TypeName(const Probed&) { return "probed"; }
void Visit(Is<Probed> auto& m, auto&& visit) {
  visit("target", m.rank)("target_incarnation", m.incarnation);
}

constexpr const char* TypeName(const Progressed&) { return "progressed"; }
void Visit(Is<Progressed> auto& m, auto&& visit) {
  visit("own_steps", m.own.steps)("own_samples", m.own.samples);
  visit("nonfinite", m.nonfinite, kUnlessZero);
  visit("losses", m.losses.count, kUnlessZero)("loss", m.losses.mean, kUnlessZero);
}
constexpr const char* TypeName(const Pause&) { return "pause"; }
void Visit(Is<Pause> auto&, auto&&) {}
constexpr const char* TypeName(const Resume&) { return "resume"; }
void Visit(Is<Resume> auto&, auto&&) {}
constexpr const char* TypeName(const AskMembers&) { return "ask_members"; }
void Visit(Is<AskMembers> auto&, auto&&) {}
constexpr const char* TypeName(const StopJob&) { return "stop_job"; }
void Visit(Is<StopJob> auto& m, auto&& visit) { visit("reason", m.reason); }
constexpr const char* TypeName(const GiveNumbers&) { return "give_numbers"; }
void Visit(Is<GiveNumbers> auto& m, auto&& visit) { visit("call", m.call)("values", m.values); }

// ---- inputs ----

constexpr const char* TypeName(const LeaseExpired&) { return "lease_expired"; }
void Visit(Is<LeaseExpired> auto& m, auto&& visit) {
  visit("rank", m.rank)("incarnation", m.incarnation);
}
constexpr const char* TypeName(const ProcessEnded&) { return "process_ended"; }
void Visit(Is<ProcessEnded> auto& m, auto&& visit) {
  visit("rank", m.rank)("incarnation", m.incarnation);
}
constexpr const char* TypeName(const DeadlineReached&) { return "deadline_reached"; }
void Visit(Is<DeadlineReached> auto&, auto&&) {}
constexpr const char* TypeName(const HistoryLost&) { return "history_lost"; }
void Visit(Is<HistoryLost> auto& m, auto&& visit) {
  visit("rank", m.rank)("incarnation", m.incarnation);
}

constexpr const char* TypeName(const HelloRefused&) { return "hello_refused"; }
void Visit(Is<HelloRefused> auto& m, auto&& visit) {
  visit("rank", m.rank)("host_name", m.host_name)("pid", m.pid)("code", m.code);
  visit("reason", m.reason);
}

constexpr const char* TypeName(const OperatorActed&) { return "operator_acted"; }
void Visit(Is<OperatorActed> auto& m, auto&& visit) {
  visit("verb", m.verb)("rank", m.rank)("host", m.host, kUnlessZero);
  visit("by", m.by)("reason", m.reason, kUnlessZero)("spec", m.spec, kUnlessZero);
  visit("next_run", m.next, kUnlessZero);
}

// ---- decisions ----

void Visit(Is<Dismissal> auto& m, auto&& visit) {
  visit("incarnation", m.incarnation)("reason", m.reason);
}
void Visit(Is<FormerRank> auto& m, auto&& visit) {
  visit("rank", m.rank)("own_steps", m.own.steps)("own_samples", m.own.samples);
  visit("awaited", m.awaited)("has_model", m.has_model);
}
constexpr const char* TypeName(const NumbersAveraged&) { return "numbers_averaged"; }
void Visit(Is<NumbersAveraged> auto& m, auto&& visit) {
  visit("round", m.round)("ranks", m.ranks)("calls", m.calls, Visible::kNever);
  visit("values", m.values);
}
void Visit(Is<GivenNumbers> auto& m, auto&& visit) {
  visit("rank", m.rank)("call", m.call, Visible::kNever)("values", m.values);
}
void Visit(Is<FormerRun> auto& m, auto&& visit) {
  visit("run", m.run)("identity", m.identity, Visible::kNever);
  visit("steps", m.trained.steps)("samples", m.trained.samples);
  visit("goal_steps", m.goal.steps, kUnlessZero)("goal_samples", m.goal.samples, kUnlessZero);
  visit("workers", m.workers)("launch", m.launch, kUnlessZero);
  visit("model_hash", m.model_hash, Visible::kNever)("ranks", m.ranks);
  visit("dismissed", m.dismissed, kUnlessZero)("stopped", m.stopped, kUnlessZero);
  visit("given", m.given, kUnlessZero)("averaged", m.averaged, kUnlessZero);
}
constexpr const char* TypeName(const RunStarted&) { return "run_started"; }
void Visit(Is<RunStarted> auto& m, auto&& visit) {
  visit("job", m.job)("engine", m.engine)("spec", m.spec)("wall_ns", m.wall_ns);
  visit("identity", m.identity, kUnlessZero)("former", m.former, kUnlessZero);
}
constexpr const char* TypeName(const WorkerJoined&) { return "worker_joined"; }
void Visit(Is<WorkerJoined> auto& m, auto&& visit) {
  visit("rank", m.rank)("incarnation", m.incarnation)("host_name", m.host_name)("pid", m.pid);
  visit("iteration", m.iteration)("reason", m.reason);
}
constexpr const char* TypeName(const WorkerLeft&) { return "worker_left"; }
void Visit(Is<WorkerLeft> auto& m, auto&& visit) {
  visit("rank", m.rank)("incarnation", m.incarnation)("why", m.why)("reason", m.reason);
  visit("gradients", m.gradients, kUnlessZero);
}
void Visit(Is<GroupShare> auto& m, auto&& visit) {
  visit("rank", m.rank)("weight", m.weight)("iteration", m.iteration);
  visit("passive", m.passive, kUnlessZero);
}
constexpr const char* TypeName(const GroupFormed&) { return "group_formed"; }
void Visit(Is<GroupFormed> auto& m, auto&& visit) {
  visit("group", m.id)("kind", m.kind)("iteration", m.iteration);
  visit("initial_weight", m.initial_weight)("members", m.members)("reason", m.reason);
  visit("conflict", m.conflict, kUnlessZero);
}
constexpr const char* TypeName(const GroupEnded&) { return "group_ended"; }
void Visit(Is<GroupEnded> auto& m, auto&& visit) {
  visit("group", m.id)("ok", m.ok)("reason", m.reason, kUnlessZero);
}
constexpr const char* TypeName(const AdoptOrdered&) { return "adopt_ordered"; }
void Visit(Is<AdoptOrdered> auto& m, auto&& visit) {
  visit("rank", m.rank)("source", m.source)("reason", m.reason);
  visit("result", m.result, kUnlessZero);  // kNoGroup
}
constexpr const char* TypeName(const UpdateDropped&) { return "update_dropped"; }
void Visit(Is<UpdateDropped> auto& m, auto&& visit) {
  visit("rank", m.rank)("iteration", m.iteration)("reason", m.reason);
}
constexpr const char* TypeName(const QueryAnswered&) { return "query_answered"; }
void Visit(Is<QueryAnswered> auto& m, auto&& visit) {
  visit("rank", m.rank)("iteration", m.iteration)("local_steps", m.local_steps);
  visit("ready", m.ready)("next", m.next)("reason", m.reason);
}
constexpr const char* TypeName(const ScheduleSet&) { return "schedule_set"; }
void Visit(Is<ScheduleSet> auto& m, auto&& visit) {
  visit("first", m.first)("members", m.members)("hosts", m.hosts)("reason", m.reason);
}
void Visit(Is<InEdge> auto& m, auto&& visit) {
  visit("rank", m.rank)("weight", m.weight)("from", m.from);
}
constexpr const char* TypeName(const NeighboursSet&) { return "neighbours_set"; }
void Visit(Is<NeighboursSet> auto& m, auto&& visit) {
  visit("rank", m.rank)("at", m.at)("in", m.in)("out", m.out)("own_weight", m.own_weight);
  visit("slots", m.slots)("reason", m.reason);
}
void Visit(Is<ShardPlace> auto& m, auto&& visit) {
  visit("owner", m.owner)("holders", m.holders)("source", m.source);
}
constexpr const char* TypeName(const PlacementSet&) { return "placement_set"; }
void Visit(Is<PlacementSet> auto& m, auto&& visit) {
  visit("epoch", m.epoch)("members", m.members)("at", m.at)("shards", m.shards);
  visit("reason", m.reason);
}
constexpr const char* TypeName(const PlacementOpened&) { return "placement_opened"; }
void Visit(Is<PlacementOpened> auto& m, auto&& visit) {
  visit("epoch", m.epoch)("members", m.members);
}
constexpr const char* TypeName(const LinkChanged&) { return "link_changed"; }
void Visit(Is<LinkChanged> auto& m, auto&& visit) {
  visit("a", m.a)("b", m.b)("works", m.works)("reason", m.reason);
}
constexpr const char* TypeName(const RunEnded&) { return "run_ended"; }
void Visit(Is<RunEnded> auto& m, auto&& visit) {
  visit("reason", m.reason)("finished", m.finished, kUnlessZero);
  visit("next_run", m.next, kUnlessZero);
}
constexpr const char* TypeName(const ReplicasDiffer&) { return "replicas_differ"; }
void Visit(Is<ReplicasDiffer> auto& m, auto&& visit) {
  visit("group", m.group)("iteration", m.iteration)("ranks", m.ranks)("reason", m.reason);
}
constexpr const char* TypeName(const GoalReached&) { return "goal_reached"; }
void Visit(Is<GoalReached> auto& m, auto&& visit) {
  visit("steps", m.trained.steps)("samples", m.trained.samples);
}

}  // namespace prd

#endif  // PRD_COMMON_BASE_VISIT_H_
