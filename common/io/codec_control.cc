#include <algorithm>
#include <cmath>

#include "common/base/text.h"
#include "common/io/codec.h"
#include "common/io/wire.h"

namespace prd {
namespace {

void WriteTexts(const std::vector<std::string>& from, capnp::List<capnp::Text>::Builder to) {
  for (unsigned i = 0; i < to.size(); ++i) to.set(i, ToText(from[i]));
}

std::vector<std::string> ReadTexts(capnp::List<capnp::Text>::Reader from) {
  std::vector<std::string> to;
  to.reserve(from.size());
  for (const capnp::Text::Reader text : from) to.push_back(ToString(text));
  return to;
}

// A weight that is not a number would spread to every model it touches, a loss to every mean.
double Finite(double value, const char* field) {
  if (!std::isfinite(value)) throw Malformed{std::string(field) + ": allowed is a finite number"};
  return value;
}

capnp::Data::Reader ToData(const MeshKey& key) {
  return key.known() ? capnp::Data::Reader(key.bytes.data(), key.bytes.size())
                     : capnp::Data::Reader();
}

MeshKey ReadKey(capnp::Data::Reader from) {
  MeshKey key;
  if (from.size() == 0) return key;
  if (from.size() != key.bytes.size()) {
    throw Malformed{"mesh key: found " + std::to_string(from.size()) + " bytes, allowed are " +
                    std::to_string(key.bytes.size())};
  }
  std::copy(from.begin(), from.end(), key.bytes.begin());
  return key;
}

// ---- worker to controller ----

void WriteHello(const Hello& from, wire::Hello::Builder to) {
  to.setVersion(from.version);
  to.setJob(ToText(from.job));
  to.setRank(from.rank);
  to.setWorldSize(from.world_size);
  to.setHost(ToText(from.host));
  to.setHostName(ToText(from.host_name));
  to.setPid(from.pid);
  WriteTexts(from.endpoints, to.initEndpoints(static_cast<unsigned>(from.endpoints.size())));
  to.setModelBytes(from.model_bytes);
  to.setModelHash(from.model_hash);
  to.setIteration(from.iteration);
  to.setFormerHigh(from.former.high);
  to.setFormerLow(from.former.low);
  to.setLaunch(ToText(from.launch));
  if (from.goal.known()) WriteTrained(from.goal, to.initGoal());
  if (from.own.known()) WriteTrained(from.own, to.initOwn());
  if (from.job_trained.known()) WriteTrained(from.job_trained, to.initJobTrained());
  if (from.mesh_key.known()) to.setMeshKey(ToData(from.mesh_key));
  if (!from.identity.empty()) to.setIdentity(ToText(from.identity));
  to.setGradients(ToWireEnum<wire::HasGradients>(from.gradients));
  to.setReturnsAtOnce(from.returns_at_once);
}

Hello ReadHello(wire::Hello::Reader from) {
  return {.version = from.getVersion(),
          .job = ToString(from.getJob()),
          .rank = from.getRank(),
          .world_size = from.getWorldSize(),
          .host = ToString(from.getHost()),
          .host_name = ToString(from.getHostName()),
          .pid = from.getPid(),
          .endpoints = ReadTexts(from.getEndpoints()),
          .model_bytes = from.getModelBytes(),
          .model_hash = from.getModelHash(),
          .iteration = from.getIteration(),
          .former = {from.getFormerHigh(), from.getFormerLow()},
          .launch = ToString(from.getLaunch()),
          .goal = ReadTrained(from.getGoal()),
          .own = ReadTrained(from.getOwn()),
          .job_trained = ReadTrained(from.getJobTrained()),
          .mesh_key = ReadKey(from.getMeshKey()),
          .gradients = ToEnum(from.getGradients(), HasGradients::kLater, "gradients"),
          .identity = ToString(from.getIdentity()),
          .returns_at_once = from.getReturnsAtOnce()};
}

void WriteFinished(const Finished& from, wire::Finished::Builder to) {
  to.setGroup(from.group);
  to.setOutcome(ToWireEnum<wire::Outcome>(from.outcome));
  to.setDetail(ToText(from.detail));
  to.setWaitNs(from.wait_ns);
  to.setReduceNs(from.reduce_ns);
  to.setBytes(from.bytes);
  to.setIncluded(from.included);
  to.setDigest(from.digest);
  if (from.unreachable.empty()) return;
  WriteNumbers<Rank>(from.unreachable,
                     to.initUnreachable(static_cast<unsigned>(from.unreachable.size())));
}

Finished ReadFinished(wire::Finished::Reader from) {
  return {.group = from.getGroup(),
          .outcome = ToEnum(from.getOutcome(), Outcome::kAborted, "outcome"),
          .detail = ToString(from.getDetail()),
          .wait_ns = from.getWaitNs(),
          .reduce_ns = from.getReduceNs(),
          .bytes = from.getBytes(),
          .included = from.getIncluded(),
          .unreachable = ReadNumbers<Rank>(from.getUnreachable()),
          .digest = from.getDigest()};
}

struct WriteWorkerBody {
  wire::WorkerEnvelope::Builder to;

