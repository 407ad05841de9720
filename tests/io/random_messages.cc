#include "tests/io/random_messages.h"

#include <concepts>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/visit.h"

namespace prd {
namespace {

template <typename T>
concept ListsFields = requires(T& m, int visitor) {
  Visit(m, visitor);
};

// Draws a value for any field by its type.
class Draw {
 public:
  explicit Draw(Prng& prng) : prng_(prng) {}

  template <std::integral T>
  void operator()(T& value) {
    switch (prng_.Below(4)) {
      case 0:
        value = std::numeric_limits<T>::min();
        break;
      case 1:
        value = std::numeric_limits<T>::max();
        break;
      default:
        value = static_cast<T>(prng_.Next());
    }
  }
  void operator()(bool& value) { value = prng_.Below(2) == 1; }
  void operator()(double& value) { value = (prng_.Unit() - 0.5) * 1e9; }
  void operator()(Instant& value) { (*this)(value.ns); }
  void operator()(std::string& value) {
    value.resize(prng_.Below(3) == 0 ? 0 : prng_.Below(40));
    for (char& c : value) c = static_cast<char>(prng_.Next());
  }
  template <typename T>
  void operator()(std::vector<T>& values) {
    values.resize(prng_.Below(5));
    for (T& value : values) (*this)(value);
  }
  template <typename T>
  void operator()(SharedList<T>& values) {
    (*this)(values.Mutable());
  }
  template <typename A, typename B>
  void operator()(std::pair<A, B>& value) {
    (*this)(value.first);
    (*this)(value.second);
  }
  template <ListsFields T>
  void operator()(T& m) {
    Visit(m, *this);
  }
  template <typename T>
  Draw& operator()(const char*, T& field, Visible = Visible::kAlways) {
    (*this)(field);
    return *this;
  }
  // Kinds without fields.
  template <typename T>
  requires(std::is_empty_v<T> && !ListsFields<T>) void operator()(T&) {}

  void operator()(Payload& value) { Enum(value, Payload::kChange); }
  void operator()(Membership& value) { Enum(value, Membership::kSchedule); }
  void operator()(Outcome& value) { Enum(value, Outcome::kAborted); }
  void operator()(GroupKind& value) { Enum(value, GroupKind::kAverage); }
  void operator()(OperatorVerb& value) { Enum(value, OperatorVerb::kSwitch); }
  void operator()(LeftReason& value) { Enum(value, LeftReason::kPaused); }
  void operator()(Code& value) {  // of an error
    value = static_cast<Code>(1 + prng_.Below(static_cast<std::uint64_t>(Code::kInternal)));
  }

  void operator()(OnNonfinite& value) { Enum(value, OnNonfinite::kStop); }

  void operator()(RunIdentity& m) { Fields(m.high, m.low); }
  void operator()(LinkToken& m) { Fields(m.high, m.low); }
  void operator()(HasGradients& value) { Enum(value, HasGradients::kLater); }
  void operator()(MeshSecurity& value) { Enum(value, MeshSecurity::kCurve); }
  void operator()(MeshKey& m) {
    for (std::uint8_t& byte : m.bytes) (*this)(byte);
  }
  void operator()(Trained& m) { Fields(m.steps, m.samples); }
  void operator()(JobProgress& m) { Fields(m.trained, m.workers, m.done); }
  void operator()(Welcome& m) {
    Fields(m.run, m.identity, m.rank, m.job, m.engine, m.plan, m.workers, m.lease_ms,
           m.heartbeat_ms, m.own, m.goal, m.on_nonfinite, m.mesh_security, m.device_network_trusted,
           m.job_calls);
  }
  void operator()(Plan& m) {
    (*this)(m.every);
    m.every = std::max(m.every, 1u);
    const std::uint64_t kind = prng_.Below(3);
    if (kind == 1) m.by = NeighbourPlan{};
    if (kind == 2) m.by = StorePlan{};
    std::visit(*this, m.by);
  }
  void operator()(GroupPlan& m) {
    Fields(m.payload, m.members, m.any_time, m.run_ahead, m.newest_only, m.asks, m.delayed_ack,
           m.keep_initial, m.outer_rate);
  }
  void operator()(NeighbourPlan& m) { Fields(m.staleness, m.backups, m.serial); }
  void operator()(StorePlan& m) { Fields(m.staleness, m.staleness_aware); }
  void operator()(GroupMember& m) {
    Fields(m.rank, m.incarnation, m.weight, m.host, m.endpoints, m.passive, m.mesh_key);
  }
  void operator()(Group& m) {
    Fields(m.id, m.kind, m.members, m.iteration, m.initial_weight, m.ring_only, m.digest, m.last,
           m.reason);
  }
  void operator()(Abort& m) { Fields(m.group, m.reason, m.undone); }
  void operator()(Adopt& m) { Fields(m.source, m.reason, m.result); }
  void operator()(QueryReply& m) { Fields(m.iteration, m.local_steps, m.ready, m.next, m.workers); }
  void operator()(Opened& m) { Fields(m.epoch); }
  void operator()(Probe& m) { Fields(m.targets); }
  void operator()(Members& m) { Fields(m.members); }
  void operator()(EndRun& m) { Fields(m.reason); }
  void operator()(Announce& m) { Fields(m.members, m.copies); }
  void operator()(Gone& m) { Fields(m.incarnations); }
  void operator()(NumbersMean& m) { Fields(m.call, m.values, m.wrong); }
  void operator()(HeartbeatAck& m) { Fields(m.waits_for); }
  void operator()(Neighbourhood& m) {
    Fields(m.in, m.from, m.out, m.own_weight, m.slots, m.at, m.reason);
    m.from.resize(m.in.size());
    m.slots = std::max(m.slots, 1u);
  }
  void operator()(Placement& m) { Fields(m.epoch, m.members, m.shards, m.at, m.reason); }
  void operator()(Schedule& m) { Fields(m.first, m.members, m.hosts, m.reason); }
  void operator()(Released& m) { Fields(m.reason); }
  void operator()(Refused& m) { Fields(m.code, m.reason, m.retry_ms); }

