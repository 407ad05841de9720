#include "tools/prdctl/json.h"

#include "common/base/static_schedule.h"
#include "tools/prdctl/text.h"

namespace prd::ctl {
namespace {

const char* OutcomeName(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk:
      return "ok";
    case Outcome::kFailed:
      return "failed";
    case Outcome::kAborted:
      return "aborted";
  }
  return "unknown";
}

// Each adds its type and fields.
struct WorkerMessage {
  Json& out;
  void operator()(const Hello& m) const {
    out["type"] = "hello";
    out["job"] = m.job;
    out["wanted_rank"] = m.rank;
    out["world_size"] = m.world_size;
    out["host"] = m.host;
    out["host_name"] = m.host_name;
    out["pid"] = m.pid;
    out["endpoints"] = m.endpoints;
    out["model_bytes"] = m.model_bytes;
    out["iteration"] = m.iteration;
  }
  void operator()(const Ready& m) const {
    out["type"] = "ready";
    out["iteration"] = m.iteration;
    out["step_ns"] = m.step_ns;
    out["samples"] = m.samples;
    out["waiting"] = m.waiting;
    if (m.gradients > 0) out["gradients"] = m.gradients;
    if (m.local_steps > 0) out["local_steps"] = m.local_steps;
    if (m.rtt_ns > 0) out["rtt_ns"] = m.rtt_ns;
    if (m.queued > 0) out["queued"] = m.queued;
    if (m.dropped > 0) out["dropped"] = m.dropped;
    if (m.suppressed > 0) out["suppressed"] = m.suppressed;
  }
  void operator()(const Finished& m) const {
    out["type"] = "finished";
    out["group"] = m.group;
    out["outcome"] = OutcomeName(m.outcome);
    if (!m.detail.empty()) out["detail"] = m.detail;
    out["wait_ns"] = m.wait_ns;
    out["reduce_ns"] = m.reduce_ns;
    out["bytes"] = m.bytes;
    if (m.included > 0) out["included"] = m.included;
  }
  void operator()(const Adopted& m) const {
    out["type"] = "adopted";
    out["ok"] = m.ok;
    out["iteration"] = m.iteration;
    if (!m.detail.empty()) out["detail"] = m.detail;
    if (m.included > 0) out["included"] = m.included;
  }
  void operator()(const Finish&) const { out["type"] = "finish"; }
  void operator()(const Leave& m) const {
    out["type"] = "leave";
    out["reason"] = m.reason;
  }
  void operator()(const Heartbeat&) const { out["type"] = "heartbeat"; }
  void operator()(const Placed& m) const {
    out["type"] = "placed";
    out["epoch"] = m.epoch;
  }
};

struct Body {
  Json& out;
  void operator()(const FromWorker& r) const {
    out["input"] = true;
    out["rank"] = r.envelope.rank;
    out["incarnation"] = r.envelope.incarnation;
    out["seq"] = r.envelope.seq;
    std::visit(WorkerMessage{out}, r.envelope.body);
  }
  void operator()(const LeaseExpired& r) const {
    out["input"] = true;
    out["type"] = "lease_expired";
    out["rank"] = r.rank;
    out["incarnation"] = r.incarnation;
  }
  void operator()(const DeadlineReached&) const {
    out["input"] = true;
    out["type"] = "deadline_reached";
  }
  void operator()(const RunStarted& r) const {
    out["type"] = "run_started";
    out["job"] = r.job;
    out["engine"] = r.engine;
    out["spec"] = r.spec;
    out["wall_ns"] = r.wall_ns;
  }
  void operator()(const WorkerJoined& r) const {
    out["type"] = "worker_joined";
    out["rank"] = r.rank;
    out["incarnation"] = r.incarnation;
    out["host_name"] = r.host_name;
    out["pid"] = r.pid;
    out["iteration"] = r.iteration;
    out["reason"] = r.reason;
  }
  void operator()(const WorkerLeft& r) const {
    out["type"] = "worker_left";
    out["rank"] = r.rank;
    out["incarnation"] = r.incarnation;
    out["why"] = LeftWord(r.why);
    out["reason"] = r.reason;
    if (r.gradients > 0) out["gradients"] = r.gradients;
  }
  void operator()(const GroupFormed& r) const {
    out["type"] = "group_formed";
    out["group"] = r.id;
    out["kind"] = KindName(r.kind);
    out["iteration"] = r.iteration;
    out["initial_weight"] = r.initial_weight;
    Json members = Json::array();
    for (const GroupShare& share : r.members) {
      Json member = {
          {"rank", share.rank}, {"weight", share.weight}, {"iteration", share.iteration}};
      if (share.passive) member["passive"] = true;
      members.push_back(std::move(member));
    }
    out["members"] = std::move(members);
    out["reason"] = r.reason;
    if (r.conflict) out["conflict"] = true;
  }
  void operator()(const GroupEnded& r) const {
    out["type"] = "group_ended";
    out["group"] = r.id;
    out["ok"] = r.ok;
    if (!r.reason.empty()) out["reason"] = r.reason;
  }
  void operator()(const AdoptOrdered& r) const {
    out["type"] = "adopt_ordered";
    out["rank"] = r.rank;
    out["source"] = r.source;
    out["reason"] = r.reason;
    if (r.result != kNoGroup) out["result"] = r.result;
  }
  void operator()(const UpdateDropped& r) const {
    out["type"] = "update_dropped";
    out["rank"] = r.rank;
    out["iteration"] = r.iteration;
    out["reason"] = r.reason;
  }
  void operator()(const QueryAnswered& r) const {
    out["type"] = "query_answered";
    out["rank"] = r.rank;
    out["iteration"] = r.iteration;
    out["local_steps"] = r.local_steps;
    out["ready"] = r.ready;
    out["next"] = r.next;
    out["reason"] = r.reason;
  }
  void operator()(const ScheduleSet& r) const {
    out["type"] = "schedule_set";
    out["first"] = r.first;
    out["members"] = r.members;
    out["hosts"] = r.hosts;
    out["reason"] = r.reason;
  }
  void operator()(const NeighboursSet& r) const {
    out["type"] = "neighbours_set";
    out["rank"] = r.rank;
    out["at"] = r.at;
    out["in"] = Json::array();
    for (const InEdge& edge : r.in) {
      out["in"].push_back({{"rank", edge.rank}, {"weight", edge.weight}, {"from", edge.from}});
    }
    out["out"] = r.out;
    out["own_weight"] = r.own_weight;
    out["slots"] = r.slots;
    out["reason"] = r.reason;
  }
  void operator()(const PlacementSet& r) const {
    out["type"] = "placement_set";
    out["epoch"] = r.epoch;
    out["members"] = r.members;
    out["at"] = r.at;
    out["shards"] = Json::array();
    for (const ShardPlace& place : r.shards) {
      out["shards"].push_back(
          {{"owner", place.owner}, {"holders", place.holders}, {"source", place.source}});
    }
    out["reason"] = r.reason;
  }
  void operator()(const PlacementOpened& r) const {
    out["type"] = "placement_opened";
    out["epoch"] = r.epoch;
    out["members"] = r.members;
  }
  void operator()(const RunEnded& r) const {
    out["type"] = "run_ended";
    out["reason"] = r.reason;
  }
};

}  // namespace