  void operator()(const Hello& from) { WriteHello(from, to.initHello()); }
  void operator()(const Ready& from) {
    auto ready = to.initReady();
    ready.setIteration(from.iteration);
    ready.setStepNs(from.step_ns);
    ready.setSamples(from.samples);
    ready.setWaiting(from.waiting);
    ready.setGradients(from.gradients);
    ready.setLocalSteps(from.local_steps);
    ready.setRttNs(from.rtt_ns);
    ready.setQueued(from.queued);
    ready.setDropped(from.dropped);
    ready.setSuppressed(from.suppressed);
    ready.setOwnSteps(from.own.steps);
    ready.setOwnSamples(from.own.samples);
    ready.setNonfinite(from.nonfinite);
    ready.setLosses(from.losses.count);
    ready.setLoss(from.losses.mean);
  }
  void operator()(const Finished& from) { WriteFinished(from, to.initFinished()); }
  void operator()(const Adopted& from) {
    auto adopted = to.initAdopted();
    adopted.setOk(from.ok);
    adopted.setIteration(from.iteration);
    adopted.setDetail(ToText(from.detail));
    adopted.setIncluded(from.included);
  }
  void operator()(const Finish&) { to.setFinish(); }
  void operator()(const Leave& from) { to.initLeave().setReason(ToText(from.reason)); }
  void operator()(const Heartbeat&) { to.setHeartbeat(); }
  void operator()(const Placed& from) { to.initPlaced().setEpoch(from.epoch); }
  void operator()(const Probed& from) {
    auto probed = to.initProbed();
    probed.setRank(from.rank);
    probed.setIncarnation(from.incarnation);
  }
  void operator()(const Progressed& from) {
    auto progressed = to.initProgressed();
    progressed.setOwnSteps(from.own.steps);
    progressed.setOwnSamples(from.own.samples);
    progressed.setNonfinite(from.nonfinite);
    progressed.setLosses(from.losses.count);
    progressed.setLoss(from.losses.mean);
  }
  void operator()(const Pause&) { to.setPause(); }
  void operator()(const Resume&) { to.setResume(); }
  void operator()(const AskMembers&) { to.setAskMembers(); }
  void operator()(const StopJob& from) { to.initStopJob().setReason(ToText(from.reason)); }
  void operator()(const GiveNumbers& from) {
    auto give = to.initGiveNumbers();
    give.setCall(from.call);
    WriteNumbers<double>(from.values, give.initValues(static_cast<unsigned>(from.values.size())));
  }
};

WorkerBody ReadWorkerBody(wire::WorkerEnvelope::Reader from) {
  switch (from.which()) {
    case wire::WorkerEnvelope::HELLO:
      return ReadHello(from.getHello());
    case wire::WorkerEnvelope::READY: {
      const auto ready = from.getReady();
      return Ready{.iteration = ready.getIteration(),
                   .step_ns = ready.getStepNs(),
                   .samples = ready.getSamples(),
                   .waiting = ready.getWaiting(),
                   .gradients = ready.getGradients(),
                   .local_steps = ready.getLocalSteps(),
                   .rtt_ns = ready.getRttNs(),
                   .queued = ready.getQueued(),
                   .dropped = ready.getDropped(),
                   .suppressed = ready.getSuppressed(),
                   .own = {.steps = ready.getOwnSteps(), .samples = ready.getOwnSamples()},
                   .nonfinite = ready.getNonfinite(),
                   .losses = {.count = ready.getLosses(), .mean = Finite(ready.getLoss(), "loss")}};
    }
    case wire::WorkerEnvelope::FINISHED:
      return ReadFinished(from.getFinished());
    case wire::WorkerEnvelope::ADOPTED: {
      const auto adopted = from.getAdopted();
      return Adopted{.ok = adopted.getOk(),
                     .iteration = adopted.getIteration(),
                     .detail = ToString(adopted.getDetail()),
                     .included = adopted.getIncluded()};
    }
    case wire::WorkerEnvelope::FINISH:
      return Finish{};
    case wire::WorkerEnvelope::LEAVE:
      return Leave{.reason = ToString(from.getLeave().getReason())};
    case wire::WorkerEnvelope::HEARTBEAT:
      return Heartbeat{};
    case wire::WorkerEnvelope::PLACED:
      return Placed{.epoch = from.getPlaced().getEpoch()};
    case wire::WorkerEnvelope::PROBED:
      return Probed{.rank = from.getProbed().getRank(),
                    .incarnation = from.getProbed().getIncarnation()};
    case wire::WorkerEnvelope::PROGRESSED: {
      const auto progressed = from.getProgressed();
      return Progressed{
          .own = {.steps = progressed.getOwnSteps(), .samples = progressed.getOwnSamples()},
          .nonfinite = progressed.getNonfinite(),
          .losses = {.count = progressed.getLosses(),
                     .mean = Finite(progressed.getLoss(), "loss")}};
    }
    case wire::WorkerEnvelope::PAUSE:
      return Pause{};
    case wire::WorkerEnvelope::RESUME:
      return Resume{};
    case wire::WorkerEnvelope::ASK_MEMBERS:
      return AskMembers{};
    case wire::WorkerEnvelope::STOP_JOB:
      return StopJob{.reason = ToString(from.getStopJob().getReason())};
    case wire::WorkerEnvelope::GIVE_NUMBERS:
      return GiveNumbers{.call = from.getGiveNumbers().getCall(),
                         .values = ReadNumbers<double>(from.getGiveNumbers().getValues())};
  }
  throw Malformed{"a kind of message that this version does not know"};
}

// ---- controller to worker ----

void WriteMember(const GroupMember& from, wire::GroupMember::Builder to) {
  to.setRank(from.rank);
  to.setIncarnation(from.incarnation);
  to.setWeight(from.weight);
  to.setHost(ToText(from.host));
  WriteTexts(from.endpoints, to.initEndpoints(static_cast<unsigned>(from.endpoints.size())));
  to.setPassive(from.passive);
  if (from.mesh_key.known()) to.setMeshKey(ToData(from.mesh_key));
}

GroupMember ReadMember(wire::GroupMember::Reader from) {
  return {.rank = from.getRank(),
          .incarnation = from.getIncarnation(),
          .weight = Finite(from.getWeight(), "weight"),
          .host = ToString(from.getHost()),
          .endpoints = ReadTexts(from.getEndpoints()),
          .passive = from.getPassive(),
          .mesh_key = ReadKey(from.getMeshKey())};
}

void WriteMembers(const SharedList<GroupMember>& from, capnp::List<wire::GroupMember>::Builder to) {
  for (unsigned i = 0; i < to.size(); ++i) WriteMember(from[i], to[i]);
}

SharedList<GroupMember> ReadMembers(capnp::List<wire::GroupMember>::Reader from) {
  SharedList<GroupMember> to;
  to.reserve(from.size());
  for (const auto member : from) to.push_back(ReadMember(member));
  return to;
}

void WritePlan(const Plan& from, wire::Plan::Builder to) {
  to.setEvery(from.every);
  if (const auto* groups = std::get_if<GroupPlan>(&from.by)) {
    auto of = to.initGroups();
    of.setPayload(ToWireEnum<wire::Payload>(groups->payload));
    of.setMembers(ToWireEnum<wire::Membership>(groups->members));
    of.setAnyTime(groups->any_time);
    of.setRunAhead(groups->run_ahead);
    of.setNewestOnly(groups->newest_only);
    of.setAsks(groups->asks);
    of.setDelayedAck(groups->delayed_ack);
    of.setKeepInitial(groups->keep_initial);
    of.setOuterRate(groups->outer_rate);
  } else if (const auto* neighbours = std::get_if<NeighbourPlan>(&from.by)) {
    auto of = to.initNeighbours();
    of.setStaleness(neighbours->staleness);
    of.setBackups(neighbours->backups);
    of.setSerial(neighbours->serial);
  } else {
    const auto& store = std::get<StorePlan>(from.by);
    auto of = to.initStore();
    of.setStaleness(store.staleness);
    of.setStalenessAware(store.staleness_aware);
  }
}

GroupPlan ReadGroupPlan(wire::GroupPlan::Reader from) {
  return {.payload = ToEnum(from.getPayload(), Payload::kChange, "payload"),
          .members = ToEnum(from.getMembers(), Membership::kSchedule, "membership"),
          .any_time = from.getAnyTime(),
          .run_ahead = from.getRunAhead(),
          .newest_only = from.getNewestOnly(),
          .asks = from.getAsks(),
          .delayed_ack = from.getDelayedAck(),
          .keep_initial = from.getKeepInitial(),
          .outer_rate = Finite(from.getOuterRate(), "outer rate")};
}

Plan ReadPlan(wire::Plan::Reader from) {
  Plan plan{.every = from.getEvery()};
  if (plan.every == 0) throw Malformed{"steps per signal: found 0, allowed is 1 or more"};
  switch (from.which()) {
    case wire::Plan::GROUPS:
      plan.by = ReadGroupPlan(from.getGroups());
      return plan;
    case wire::Plan::NEIGHBOURS:
      plan.by = NeighbourPlan{.staleness = from.getNeighbours().getStaleness(),
                              .backups = from.getNeighbours().getBackups(),
                              .serial = from.getNeighbours().getSerial()};
      return plan;
    case wire::Plan::STORE:
      plan.by = StorePlan{.staleness = from.getStore().getStaleness(),
                          .staleness_aware = from.getStore().getStalenessAware()};
      return plan;
  }
  throw Malformed{"plan: found kind " + std::to_string(static_cast<int>(from.which())) +
                  ", allowed is groups, neighbours or store"};
}

void WriteWelcome(const Welcome& from, wire::Welcome::Builder to) {
  to.setRun(from.run);
  to.setRank(from.rank);
  to.setJob(ToText(from.job));
  to.setEngine(ToText(from.engine));
  to.setWorkers(from.workers);
  to.setLeaseMs(from.lease_ms);
  to.setHeartbeatMs(from.heartbeat_ms);
  WritePlan(from.plan, to.initPlan());
  to.setIdentityHigh(from.identity.high);
  to.setIdentityLow(from.identity.low);
  if (from.own.known()) WriteTrained(from.own, to.initOwn());
  if (from.goal.known()) WriteTrained(from.goal, to.initGoal());
  to.setOnNonfinite(ToWireEnum<wire::OnNonfinite>(from.on_nonfinite));
  to.setMeshSecurity(ToWireEnum<wire::MeshSecurity>(from.mesh_security));
  to.setDeviceNetworkTrusted(from.device_network_trusted);
  to.setJobCalls(from.job_calls);
}

Welcome ReadWelcome(wire::Welcome::Reader from) {
  return {.run = from.getRun(),
          .identity = {from.getIdentityHigh(), from.getIdentityLow()},
          .rank = from.getRank(),
          .job = ToString(from.getJob()),
          .engine = ToString(from.getEngine()),
          .plan = ReadPlan(from.getPlan()),
          .workers = from.getWorkers(),
          .lease_ms = from.getLeaseMs(),
          .heartbeat_ms = from.getHeartbeatMs(),
          .own = ReadTrained(from.getOwn()),
          .goal = ReadTrained(from.getGoal()),
          .on_nonfinite = ToEnum(from.getOnNonfinite(), OnNonfinite::kStop, "on nonfinite"),
          .mesh_security = ToEnum(from.getMeshSecurity(), MeshSecurity::kCurve, "mesh security"),
          .device_network_trusted = from.getDeviceNetworkTrusted(),
          .job_calls = from.getJobCalls()};
}

void WriteGroup(const Group& from, wire::Group::Builder to) {
  to.setId(from.id);
  to.setKind(ToWireEnum<wire::GroupKind>(from.kind));
  WriteMembers(from.members, to.initMembers(static_cast<unsigned>(from.members.size())));
  to.setIteration(from.iteration);
  to.setInitialWeight(from.initial_weight);
  to.setRingOnly(from.ring_only);
  to.setDigest(from.digest);
  to.setLast(from.last);
  to.setReason(ToText(from.reason));
}

Group ReadGroup(wire::Group::Reader from) {
  return {.id = from.getId(),
          .kind = ToEnum(from.getKind(), GroupKind::kAverage, "kind"),
          .members = ReadMembers(from.getMembers()),
          .iteration = from.getIteration(),
          .initial_weight = Finite(from.getInitialWeight(), "initial weight"),
          .ring_only = from.getRingOnly(),
          .digest = from.getDigest(),
          .last = from.getLast(),
          .reason = ToString(from.getReason())};
}

void WriteSchedule(const Schedule& from, wire::Schedule::Builder to) {
  to.setFirst(from.first);
  WriteMembers(from.members, to.initMembers(static_cast<unsigned>(from.members.size())));
  WriteNumbers<std::int32_t>(from.hosts, to.initHosts(static_cast<unsigned>(from.hosts.size())));
  to.setReason(ToText(from.reason));
}

Schedule ReadSchedule(wire::Schedule::Reader from) {
  return {.first = from.getFirst(),
          .members = ReadMembers(from.getMembers()),
          .hosts = ReadNumbers<std::int32_t>(from.getHosts()),
          .reason = ToString(from.getReason())};
}

void WriteNeighbourhood(const Neighbourhood& from, wire::Neighbourhood::Builder to) {
  WriteMembers(from.in, to.initIn(static_cast<unsigned>(from.in.size())));
  WriteNumbers<std::int64_t>(from.from, to.initFrom(static_cast<unsigned>(from.from.size())));
  WriteMembers(from.out, to.initOut(static_cast<unsigned>(from.out.size())));
  to.setOwnWeight(from.own_weight);
  to.setSlots(from.slots);
  to.setAt(from.at);
  to.setReason(ToText(from.reason));
}

Neighbourhood ReadNeighbourhood(wire::Neighbourhood::Reader from) {
  const auto in = from.getIn();
  const auto first = from.getFrom();
  if (from.getSlots() == 0 || first.size() != in.size()) {
    throw Malformed{"neighbourhood: found " + std::to_string(from.getSlots()) + " slots, and " +
                    std::to_string(first.size()) + " first iterations of " +
                    std::to_string(in.size()) + " neighbours"};
  }
  return {.in = ReadMembers(in),
          .from = ReadNumbers<std::int64_t>(first),
          .out = ReadMembers(from.getOut()),
          .own_weight = Finite(from.getOwnWeight(), "own weight"),
          .slots = from.getSlots(),
          .at = from.getAt(),
          .reason = ToString(from.getReason())};
}

void WritePlacement(const Placement& from, wire::Placement::Builder to) {
  to.setEpoch(from.epoch);
  WriteMembers(from.members, to.initMembers(static_cast<unsigned>(from.members.size())));
  WriteShards(from.shards, to.initShards(static_cast<unsigned>(from.shards.size())));
  to.setAt(from.at);
  to.setReason(ToText(from.reason));
}

Placement ReadPlacement(wire::Placement::Reader from) {
  return {.epoch = from.getEpoch(),
          .members = ReadMembers(from.getMembers()),
          .shards = ReadShards(from.getShards()),
          .at = from.getAt(),
          .reason = ToString(from.getReason())};
}

struct WriteControllerBody {
  wire::ControllerEnvelope::Builder to;

