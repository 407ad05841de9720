#include "common/io/codec.h"
#include "common/io/wire.h"

namespace prd {
namespace {

void WriteFormed(const GroupFormed& from, wire::GroupFormed::Builder to) {
  to.setId(from.id);
  to.setKind(ToWireEnum<wire::GroupKind>(from.kind));
  auto members = to.initMembers(static_cast<unsigned>(from.members.size()));
  for (unsigned i = 0; i < members.size(); ++i) {
    members[i].setRank(from.members[i].rank);
    members[i].setWeight(from.members[i].weight);
    members[i].setIteration(from.members[i].iteration);
    members[i].setPassive(from.members[i].passive);
  }
  to.setIteration(from.iteration);
  to.setInitialWeight(from.initial_weight);
  to.setReason(ToText(from.reason));
  to.setConflict(from.conflict);
}

GroupFormed ReadFormed(wire::GroupFormed::Reader from) {
  GroupFormed to{.id = from.getId(),
                 .kind = ToEnum(from.getKind(), GroupKind::kAverage, "kind"),
                 .members = {},
                 .iteration = from.getIteration(),
                 .initial_weight = from.getInitialWeight(),
                 .reason = ToString(from.getReason()),
                 .conflict = from.getConflict()};
  const auto members = from.getMembers();
  to.members.reserve(members.size());
  for (const auto member : members) {
    to.members.push_back({.rank = member.getRank(),
                          .weight = member.getWeight(),
                          .iteration = member.getIteration(),
                          .passive = member.getPassive()});
  }
  return to;
}

void WriteNeighbours(const NeighboursSet& from, wire::NeighboursSet::Builder to) {
  to.setRank(from.rank);
  to.setAt(from.at);
  auto in = to.initIn(static_cast<unsigned>(from.in.size()));
  for (unsigned i = 0; i < in.size(); ++i) {
    in[i].setRank(from.in[i].rank);
    in[i].setWeight(from.in[i].weight);
    in[i].setFrom(from.in[i].from);
  }
  WriteNumbers<Rank>(from.out, to.initOut(static_cast<unsigned>(from.out.size())));
  to.setOwnWeight(from.own_weight);
  to.setSlots(from.slots);
  to.setReason(ToText(from.reason));
}

void WriteAveraged(const NumbersAveraged& from, wire::NumbersAveraged::Builder to) {
  to.setRound(from.round);
  WriteNumbers<Rank>(from.ranks, to.initRanks(static_cast<unsigned>(from.ranks.size())));
  WriteNumbers<std::uint64_t>(from.calls, to.initCalls(static_cast<unsigned>(from.calls.size())));
  WriteNumbers<double>(from.values, to.initValues(static_cast<unsigned>(from.values.size())));
}

NumbersAveraged ReadAveraged(wire::NumbersAveraged::Reader from) {
  return {.round = from.getRound(),
          .ranks = ReadNumbers<Rank>(from.getRanks()),
          .calls = ReadNumbers<std::uint64_t>(from.getCalls()),
          .values = ReadNumbers<double>(from.getValues())};
}

void WriteFormer(const FormerRun& from, wire::FormerRun::Builder to) {
  to.setRun(from.run);
  WriteTrained(from.trained, to.initTrained());
  WriteTrained(from.goal, to.initGoal());
  to.setWorkers(from.workers);
  to.setLaunch(ToText(from.launch));
  to.setModelHash(from.model_hash);
  to.setIdentity(from.identity);
  auto ranks = to.initRanks(static_cast<unsigned>(from.ranks.size()));
  for (unsigned i = 0; i < ranks.size(); ++i) {
    ranks[i].setRank(from.ranks[i].rank);
    WriteTrained(from.ranks[i].own, ranks[i].initOwn());
    ranks[i].setAwaited(from.ranks[i].awaited);
    ranks[i].setHasModel(from.ranks[i].has_model);
  }
  auto dismissed = to.initDismissed(static_cast<unsigned>(from.dismissed.size()));
  for (unsigned i = 0; i < dismissed.size(); ++i) {
    dismissed[i].setIncarnation(from.dismissed[i].incarnation);
    dismissed[i].setReason(ToText(from.dismissed[i].reason));
  }
  if (!from.stopped.empty()) to.setStopped(ToText(from.stopped));
  if (from.numbers == FormerNumbers()) return;
  auto numbers = to.initNumbers();
  auto given = numbers.initGiven(static_cast<unsigned>(from.numbers.given.size()));
  for (unsigned i = 0; i < given.size(); ++i) {
    const std::vector<double>& values = from.numbers.given[i].values;
    given[i].setRank(from.numbers.given[i].rank);
    given[i].setCall(from.numbers.given[i].call);
    WriteNumbers<double>(values, given[i].initValues(static_cast<unsigned>(values.size())));
  }
  WriteAveraged(from.numbers.averaged, numbers.initLast());
}

FormerRun ReadFormer(wire::FormerRun::Reader from) {
  FormerRun to{.run = from.getRun(),
               .identity = from.getIdentity(),
               .trained = ReadTrained(from.getTrained()),
               .goal = ReadTrained(from.getGoal()),
               .workers = from.getWorkers(),
               .launch = ToString(from.getLaunch()),
               .model_hash = from.getModelHash(),
               .ranks = {},
               .dismissed = {},
               .stopped = ToString(from.getStopped()),
               .numbers = {.given = {}, .averaged = ReadAveraged(from.getNumbers().getLast())}};
  for (const auto rank : from.getRanks()) {
    to.ranks.push_back({.rank = rank.getRank(),
                        .own = ReadTrained(rank.getOwn()),
                        .awaited = rank.getAwaited(),
                        .has_model = rank.getHasModel()});
  }
  for (const auto of : from.getDismissed()) {
    to.dismissed.push_back(
        {.incarnation = of.getIncarnation(), .reason = ToString(of.getReason())});
  }
  for (const auto of : from.getNumbers().getGiven()) {
    to.numbers.given.push_back({.rank = of.getRank(),
                                .call = of.getCall(),
                                .values = ReadNumbers<double>(of.getValues())});
  }
  return to;
}

struct WriteBody {
  wire::Record::Builder to;

