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

template <typename... Ts>
void DrawKind(Prng& prng, std::size_t kind, std::variant<Ts...>& body);

// Draws a value for any field by its type.
class Draw {
 public:
  // `kind` is that of the body.
  explicit Draw(Prng& prng, std::size_t kind = 0) : prng_(prng), kind_(kind) {}

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
  template <Described T>
  void operator()(T& m) {
    Visit(m, *this);
  }
  Draw& operator()(const char*, auto& field, FieldTraits = kPlain, const char* = nullptr) {
    (*this)(field);
    return *this;
  }

  void operator()(Payload& value) { Enum(value, Payload::kChange); }
  void operator()(Membership& value) { Enum(value, Membership::kSchedule); }
  void operator()(Outcome& value) { Enum(value, Outcome::kAborted); }
  void operator()(GroupKind& value) { Enum(value, GroupKind::kAverage); }
  void operator()(OperatorVerb& value) { Enum(value, OperatorVerb::kSwitch); }
  void operator()(LeftReason& value) { Enum(value, LeftReason::kFailed); }
  void operator()(Code& value) {  // of an error
    value = static_cast<Code>(1 + prng_.Below(static_cast<std::uint64_t>(Code::kInternal)));
  }
  void operator()(OnNonfinite& value) { Enum(value, OnNonfinite::kStop); }
  void operator()(HasGradients& value) { Enum(value, HasGradients::kLater); }
  void operator()(MeshSecurity& value) { Enum(value, MeshSecurity::kCurve); }

  void operator()(RunIdentity& m) { Fields(m.high, m.low); }
  void operator()(LinkToken& m) { Fields(m.high, m.low); }
  void operator()(MeshKey& m) {
    for (std::uint8_t& byte : m.bytes) (*this)(byte);
  }
  void operator()(Plan& m) {
    (*this)(m.every);
    m.every = std::max(m.every, 1u);
    DrawKind(prng_, prng_.Below(3), m.by);
  }
  void operator()(Neighbourhood& m) {
    Visit(m, *this);
    m.from.resize(m.in.size());
    m.slots = std::max(m.slots, 1u);
  }
  void operator()(WorkerBody& m) { DrawKind(prng_, kind_, m); }
  void operator()(ControllerBody& m) { DrawKind(prng_, kind_, m); }
  void operator()(RecordBody& m) { DrawKind(prng_, kind_, m); }
  void operator()(FromWorker& m) { m.envelope = RandomWorkerEnvelope(prng_, prng_.Next()); }
  void operator()(Record& m) { m = RandomRecord(prng_, prng_.Next()); }

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
  const std::size_t kind_;
};

template <typename... Ts>
void DrawKind(Prng& prng, std::size_t kind, std::variant<Ts...>& body) {
  kind %= sizeof...(Ts);
  [&]<std::size_t... Is>(std::index_sequence<Is...>) {
    ((kind == Is ? Draw(prng)(body.template emplace<Is>()) : void()), ...);
  }
  (std::index_sequence_for<Ts...>{});
}

template <typename T>
T Drawn(Prng& prng, std::size_t kind) {
  T m;
  Visit(m, Draw(prng, kind));
  return m;
}

}  // namespace

WorkerEnvelope RandomWorkerEnvelope(Prng& prng, std::size_t kind) {
  return Drawn<WorkerEnvelope>(prng, kind);
}

ControllerEnvelope RandomControllerEnvelope(Prng& prng, std::size_t kind) {
  return Drawn<ControllerEnvelope>(prng, kind);
}

Record RandomRecord(Prng& prng, std::size_t kind) { return Drawn<Record>(prng, kind); }

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
