#include "common/io/codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/text.h"
#include "common/io/layout.h"
#include "common/io/wire.h"
#include "schemas/admin.capnp.h"
#include "schemas/control.capnp.h"
#include "schemas/history.capnp.h"

namespace prd {
namespace {

// ---- the admin protocol's unions ----
//
// One kind of request, and one of reply, is several in the schema.

struct ListNewest {
  static constexpr const char* kName = "list_runs";
};
struct ListBelow {
  RunId before = kNoRun;
  static constexpr const char* kName = "list_runs_below";
  static void Visit(auto& m, auto&& field) { field("before", m.before); }
};
struct ListLive {
  RunId before = kNoRun;
  static constexpr const char* kName = "list_live_below";
  static void Visit(auto& m, auto&& field) { field("before", m.before); }
};
struct LastPage {
  std::vector<RunInfo> runs;
  static constexpr const char* kName = "run_list";
  static void Visit(auto& m, auto&& field) { field("runs", m.runs); }
};

struct Request {
  std::variant<ListNewest, ListBelow, ListLive, ReadRecords, ReadSnapshot, GetStatus, Act, Prune>
      body;
  static void Visit(auto& m, auto&& field) { field("body", m.body); }
};
struct Reply {
  std::variant<LastPage, RunList, RecordBatch, Snapshot, DaemonStatus, AdminError, Acted> body;
  static void Visit(auto& m, auto&& field) { field("body", m.body); }
};

void KnowLayouts() {
  static const bool known = [] {
    Bind<WorkerEnvelope>(capnp::Schema::from<wire::WorkerEnvelope>());
    Bind<ControllerEnvelope>(capnp::Schema::from<wire::ControllerEnvelope>());
    Bind<Record>(capnp::Schema::from<wire::Record>());
    Bind<Request>(capnp::Schema::from<wire::AdminRequest>());
    Bind<Reply>(capnp::Schema::from<wire::AdminReply>());
    return true;
  }();
  (void)known;
}

// ---- structs to builders ----

template <typename T>
void Write(const T& from, capnp::AnyStruct::Builder to);

class Writer {
  using Pointers = capnp::List<capnp::AnyPointer>::Builder;

 public:
  Writer(capnp::AnyStruct::Builder to, const StructLayout& layout)
      : to_(to),
        data_(to.getDataSection().begin()),
        pointers_(layout.pointers > 0 ? to.getPointerSection() : Pointers(nullptr)),
        slot_(layout.slots.data()) {}

  template <typename T>
  Writer& operator()(const char*, const T& value, FieldTraits traits = kPlain,
                     const char* = nullptr) {
    if constexpr (Union<T>) {
      std::visit(
          [&](const auto& kind) {
            PutKind(UnionLayout<T>::kinds[value.index()], UnionLayout<T>::tag_at, kind);
          },
          value);
    } else if constexpr (Halves<T>) {
      Put(*slot_++, value.high, traits);
      Put(*slot_++, value.low, traits);
    } else {
      const Slot& slot = *slot_++;
      if ((traits & kSparse) == 0 || !(value == T())) Put(slot, value, traits);
    }
    return *this;
  }

 private:
  void Store(std::uint32_t at, auto value, std::uint64_t mask) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits ^= mask;
    std::memcpy(data_ + at, &bits, sizeof value);
  }

  template <typename T>
  void Put(const Slot& slot, const T& value, FieldTraits traits) {
    if constexpr (std::same_as<T, bool>) {
      const unsigned bit = value ^ (slot.mask != 0);
      data_[slot.at / 8] |= static_cast<kj::byte>(bit << slot.at % 8);
    } else if constexpr (Number<T>) {
      Store(slot.at, value, slot.mask);
    } else if constexpr (std::is_enum_v<T>) {
      Store(slot.at, static_cast<std::uint16_t>(value), slot.mask);
    } else if constexpr (std::same_as<T, Instant>) {
      Store(slot.at, value.ns, slot.mask);
    } else if constexpr (std::same_as<T, std::string>) {
      if ((traits & kBytes) != 0) {
        PutBytes(pointers_[slot.at], value.data(), value.size());
      } else {
        pointers_[slot.at].template setAs<capnp::Text>({value.c_str(), value.size()});
      }
    } else if constexpr (std::same_as<T, MeshKey>) {
      PutBytes(pointers_[slot.at], value.bytes.data(), value.bytes.size());
    } else if constexpr (List<T>) {
      PutList<typename T::value_type>(pointers_[slot.at], value);
    } else {
      Write(value, Apart<T>(slot.at));
    }
  }