  void operator()(const FromWorker& from) { Write(from.envelope, to.initFromWorker()); }
  void operator()(const LeaseExpired& from) {
    auto expired = to.initLeaseExpired();
    expired.setRank(from.rank);
    expired.setIncarnation(from.incarnation);
  }
  void operator()(const ProcessEnded& from) {
    auto ended = to.initProcessEnded();
    ended.setRank(from.rank);
    ended.setIncarnation(from.incarnation);
  }
  void operator()(const DeadlineReached&) { to.setDeadlineReached(); }
  void operator()(const HistoryLost& from) {
    auto lost = to.initHistoryLost();
    lost.setRank(from.rank);
    lost.setIncarnation(from.incarnation);
  }
  void operator()(const LinkChanged& from) {
    auto changed = to.initLinkChanged();
    changed.setA(from.a);
    changed.setB(from.b);
    changed.setWorks(from.works);
    changed.setReason(ToText(from.reason));
  }
  void operator()(const RunStarted& from) {
    auto started = to.initRunStarted();
    started.setJob(ToText(from.job));
    started.setEngine(ToText(from.engine));
    started.setSpec(ToText(from.spec));
    started.setWallNs(from.wall_ns);
    started.setIdentityHigh(from.identity.high);
    started.setIdentityLow(from.identity.low);
    if (from.former != FormerRun()) WriteFormer(from.former, started.initFormer());
  }
  void operator()(const WorkerJoined& from) {
    auto joined = to.initWorkerJoined();
    joined.setRank(from.rank);
    joined.setIncarnation(from.incarnation);
    joined.setHostName(ToText(from.host_name));
    joined.setPid(from.pid);
    joined.setIteration(from.iteration);
    joined.setReason(ToText(from.reason));
  }
  void operator()(const WorkerLeft& from) {
    auto left = to.initWorkerLeft();
    left.setRank(from.rank);
    left.setIncarnation(from.incarnation);
    left.setWhy(ToWireEnum<wire::LeftReason>(from.why));
    left.setReason(ToText(from.reason));
    left.setGradients(from.gradients);
  }
  void operator()(const GroupFormed& from) { WriteFormed(from, to.initGroupFormed()); }
  void operator()(const GroupEnded& from) {
    auto ended = to.initGroupEnded();
    ended.setId(from.id);
    ended.setOk(from.ok);
    ended.setReason(ToText(from.reason));
  }
  void operator()(const AdoptOrdered& from) {
    auto ordered = to.initAdoptOrdered();
    ordered.setRank(from.rank);
    ordered.setSource(from.source);
    ordered.setReason(ToText(from.reason));
    ordered.setResult(from.result);
  }
  void operator()(const RunEnded& from) {
    auto ended = to.initRunEnded();
    ended.setReason(ToText(from.reason));
    ended.setFinished(from.finished);
    ended.setNext(from.next);
  }
  void operator()(const HelloRefused& from) {
    auto refused = to.initHelloRefused();
    refused.setRank(from.rank);
    refused.setHostName(ToText(from.host_name));
    refused.setPid(from.pid);
    refused.setCode(ToWireEnum<wire::Code>(from.code));
    refused.setReason(ToText(from.reason));
  }
  void operator()(const OperatorActed& from) { Write(from, to.initOperatorActed()); }
  void operator()(const ReplicasDiffer& from) {
    auto differ = to.initReplicasDiffer();
    differ.setGroup(from.group);
    differ.setIteration(from.iteration);
    WriteNumbers<Rank>(from.ranks, differ.initRanks(static_cast<unsigned>(from.ranks.size())));
    differ.setReason(ToText(from.reason));
  }
  void operator()(const NumbersAveraged& from) { WriteAveraged(from, to.initNumbersAveraged()); }
  void operator()(const GoalReached& from) {
    auto trained = to.initGoalReached();
    trained.setSteps(from.trained.steps);
    trained.setSamples(from.trained.samples);
  }
  void operator()(const UpdateDropped& from) {
    auto dropped = to.initUpdateDropped();
    dropped.setRank(from.rank);
    dropped.setIteration(from.iteration);
    dropped.setReason(ToText(from.reason));
  }
  void operator()(const QueryAnswered& from) {
    auto answered = to.initQueryAnswered();
    answered.setRank(from.rank);
    answered.setIteration(from.iteration);
    answered.setLocalSteps(from.local_steps);
    answered.setReady(from.ready);
    answered.setReason(ToText(from.reason));
    answered.setNext(from.next);
  }
  void operator()(const ScheduleSet& from) {
    auto set = to.initScheduleSet();
    set.setFirst(from.first);
    WriteNumbers<Rank>(from.members, set.initMembers(static_cast<unsigned>(from.members.size())));
    WriteNumbers<std::int32_t>(from.hosts, set.initHosts(static_cast<unsigned>(from.hosts.size())));
    set.setReason(ToText(from.reason));
  }
  void operator()(const NeighboursSet& from) { WriteNeighbours(from, to.initNeighboursSet()); }
  void operator()(const PlacementSet& from) {
    auto set = to.initPlacementSet();
    set.setEpoch(from.epoch);
    WriteNumbers<Rank>(from.members, set.initMembers(static_cast<unsigned>(from.members.size())));
    WriteNumbers<Iteration>(from.at, set.initAt(static_cast<unsigned>(from.at.size())));
    WriteShards(from.shards, set.initShards(static_cast<unsigned>(from.shards.size())));
    set.setReason(ToText(from.reason));
  }
  void operator()(const PlacementOpened& from) {
    auto opened = to.initPlacementOpened();
    opened.setEpoch(from.epoch);
    WriteNumbers<Rank>(from.members,
                       opened.initMembers(static_cast<unsigned>(from.members.size())));
  }
};

NeighboursSet ReadNeighbours(wire::NeighboursSet::Reader from) {
  NeighboursSet to{.rank = from.getRank(),
                   .at = from.getAt(),
                   .in = {},
                   .out = ReadNumbers<Rank>(from.getOut()),
                   .own_weight = from.getOwnWeight(),
                   .slots = from.getSlots(),
                   .reason = ToString(from.getReason())};
  const auto in = from.getIn();
  to.in.reserve(in.size());
  for (const auto edge : in) {
    to.in.push_back({.rank = edge.getRank(), .weight = edge.getWeight(), .from = edge.getFrom()});
  }
  return to;
}

PlacementSet ReadPlacementSet(wire::PlacementSet::Reader from) {
  return {.epoch = from.getEpoch(),
          .members = ReadNumbers<Rank>(from.getMembers()),
          .at = ReadNumbers<Iteration>(from.getAt()),
          .shards = ReadShards(from.getShards()),
          .reason = ToString(from.getReason())};
}

RunStarted ReadStarted(wire::RunStarted::Reader from) {
  return {.job = ToString(from.getJob()),
          .engine = ToString(from.getEngine()),
          .spec = ToString(from.getSpec()),
          .wall_ns = from.getWallNs(),
          .identity = {from.getIdentityHigh(), from.getIdentityLow()},
          .former = ReadFormer(from.getFormer())};
}

WorkerJoined ReadJoined(wire::WorkerJoined::Reader from) {
  return {.rank = from.getRank(),
          .incarnation = from.getIncarnation(),
          .host_name = ToString(from.getHostName()),
          .pid = from.getPid(),
          .iteration = from.getIteration(),
          .reason = ToString(from.getReason())};
}

WorkerLeft ReadLeft(wire::WorkerLeft::Reader from) {
  return {.rank = from.getRank(),
          .incarnation = from.getIncarnation(),
          .why = ToEnum(from.getWhy(), LeftReason::kPaused, "why"),
          .reason = ToString(from.getReason()),
          .gradients = from.getGradients()};
}

UpdateDropped ReadDropped(wire::UpdateDropped::Reader from) {
  return {.rank = from.getRank(),
          .iteration = from.getIteration(),
          .reason = ToString(from.getReason())};
}

QueryAnswered ReadAnswered(wire::QueryAnswered::Reader from) {
  return {.rank = from.getRank(),
          .iteration = from.getIteration(),
          .local_steps = from.getLocalSteps(),
          .ready = from.getReady(),
          .reason = ToString(from.getReason()),
          .next = from.getNext()};
}

ScheduleSet ReadScheduleSet(wire::ScheduleSet::Reader from) {
  return {.first = from.getFirst(),
          .members = ReadNumbers<Rank>(from.getMembers()),
          .hosts = ReadNumbers<std::int32_t>(from.getHosts()),
          .reason = ToString(from.getReason())};
}

RecordBody ReadBody(wire::Record::Reader from) {
  switch (from.which()) {
    case wire::Record::FROM_WORKER:
      return FromWorker{ReadWorkerEnvelope(from.getFromWorker())};
    case wire::Record::LEASE_EXPIRED:
      return LeaseExpired{.rank = from.getLeaseExpired().getRank(),
                          .incarnation = from.getLeaseExpired().getIncarnation()};
    case wire::Record::PROCESS_ENDED:
      return ProcessEnded{.rank = from.getProcessEnded().getRank(),
                          .incarnation = from.getProcessEnded().getIncarnation()};
    case wire::Record::DEADLINE_REACHED:
      return DeadlineReached{};
    case wire::Record::RUN_STARTED:
      return ReadStarted(from.getRunStarted());
    case wire::Record::WORKER_JOINED:
      return ReadJoined(from.getWorkerJoined());
    case wire::Record::WORKER_LEFT:
      return ReadLeft(from.getWorkerLeft());
    case wire::Record::GROUP_FORMED:
      return ReadFormed(from.getGroupFormed());
    case wire::Record::GROUP_ENDED: {
      const auto ended = from.getGroupEnded();
      return GroupEnded{
          .id = ended.getId(), .ok = ended.getOk(), .reason = ToString(ended.getReason())};
    }
    case wire::Record::ADOPT_ORDERED: {
      const auto ordered = from.getAdoptOrdered();
      return AdoptOrdered{.rank = ordered.getRank(),
                          .source = ordered.getSource(),
                          .reason = ToString(ordered.getReason()),
                          .result = ordered.getResult()};
    }
    case wire::Record::RUN_ENDED:
      return RunEnded{.reason = ToString(from.getRunEnded().getReason()),
                      .finished = from.getRunEnded().getFinished(),
                      .next = from.getRunEnded().getNext()};
    case wire::Record::UPDATE_DROPPED:
      return ReadDropped(from.getUpdateDropped());
    case wire::Record::QUERY_ANSWERED:
      return ReadAnswered(from.getQueryAnswered());
    case wire::Record::SCHEDULE_SET:
      return ReadScheduleSet(from.getScheduleSet());
    case wire::Record::NEIGHBOURS_SET:
      return ReadNeighbours(from.getNeighboursSet());
    case wire::Record::PLACEMENT_SET:
      return ReadPlacementSet(from.getPlacementSet());
    case wire::Record::HISTORY_LOST:
      return HistoryLost{.rank = from.getHistoryLost().getRank(),
                         .incarnation = from.getHistoryLost().getIncarnation()};
    case wire::Record::LINK_CHANGED: {
      const auto changed = from.getLinkChanged();
      return LinkChanged{.a = changed.getA(),
                         .b = changed.getB(),
                         .works = changed.getWorks(),
                         .reason = ToString(changed.getReason())};
    }
    case wire::Record::HELLO_REFUSED: {
      const auto refused = from.getHelloRefused();
      return HelloRefused{.rank = refused.getRank(),
                          .host_name = ToString(refused.getHostName()),
                          .pid = refused.getPid(),
                          .code = ToErrorCode(refused.getCode()),
                          .reason = ToString(refused.getReason())};
    }
    case wire::Record::OPERATOR_ACTED:
      return ReadActed(from.getOperatorActed());
    case wire::Record::REPLICAS_DIFFER: {
      const auto differ = from.getReplicasDiffer();
      return ReplicasDiffer{.group = differ.getGroup(),
                            .iteration = differ.getIteration(),
                            .ranks = ReadNumbers<Rank>(differ.getRanks()),
                            .reason = ToString(differ.getReason())};
    }
    case wire::Record::GOAL_REACHED:
      return GoalReached{{.steps = from.getGoalReached().getSteps(),
                          .samples = from.getGoalReached().getSamples()}};
    case wire::Record::NUMBERS_AVERAGED:
      return ReadAveraged(from.getNumbersAveraged());
    case wire::Record::PLACEMENT_OPENED: {
      const auto opened = from.getPlacementOpened();
      return PlacementOpened{.epoch = opened.getEpoch(),
                             .members = ReadNumbers<Rank>(opened.getMembers())};
    }
  }
  throw Malformed{"a kind of record that this version does not know"};
}

}  // namespace

void Write(const OperatorActed& from, wire::OperatorActed::Builder to) {
  to.setVerb(ToWireEnum<wire::OperatorVerb>(from.verb));
  to.setRank(from.rank);
  to.setHost(ToText(from.host));
  to.setBy(ToText(from.by));
  to.setReason(ToText(from.reason));
  if (!from.spec.empty()) to.setSpec(ToText(from.spec));
  to.setNext(from.next);
}

OperatorActed ReadActed(wire::OperatorActed::Reader from) {
  return {.verb = ToEnum(from.getVerb(), OperatorVerb::kSwitch, "verb"),
          .rank = from.getRank(),
          .host = ToString(from.getHost()),
          .by = ToString(from.getBy()),
          .reason = ToString(from.getReason()),
          .spec = ToString(from.getSpec()),
          .next = from.getNext()};
}

void Write(const Record& from, wire::Record::Builder to) {
  to.setRun(from.run);
  to.setIndex(from.index);
  to.setNowNs(from.now.ns);
  std::visit(WriteBody{to}, from.body);
}

Record ReadRecord(wire::Record::Reader from) {
  return {.run = from.getRun(),
          .index = from.getIndex(),
          .now = {from.getNowNs()},
          .body = ReadBody(from)};
}

void EncodeTo(const Record& record, std::string* out) {
  WireBuilder message;
  Write(record, message.Init<wire::Record>());
  message.ToBytes(out);
}

Result<Record> DecodeRecord(std::string_view bytes) {
  return Read<Record, wire::Record>(bytes, "a record", ReadRecord);
}

}  // namespace prd