Json ToJson(const RunInfo& run) {
  return {{"run", run.run},
          {"job", run.job},
          {"engine", run.engine},
          {"started", WallTime(run.started_wall_ns)},
          {"started_wall_ns", run.started_wall_ns},
          {"ended", run.ended},
          {"records", run.records}};
}

Json ToJson(const Record& record) {
  Json json = {
      {"run", record.run}, {"index", record.index}, {"now_ns", record.now.ns}, {"input", false}};
  std::visit(Body{json}, record.body);
  return json;
}

Json ToJson(const GroupRow& group, Instant start) {
  Json json = {{"group", group.id},
               {"kind", KindName(group.kind)},
               {"state", group.State()},
               {"formed_s", Seconds(group.formed - start)},
               {"ended_s", nullptr},
               {"iteration", group.iteration},
               {"initial_weight", group.initial_weight},
               {"contributors", group.Contributors()},
               {"conflict", group.conflict},
               {"reason", group.reason}};
  if (group.ended) json["ended_s"] = Seconds(*group.ended - start);
  if (!group.failure.empty()) json["failure"] = group.failure;
  if (group.held) {
    const std::optional<Instant> started = group.Started();
    json["started_s"] = started ? Json(Seconds(*started - start)) : Json(nullptr);
    json["waits_for"] = Json::array();
    for (const MemberRow* m : group.Missing()) json["waits_for"].push_back(m->rank);
  }
  Json members = Json::array();
  for (const MemberRow& m : group.members) {
    Json member = {{"rank", m.rank}, {"weight", m.weight}, {"iteration", m.iteration}};
    if (m.ready) {
      member["ready_s"] = Seconds(*m.ready - start);
      member["step_ns"] = m.step_ns;
    }
    if (group.held) member["came_s"] = m.came ? Json(Seconds(*m.came - start)) : Json(nullptr);
    if (m.computing) member["computing_since_s"] = Seconds(*m.computing - start);
    if (m.local_steps > 0) member["local_steps"] = m.local_steps;
    member["outcome"] = m.outcome ? Json(OutcomeName(*m.outcome)) : Json(nullptr);
    if (m.reported) {
      member["reported_s"] = Seconds(*m.reported - start);
      member["wait_ns"] = m.wait_ns;
      member["reduce_ns"] = m.reduce_ns;
      member["bytes"] = m.bytes;
    }
    if (group.kind == GroupKind::kTrain) member["passive"] = m.passive;
    if (group.kind == GroupKind::kRound) {
      member["passive"] = m.weight == 0;
      member["included"] = m.included;
    }
    if (m.fetched_from != kNoRank) member["fetched_from"] = m.fetched_from;
    if (!m.detail.empty()) member["detail"] = m.detail;
    members.push_back(std::move(member));
  }
  json["members"] = std::move(members);
  return json;
}

const char* DrawnWord(const Engine::Drawn& group) { return group.pending ? "pending" : "buffered"; }

Json ToJson(const Engine::Drawn& group) {
  Json members = Json::array();
  for (const GroupShare& share : group.members) {
    members.push_back({{"rank", share.rank}, {"weight", share.weight}, {"passive", share.passive}});
  }
  return {{"group", group.id},
          {"kind", KindName(GroupKind::kTrain)},
          {"state", DrawnWord(group)},
          {"formed_s", nullptr},
          {"ended_s", nullptr},
          {"reason", group.reason},
          {"members", std::move(members)}};
}

Json ToJson(const ScheduleRow& schedule, Instant start) {
  Json phases = Json::array();
  for (int phase = 0; phase < kStaticPhases; ++phase) phases.push_back(schedule.Groups(phase));
  return {{"first", schedule.set.first},
          {"since_s", Seconds(schedule.since - start)},
          {"until_s", schedule.until ? Json(Seconds(*schedule.until - start)) : Json(nullptr)},
          {"members", schedule.set.members},
          {"hosts", schedule.set.hosts},
          {"reason", schedule.set.reason},
          {"phases", std::move(phases)}};
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace prd::ctl
