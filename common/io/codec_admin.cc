#include "common/io/codec.h"
#include "common/io/wire.h"

namespace prd {
namespace {

// ---- requests ----

struct WriteRequest {
  wire::AdminRequest::Builder to;

  void operator()(const ListRuns& from) {
    if (from.live) {
      to.setListLiveBelow(from.before);
    } else if (from.before == kNoRun) {
      to.setListRuns();
    } else {
      to.setListRunsBelow(from.before);
    }
  }
  void operator()(const ReadRecords& from) {
    auto read = to.initReadRecords();
    read.setRun(from.run);
    read.setFrom(from.from);
    read.setMaxBytes(from.max_bytes);
    read.setWaitMs(from.wait_ms);
  }
  void operator()(const ReadSnapshot& from) {
    auto read = to.initReadSnapshot();
    read.setRun(from.run);
    read.setFrom(from.from);
  }
  void operator()(const GetStatus&) { to.setGetStatus(); }
  void operator()(const Act& from) {
    auto act = to.initAct();
    act.setJob(ToText(from.job));
    Write(from.what, act.initWhat());
  }
  void operator()(const Prune& from) {
    auto runs = to.initPrune().initRuns(static_cast<unsigned>(from.runs.size()));
    for (unsigned i = 0; i < runs.size(); ++i) runs.set(i, from.runs[i]);
  }
};

AdminRequest ReadRequest(wire::AdminRequest::Reader from) {
  switch (from.which()) {
    case wire::AdminRequest::LIST_RUNS:
      return ListRuns{};
    case wire::AdminRequest::LIST_RUNS_BELOW:
      return ListRuns{.before = from.getListRunsBelow()};
    case wire::AdminRequest::LIST_LIVE_BELOW:
      return ListRuns{.before = from.getListLiveBelow(), .live = true};
    case wire::AdminRequest::READ_RECORDS: {
      const auto read = from.getReadRecords();
      return ReadRecords{.run = read.getRun(),
                         .from = read.getFrom(),
                         .max_bytes = read.getMaxBytes(),
                         .wait_ms = read.getWaitMs()};
    }
    case wire::AdminRequest::READ_SNAPSHOT:
      return ReadSnapshot{.run = from.getReadSnapshot().getRun(),
                          .from = from.getReadSnapshot().getFrom()};
    case wire::AdminRequest::GET_STATUS:
      return GetStatus{};
    case wire::AdminRequest::ACT:
      return Act{.job = ToString(from.getAct().getJob()),
                 .what = ReadActed(from.getAct().getWhat())};
    case wire::AdminRequest::PRUNE: {
      Prune prune;
      for (const RunId run : from.getPrune().getRuns()) prune.runs.push_back(run);
      return prune;
    }
  }
  throw Malformed{"a kind of request that this version does not know"};
}

// ---- replies ----

void WriteRuns(const std::vector<RunInfo>& from, capnp::List<wire::RunInfo>::Builder to) {
  for (unsigned i = 0; i < to.size(); ++i) {
    const RunInfo& info = from[i];
    to[i].setRun(info.run);
    to[i].setJob(ToText(info.job));
    to[i].setEngine(ToText(info.engine));
    to[i].setStartedWallNs(info.started_wall_ns);
    to[i].setEnded(info.ended);
    to[i].setRecords(info.records);
    to[i].setBegun(info.begun);
    to[i].setFinished(info.finished);
    to[i].setEnd(ToText(info.end));
    to[i].setIdentity(info.identity);
    to[i].setFormer(info.former);
    to[i].setNext(info.next);
    to[i].setPaused(info.paused);
    if (!info.owner.empty()) to[i].setOwner(ToText(info.owner));
    to[i].setBytes(info.bytes);
    to[i].setFirst(info.first);
  }
}

RunList ReadRuns(capnp::List<wire::RunInfo>::Reader from, RunId next) {
  RunList to{.runs = {}, .next = next};
  to.runs.reserve(from.size());
  for (const auto info : from) {
    to.runs.push_back({.run = info.getRun(),
                       .job = ToString(info.getJob()),
                       .engine = ToString(info.getEngine()),
                       .started_wall_ns = info.getStartedWallNs(),
                       .ended = info.getEnded(),
                       .records = info.getRecords(),
                       .begun = info.getBegun(),
                       .finished = info.getFinished(),
                       .end = ToString(info.getEnd()),
                       .identity = info.getIdentity(),
                       .former = info.getFormer(),
                       .next = info.getNext(),
                       .paused = info.getPaused(),
                       .owner = ToString(info.getOwner()),
                       .bytes = info.getBytes(),
                       .first = info.getFirst()});
  }
  return to;
}

void WriteStatus(const DaemonStatus& from, wire::DaemonStatus::Builder to) {
  to.setVersion(ToText(from.version));
  to.setPid(from.pid);
  to.setUptimeNs(from.uptime_ns);
  to.setNowNs(from.now.ns);
  auto counters = to.initCounters(static_cast<unsigned>(from.counters.size()));
  for (unsigned i = 0; i < counters.size(); ++i) {
    counters[i].setName(ToText(from.counters[i].first));
    counters[i].setValue(from.counters[i].second);
  }
  auto silences = to.initSilences(static_cast<unsigned>(from.silences.size()));
  for (unsigned i = 0; i < silences.size(); ++i) {
    silences[i].setRun(from.silences[i].run);
    silences[i].setRank(from.silences[i].rank);
    silences[i].setSilentNs(from.silences[i].silent_ns);
  }
}

DaemonStatus ReadStatus(wire::DaemonStatus::Reader from) {
  DaemonStatus to{.version = ToString(from.getVersion()),
                  .pid = from.getPid(),
                  .uptime_ns = from.getUptimeNs(),
                  .now = {from.getNowNs()},
                  .counters = {},
                  .silences = {}};
  for (const auto counter : from.getCounters()) {
    to.counters.emplace_back(ToString(counter.getName()), counter.getValue());
  }
  for (const auto silence : from.getSilences()) {
    to.silences.push_back(
        {.run = silence.getRun(), .rank = silence.getRank(), .silent_ns = silence.getSilentNs()});
  }
  return to;
}

struct WriteReply {
  wire::AdminReply::Builder to;