  void operator()(const Welcome& from) { WriteWelcome(from, to.initWelcome()); }
  void operator()(const Group& from) { WriteGroup(from, to.initGroup()); }
  void operator()(const Abort& from) {
    auto abort = to.initAbort();
    abort.setGroup(from.group);
    abort.setReason(ToText(from.reason));
    abort.setUndone(from.undone);
  }
  void operator()(const Adopt& from) {
    auto adopt = to.initAdopt();
    WriteMember(from.source, adopt.initSource());
    adopt.setReason(ToText(from.reason));
    adopt.setResult(from.result);
  }
  void operator()(const Released& from) { to.initReleased().setReason(ToText(from.reason)); }
  void operator()(const Refused& from) {
    auto refused = to.initRefused();
    refused.setCode(ToWireEnum<wire::Code>(from.code));
    refused.setReason(ToText(from.reason));
    refused.setRetryMs(from.retry_ms);
  }
  void operator()(const HeartbeatAck& from) {
    auto ack = to.initHeartbeatAck();
    if (!from.waits_for.empty()) ack.setWaitsFor(ToText(from.waits_for));
  }
  void operator()(const QueryReply& from) {
    auto reply = to.initQueryReply();
    reply.setIteration(from.iteration);
    reply.setLocalSteps(from.local_steps);
    reply.setReady(from.ready);
    reply.setNext(from.next);
    reply.setWorkers(from.workers);
  }
  void operator()(const Schedule& from) { WriteSchedule(from, to.initSchedule()); }
  void operator()(const Neighbourhood& from) { WriteNeighbourhood(from, to.initNeighbourhood()); }
  void operator()(const Placement& from) { WritePlacement(from, to.initPlacement()); }
  void operator()(const Opened& from) { to.initOpened().setEpoch(from.epoch); }
  void operator()(const Probe& from) {
    auto probe = to.initProbe();
    WriteMembers(from.targets, probe.initTargets(static_cast<unsigned>(from.targets.size())));
  }
  void operator()(const Resumed&) { to.setResumed(); }
  void operator()(const Members& from) {
    auto members = to.initMembers();
    WriteMembers(from.members, members.initMembers(static_cast<unsigned>(from.members.size())));
  }
  void operator()(const EndRun& from) { to.initEndRun().setReason(ToText(from.reason)); }
  void operator()(const Announce& from) {
    auto announce = to.initAnnounce();
    WriteMembers(from.members, announce.initMembers(static_cast<unsigned>(from.members.size())));
    announce.setCopies(from.copies);
  }
  void operator()(const Gone& from) {
    auto gone = to.initGone();
    WriteNumbers<Incarnation>(
        from.incarnations, gone.initIncarnations(static_cast<unsigned>(from.incarnations.size())));
  }
  void operator()(const NumbersMean& from) {
    auto mean = to.initNumbersMean();
    mean.setCall(from.call);
    WriteNumbers<double>(from.values, mean.initValues(static_cast<unsigned>(from.values.size())));
    mean.setWrong(ToText(from.wrong));
  }
};

ControllerBody ReadControllerBody(wire::ControllerEnvelope::Reader from) {
  switch (from.which()) {
    case wire::ControllerEnvelope::WELCOME:
      return ReadWelcome(from.getWelcome());
    case wire::ControllerEnvelope::GROUP:
      return ReadGroup(from.getGroup());
    case wire::ControllerEnvelope::ABORT:
      return Abort{.group = from.getAbort().getGroup(),
                   .reason = ToString(from.getAbort().getReason()),
                   .undone = from.getAbort().getUndone()};
    case wire::ControllerEnvelope::ADOPT:
      return Adopt{.source = ReadMember(from.getAdopt().getSource()),
                   .reason = ToString(from.getAdopt().getReason()),
                   .result = from.getAdopt().getResult()};
    case wire::ControllerEnvelope::RELEASED:
      return Released{.reason = ToString(from.getReleased().getReason())};
    case wire::ControllerEnvelope::REFUSED: {
      const auto refused = from.getRefused();
      return Refused{.code = ToErrorCode(refused.getCode()),
                     .reason = ToString(refused.getReason()),
                     .retry_ms = refused.getRetryMs()};
    }
    case wire::ControllerEnvelope::HEARTBEAT_ACK:
      return HeartbeatAck{.waits_for = ToString(from.getHeartbeatAck().getWaitsFor())};
    case wire::ControllerEnvelope::QUERY_REPLY: {
      const auto reply = from.getQueryReply();
      return QueryReply{.iteration = reply.getIteration(),
                        .local_steps = reply.getLocalSteps(),
                        .ready = reply.getReady(),
                        .next = reply.getNext(),
                        .workers = reply.getWorkers()};
    }
    case wire::ControllerEnvelope::SCHEDULE:
      return ReadSchedule(from.getSchedule());
    case wire::ControllerEnvelope::NEIGHBOURHOOD:
      return ReadNeighbourhood(from.getNeighbourhood());
    case wire::ControllerEnvelope::PLACEMENT:
      return ReadPlacement(from.getPlacement());
    case wire::ControllerEnvelope::OPENED:
      return Opened{.epoch = from.getOpened().getEpoch()};
    case wire::ControllerEnvelope::PROBE:
      return Probe{.targets = ReadMembers(from.getProbe().getTargets())};
    case wire::ControllerEnvelope::RESUMED:
      return Resumed{};
    case wire::ControllerEnvelope::MEMBERS:
      return Members{.members = ReadMembers(from.getMembers().getMembers())};
    case wire::ControllerEnvelope::ANNOUNCE:
      return Announce{.members = ReadMembers(from.getAnnounce().getMembers()),
                      .copies = from.getAnnounce().getCopies()};
    case wire::ControllerEnvelope::END_RUN:
      return EndRun{.reason = ToString(from.getEndRun().getReason())};
    case wire::ControllerEnvelope::GONE:
      return Gone{.incarnations = ReadNumbers<Incarnation>(from.getGone().getIncarnations())};
    case wire::ControllerEnvelope::NUMBERS_MEAN:
      return NumbersMean{.call = from.getNumbersMean().getCall(),
                         .values = ReadNumbers<double>(from.getNumbersMean().getValues()),
                         .wrong = ToString(from.getNumbersMean().getWrong())};
  }
  throw Malformed{"a kind of message that this version does not know"};
}

ControllerEnvelope ReadControllerEnvelope(wire::ControllerEnvelope::Reader from) {
  return {.identity = {from.getIdentityHigh(), from.getIdentityLow()},
          .incarnation = from.getIncarnation(),
          .seq = from.getSeq(),
          .ack = from.getAck(),
          .progress = {.trained = {.steps = from.getSteps(), .samples = from.getSamples()},
                       .workers = from.getWorkers(),
                       .done = from.getDone()},
          .body = ReadControllerBody(from)};
}

}  // namespace

void WriteTrained(const Trained& from, wire::Trained::Builder to) {
  to.setSteps(from.steps);
  to.setSamples(from.samples);
}

Trained ReadTrained(wire::Trained::Reader from) {
  return {.steps = from.getSteps(), .samples = from.getSamples()};
}

void WriteShards(const SharedList<ShardPlace>& from, capnp::List<wire::ShardPlace>::Builder to) {
  for (unsigned i = 0; i < to.size(); ++i) {
    const std::vector<Rank>& holders = from[i].holders;
    to[i].setOwner(from[i].owner);
    WriteNumbers<Rank>(holders, to[i].initHolders(static_cast<unsigned>(holders.size())));
    to[i].setSource(from[i].source);
  }
}

SharedList<ShardPlace> ReadShards(capnp::List<wire::ShardPlace>::Reader from) {
  SharedList<ShardPlace> to;
  to.reserve(from.size());
  for (const auto place : from) {
    to.push_back({.owner = place.getOwner(),
                  .holders = ReadNumbers<Rank>(place.getHolders()),
                  .source = place.getSource()});
  }
  return to;
}

void Write(const WorkerEnvelope& from, wire::WorkerEnvelope::Builder to) {
  to.setRun(from.run);
  to.setIdentityHigh(from.identity.high);
  to.setIdentityLow(from.identity.low);
  to.setRank(from.rank);
  to.setIncarnation(from.incarnation);
  to.setSeq(from.seq);
  to.setAck(from.ack);
  to.setOldest(from.oldest);
  to.setTokenHigh(from.token.high);
  to.setTokenLow(from.token.low);
  std::visit(WriteWorkerBody{to}, from.body);
}

WorkerEnvelope ReadWorkerEnvelope(wire::WorkerEnvelope::Reader from) {
  return {.run = from.getRun(),
          .identity = {from.getIdentityHigh(), from.getIdentityLow()},
          .rank = from.getRank(),
          .incarnation = from.getIncarnation(),
          .seq = from.getSeq(),
          .ack = from.getAck(),
          .oldest = from.getOldest(),
          .token = {from.getTokenHigh(), from.getTokenLow()},
          .body = ReadWorkerBody(from)};
}

void EncodeTo(const WorkerEnvelope& envelope, std::string* out) {
  WireBuilder message;
  Write(envelope, message.Init<wire::WorkerEnvelope>());
  message.ToBytes(out);
}

void EncodeTo(const ControllerEnvelope& envelope, std::string* out) {
  WireBuilder message;
  auto to = message.Init<wire::ControllerEnvelope>();
  to.setIdentityHigh(envelope.identity.high);
  to.setIdentityLow(envelope.identity.low);
  to.setIncarnation(envelope.incarnation);
  to.setSeq(envelope.seq);
  to.setAck(envelope.ack);
  to.setSteps(envelope.progress.trained.steps);
  to.setSamples(envelope.progress.trained.samples);
  to.setWorkers(envelope.progress.workers);
  to.setDone(envelope.progress.done);
  std::visit(WriteControllerBody{to}, envelope.body);
  message.ToBytes(out);
}

Result<WorkerEnvelope> DecodeWorkerEnvelope(std::string_view bytes) {
  return Read<WorkerEnvelope, wire::WorkerEnvelope>(
      bytes, "a worker's message", [](wire::WorkerEnvelope::Reader from) {
        WorkerEnvelope envelope = ReadWorkerEnvelope(from);
        const auto cut = [](std::string& text) { text.resize(CutText(text).size()); };
        if (auto* finished = std::get_if<Finished>(&envelope.body)) cut(finished->detail);
        if (auto* adopted = std::get_if<Adopted>(&envelope.body)) cut(adopted->detail);
        if (auto* leave = std::get_if<Leave>(&envelope.body)) cut(leave->reason);
        if (auto* stop = std::get_if<StopJob>(&envelope.body)) cut(stop->reason);
        return envelope;
      });
}

Result<ControllerEnvelope> DecodeControllerEnvelope(std::string_view bytes) {
  return Read<ControllerEnvelope, wire::ControllerEnvelope>(bytes, "a controller's message",
                                                            ReadControllerEnvelope);
}

}  // namespace prd