  template <typename T>
  capnp::AnyStruct::Builder Apart(std::uint32_t at) {
    return pointers_[at].initAsAnyStruct(layout_of<T>.words, layout_of<T>.pointers);
  }

  static void PutBytes(capnp::AnyPointer::Builder to, const void* bytes, std::size_t size) {
    to.setAs<capnp::Data>({static_cast<const kj::byte*>(bytes), size});
  }

  template <typename E>
  static void PutList(capnp::AnyPointer::Builder to, const auto& items) {
    const auto size = static_cast<unsigned>(items.size());
    unsigned i = 0;
    if constexpr (Number<E>) {
      auto list = to.initAs<capnp::List<E>>(size);
      for (const E item : items) list.set(i++, item);
    } else if constexpr (std::same_as<E, std::string>) {
      auto list = to.initAs<capnp::List<capnp::Text>>(size);
      for (const E& item : items) list.set(i++, {item.c_str(), item.size()});
    } else {
      auto list = to.initAsListOfAnyStruct(layout_of<E>.words, layout_of<E>.pointers, size);
      for (const E& item : items) Write(item, list[i++]);
    }
  }

  template <typename Kind>
  void PutKind(const KindLayout& layout, std::uint32_t tag_at, const Kind& kind) {
    Store(tag_at, layout.tag, 0);
    Visit(kind, Writer(layout.apart ? Apart<Kind>(layout.at) : to_, layout_of<Kind>));
  }

  capnp::AnyStruct::Builder to_;
  kj::byte* data_;
  Pointers pointers_;
  const Slot* slot_;
};

template <typename T>
void Write(const T& from, capnp::AnyStruct::Builder to) {
  Visit(from, Writer(to, layout_of<T>));
}

// ---- readers to structs ----

template <typename T>
void Read(capnp::AnyStruct::Reader from, T* to);

// What must hold between the fields of a struct.
void Check(const auto&) {}
void Check(const Plan& plan) {
  if (plan.every == 0) throw Malformed{"steps per signal: found 0, allowed is 1 or more"};
}
void Check(const Neighbourhood& of) {
  if (of.slots > 0 && of.from.size() == of.in.size()) return;
  throw Malformed{"neighbourhood: found " + std::to_string(of.slots) + " slots, and " +
                  std::to_string(of.from.size()) + " first iterations of " +
                  std::to_string(of.in.size()) + " neighbours"};
}

[[noreturn]] void Refuse(const char* name, const std::string& why) {
  std::string words = name;
  std::replace(words.begin(), words.end(), '_', ' ');
  throw Malformed{words + ": " + why};
}

class Reader {
  using Pointers = capnp::List<capnp::AnyPointer>::Reader;

 public:
  Reader(capnp::AnyStruct::Reader from, const StructLayout& layout)
      : from_(from),
        data_(Whole(from.getDataSection(), layout.words * sizeof(capnp::word))),
        pointers_(layout.pointers > 0 ? from.getPointerSection() : Pointers()),
        slot_(layout.slots.data()) {}

  template <typename T>
  Reader& operator()(const char* name, T& value, FieldTraits traits = kPlain,
                     const char* = nullptr) {
    if constexpr (Union<T>) {
      TakeUnion(&value);
    } else if constexpr (Halves<T>) {
      Take(*slot_++, name, &value.high, traits);
      Take(*slot_++, name, &value.low, traits);
    } else {
      Take(*slot_++, name, &value, traits);
    }
    return *this;
  }