  void operator()(const RunList& from) {
    const auto size = static_cast<unsigned>(from.runs.size());
    if (from.next == kNoRun) return WriteRuns(from.runs, to.initRunList(size));
    auto page = to.initRunPage();
    page.setNext(from.next);
    WriteRuns(from.runs, page.initRuns(size));
  }
  void operator()(const RecordBatch& from) {
    auto records = to.initRecordBatch(static_cast<unsigned>(from.records.size()));
    for (unsigned i = 0; i < records.size(); ++i) Write(from.records[i], records[i]);
  }
  void operator()(const Snapshot& from) {
    auto snapshot = to.initSnapshot();
    snapshot.setIndex(from.index);
    snapshot.setState({reinterpret_cast<const kj::byte*>(from.state.data()), from.state.size()});
    snapshot.setBytes(from.bytes);
  }
  void operator()(const DaemonStatus& from) { WriteStatus(from, to.initDaemonStatus()); }
  void operator()(const AdminError& from) {
    auto error = to.initError();
    error.setCode(ToWireEnum<wire::Code>(from.code));
    error.setMessage(ToText(from.message));
  }
  void operator()(const Acted& from) { to.setActed(ToText(from.text)); }
};

AdminReply ReadReply(wire::AdminReply::Reader from) {
  switch (from.which()) {
    case wire::AdminReply::RUN_LIST:
      return ReadRuns(from.getRunList(), kNoRun);
    case wire::AdminReply::RUN_PAGE:
      return ReadRuns(from.getRunPage().getRuns(), from.getRunPage().getNext());
    case wire::AdminReply::RECORD_BATCH: {
      const auto records = from.getRecordBatch();
      RecordBatch to;
      to.records.reserve(records.size());
      for (const auto record : records) to.records.push_back(ReadRecord(record));
      return to;
    }
    case wire::AdminReply::SNAPSHOT: {
      const auto snapshot = from.getSnapshot();
      const auto state = snapshot.getState();
      return Snapshot{.index = snapshot.getIndex(),
                      .state = {reinterpret_cast<const char*>(state.begin()), state.size()},
                      .bytes = snapshot.getBytes()};
    }
    case wire::AdminReply::DAEMON_STATUS:
      return ReadStatus(from.getDaemonStatus());
    case wire::AdminReply::ERROR:
      return AdminError{.code = ToErrorCode(from.getError().getCode()),
                        .message = ToString(from.getError().getMessage())};
    case wire::AdminReply::ACTED:
      return Acted{ToString(from.getActed())};
  }
  throw Malformed{"a kind of reply that this version does not know"};
}

}  // namespace

std::string Encode(const AdminRequest& request) {
  WireBuilder message;
  std::visit(WriteRequest{message.Init<wire::AdminRequest>()}, request);
  return message.ToBytes();
}

std::string Encode(const AdminReply& reply) {
  WireBuilder message;
  std::visit(WriteReply{message.Init<wire::AdminReply>()}, reply);
  return message.ToBytes();
}

Result<AdminRequest> DecodeAdminRequest(std::string_view bytes) {
  return Read<AdminRequest, wire::AdminRequest>(bytes, "an admin request", ReadRequest);
}

Result<AdminReply> DecodeAdminReply(std::string_view bytes) {
  return Read<AdminReply, wire::AdminReply>(bytes, "an admin reply", ReadReply);
}

}  // namespace prd