  void operator()(FromWorker& m) { m.envelope = RandomWorkerEnvelope(prng_, prng_.Next()); }
  void operator()(Record& m) { m = RandomRecord(prng_, prng_.Next()); }

  void operator()(ReadRecords& m) { Fields(m.run, m.from, m.max_bytes, m.wait_ms); }
  void operator()(ListRuns& m) { Fields(m.before, m.live); }
  void operator()(ReadSnapshot& m) { Fields(m.run, m.from); }
  void operator()(RunInfo& m) {
    Fields(m.run, m.job, m.engine, m.started_wall_ns, m.ended, m.records, m.begun, m.finished,
           m.end, m.identity, m.former, m.next, m.paused, m.owner, m.bytes, m.first);
  }
  void operator()(RunList& m) { Fields(m.runs, m.next); }
  void operator()(RecordBatch& m) { Fields(m.records); }
  void operator()(Snapshot& m) { Fields(m.index, m.state, m.bytes); }
  void operator()(WorkerSilence& m) { Fields(m.run, m.rank, m.silent_ns); }
  void operator()(DaemonStatus& m) {
    Fields(m.version, m.pid, m.uptime_ns, m.now, m.counters, m.silences);
  }
  void operator()(AdminError& m) { Fields(m.code, m.message); }
  void operator()(Act& m) { Fields(m.job, m.what); }
  void operator()(Prune& m) { Fields(m.runs); }
  void operator()(Acted& m) { Fields(m.text); }

  template <typename... Ts>
  void Fields(Ts&... fields) {
    ((*this)(fields), ...);
  }

 private:
  template <typename E>
  void Enum(E& value, E last) {
    value = static_cast<E>(prng_.Below(static_cast<std::uint64_t>(last) + 1));
  }

  Prng& prng_;
};

template <typename... Ts>
void DrawKind(Prng& prng, std::size_t kind, std::variant<Ts...>& body) {
  kind %= sizeof...(Ts);
  [&]<std::size_t... Is>(std::index_sequence<Is...>) {
    ((kind == Is ? Draw(prng)(body.template emplace<Is>()) : void()), ...);
  }
  (std::index_sequence_for<Ts...>{});
}

}  // namespace

WorkerEnvelope RandomWorkerEnvelope(Prng& prng, std::size_t kind) {
  WorkerEnvelope envelope;
  Draw(prng).Fields(envelope.run, envelope.identity, envelope.rank, envelope.incarnation,
                    envelope.seq, envelope.ack, envelope.oldest, envelope.token);
  DrawKind(prng, kind, envelope.body);
  return envelope;
}

ControllerEnvelope RandomControllerEnvelope(Prng& prng, std::size_t kind) {
  ControllerEnvelope envelope;
  Draw(prng).Fields(envelope.identity, envelope.incarnation, envelope.seq, envelope.ack,
                    envelope.progress);
  DrawKind(prng, kind, envelope.body);
  return envelope;
}

Record RandomRecord(Prng& prng, std::size_t kind) {
  Record record;
  Draw(prng).Fields(record.run, record.index, record.now);
  DrawKind(prng, kind, record.body);
  return record;
}

AdminRequest RandomAdminRequest(Prng& prng, std::size_t kind) {
  AdminRequest request;
  DrawKind(prng, kind, request);
  return request;
}

AdminReply RandomAdminReply(Prng& prng, std::size_t kind) {
  AdminReply reply;
  DrawKind(prng, kind, reply);
  return reply;
}

}  // namespace prd