 private:
  // The data section, with zeros for what an older sender's struct has no room for.
  const kj::byte* Whole(kj::ArrayPtr<const kj::byte> data, std::size_t size) {
    if (data.size() >= size) return data.begin();
    std::copy(data.begin(), data.end(), padded_.begin());
    std::fill(padded_.begin() + data.size(), padded_.begin() + size, kj::byte{0});
    return padded_.data();
  }
  template <typename T>
  T Load(const Slot& slot) const {
    std::uint64_t bits = 0;
    std::memcpy(&bits, data_ + slot.at, sizeof(T));
    bits ^= slot.mask;
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  capnp::AnyPointer::Reader Pointer(std::uint32_t at) const {
    return at < pointers_.size() ? pointers_[at] : capnp::AnyPointer::Reader();
  }

  template <typename T>
  void Take(const Slot& slot, const char* name, T* value, FieldTraits traits) const {
    if constexpr (std::same_as<T, bool>) {
      *value = (data_[slot.at / 8] >> slot.at % 8 & 1) != (slot.mask != 0);
    } else if constexpr (Number<T>) {
      *value = Load<T>(slot);
      if constexpr (std::is_floating_point_v<T>) {
        // A weight that is not a number would spread to every model it touches, a loss to every
        // mean.
        if ((traits & kFinite) != 0 && !std::isfinite(*value)) {
          Refuse(name, "allowed is a finite number");
        }
      }
    } else if constexpr (std::is_enum_v<T>) {
      const auto found = Load<std::uint16_t>(slot);
      if (found > EnumLayout<T>::last) {
        Refuse(name, "found " + std::to_string(found) + ", allowed is 0 to " +
                         std::to_string(EnumLayout<T>::last));
      }
      *value = static_cast<T>(found);
      if constexpr (std::same_as<T, Code>) {  // of a refusal, or an error
        if (*value == Code::kOk) Refuse(name, "found ok, allowed is an error");
      }
    } else if constexpr (std::same_as<T, Instant>) {
      value->ns = Load<decltype(value->ns)>(slot);
    } else if constexpr (std::same_as<T, std::string>) {
      if ((traits & kBytes) != 0) {
        const auto bytes = Pointer(slot.at).getAs<capnp::Data>();
        value->assign(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
      } else {
        const auto text = Pointer(slot.at).getAs<capnp::Text>();
        value->assign(text.begin(), text.size());
      }
    } else if constexpr (std::same_as<T, MeshKey>) {
      const auto bytes = Pointer(slot.at).getAs<capnp::Data>();
      if (bytes.size() == 0) return;
      if (bytes.size() != value->bytes.size()) {
        Refuse(name, "found " + std::to_string(bytes.size()) + " bytes, allowed are " +
                         std::to_string(value->bytes.size()));
      }
      std::copy(bytes.begin(), bytes.end(), value->bytes.begin());
    } else if constexpr (List<T>) {
      *value = T(ListOf<typename T::value_type>(Pointer(slot.at)));
    } else {
      Read(Pointer(slot.at).getAs<capnp::AnyStruct>(), value);
    }
  }

  template <typename E>
  static std::vector<E> ListOf(capnp::AnyPointer::Reader from) {
    std::vector<E> items;
    if constexpr (Number<E>) {
      const auto list = from.getAs<capnp::List<E>>();
      items.reserve(list.size());
      for (const E item : list) items.push_back(item);
    } else if constexpr (std::same_as<E, std::string>) {
      const auto list = from.getAs<capnp::List<capnp::Text>>();
      items.reserve(list.size());
      for (const capnp::Text::Reader item : list) items.emplace_back(item.cStr(), item.size());
    } else {
      // Lists of structs are read alike, whatever the struct.
      const auto list = from.getAs<capnp::List<wire::Trained>>();
      items.reserve(list.size());
      for (const auto item : list) Read<E>(item, &items.emplace_back());
    }
    return items;
  }

  template <Union T>
  void TakeUnion(T* value) const {
    const auto tag = Load<std::uint16_t>({.at = UnionLayout<T>::tag_at});
    const bool known = [&]<std::size_t... Is>(std::index_sequence<Is...>) {
      return ((UnionLayout<T>::kinds[Is].tag == tag && (TakeKind<Is>(value), true)) || ...);
    }
    (std::make_index_sequence<std::variant_size_v<Variant<T>>>());
    if (!known) throw Malformed{"a kind that this version does not know"};
  }
  template <std::size_t I, Union T>
  void TakeKind(T* value) const {
    auto& kind = value->template emplace<I>();
    const KindLayout& layout = UnionLayout<T>::kinds[I];
    Read(layout.apart ? Pointer(layout.at).getAs<capnp::AnyStruct>() : from_, &kind);
  }

  capnp::AnyStruct::Reader from_;
  std::array<kj::byte, kMaxWords * sizeof(capnp::word)> padded_;
  const kj::byte* data_;
  Pointers pointers_;
  const Slot* slot_;
};

template <typename T>
void Read(capnp::AnyStruct::Reader from, T* to) {
  Visit(*to, Reader(from, layout_of<T>));
  Check(*to);
}

// ---- messages ----

template <typename T>
void EncodeMessage(const T& from, std::string* out) {
  KnowLayouts();
  WireBuilder message;
  Write(from, message.Init(layout_of<T>.words, layout_of<T>.pointers));
  message.ToBytes(out);
}

template <typename T>
T Taken(capnp::AnyStruct::Reader from) {
  // Not of the first kind to begin with: a Hello, and a record of one, are slow to make.
  using Body = Variant<decltype(T::body)>;
  T to{.body = std::variant_alternative_t<std::variant_size_v<Body> - 1, Body>()};
  Read(from, &to);
  return to;
}

// `what` is for the reason: "a worker's message".
template <typename T>
Result<T> Decode(std::string_view bytes, const char* what) {
  KnowLayouts();
  std::string why;
  try {
    WireReader message(bytes);
    return Taken<T>(message.Get());
  } catch (const Malformed& error) {
    why = error.reason;
  } catch (const kj::Exception& error) {
    why = error.getDescription().cStr();
  }
  return Status(Code::kInvalidArgument, std::string(what) + " that cannot be read: " + why);
}

}  // namespace

void EncodeTo(const WorkerEnvelope& envelope, std::string* out) { EncodeMessage(envelope, out); }
void EncodeTo(const ControllerEnvelope& envelope, std::string* out) {
  EncodeMessage(envelope, out);
}
void EncodeTo(const Record& record, std::string* out) { EncodeMessage(record, out); }

void EncodeTo(const AdminRequest& request, std::string* out) {
  Request to;
  if (const auto* list = std::get_if<ListRuns>(&request)) {
    if (list->live) {
      to.body = ListLive{list->before};
    } else if (list->before != kNoRun) {
      to.body = ListBelow{list->before};
    }
  } else {
    std::visit(
        [&to]<typename Kind>(const Kind& kind) {
          if constexpr (!std::same_as<Kind, ListRuns>) to.body = kind;
        },
        request);
  }
  EncodeMessage(to, out);
}

void EncodeTo(const AdminReply& reply, std::string* out) {
  Reply to;
  const auto* list = std::get_if<RunList>(&reply);
  if (list != nullptr && list->next == kNoRun) {
    to.body = LastPage{list->runs};
  } else {
    std::visit([&to](const auto& kind) { to.body = kind; }, reply);
  }
  EncodeMessage(to, out);
}

Result<WorkerEnvelope> DecodeWorkerEnvelope(std::string_view bytes) {
  Result<WorkerEnvelope> envelope = Decode<WorkerEnvelope>(bytes, "a worker's message");
  if (!envelope.ok()) return envelope;
  const auto cut = [](std::string& text) { text.resize(CutText(text).size()); };
  if (auto* finished = std::get_if<Finished>(&envelope->body)) cut(finished->detail);
  if (auto* adopted = std::get_if<Adopted>(&envelope->body)) cut(adopted->detail);
  if (auto* leave = std::get_if<Leave>(&envelope->body)) cut(leave->reason);
  if (auto* stop = std::get_if<StopJob>(&envelope->body)) cut(stop->reason);
  return envelope;
}

Result<ControllerEnvelope> DecodeControllerEnvelope(std::string_view bytes) {
  return Decode<ControllerEnvelope>(bytes, "a controller's message");
}

Result<Record> DecodeRecord(std::string_view bytes) { return Decode<Record>(bytes, "a record"); }

Result<AdminRequest> DecodeAdminRequest(std::string_view bytes) {
  Result<Request> from = Decode<Request>(bytes, "an admin request");
  if (!from.ok()) return from.status();
  return std::visit(
      []<typename Kind>(Kind& kind) -> AdminRequest {
        if constexpr (std::same_as<Kind, ListNewest>) {
          return ListRuns{};
        } else if constexpr (std::same_as<Kind, ListBelow> || std::same_as<Kind, ListLive>) {
          return ListRuns{.before = kind.before, .live = std::same_as<Kind, ListLive>};
        } else {
          return std::move(kind);
        }
      },
      from->body);
}

Result<AdminReply> DecodeAdminReply(std::string_view bytes) {
  Result<Reply> from = Decode<Reply>(bytes, "an admin reply");
  if (!from.ok()) return from.status();
  return std::visit(
      []<typename Kind>(Kind& kind) -> AdminReply {
        if constexpr (std::same_as<Kind, LastPage>) {
          return RunList{.runs = std::move(kind.runs)};
        } else {
          return std::move(kind);
        }
      },
      from->body);
}

}  // namespace prd
