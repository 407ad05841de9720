// One description of a state, used three ways: saved, loaded and hashed.
//
// A class lists its fields once, in a member function
//     void Archive(StateArchive& ar) { ar(x_, y_, workers_); }
// or, for what others also visit, by name (visit.h), and gets a snapshot (Saver), its inverse
// (Loader) and a hash of the snapshot. The format is private to one version of prd and starts with
// a version the owner writes; integers are little-endian, containers carry a length. A damaged
// snapshot never makes the loader read out of bounds or allocate more than the snapshot's own
// length allows: ok() turns false instead.
#ifndef PRD_COMMON_BASE_ARCHIVE_H_
#define PRD_COMMON_BASE_ARCHIVE_H_

#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/time.h"
#include "common/base/visit.h"

namespace prd {

static_assert(std::endian::native == std::endian::little, "prd runs on little-endian machines");

class StateArchive {
 public:
  static StateArchive Saver() { return StateArchive(true, {}); }
  // Saves for comparison only: owners leave out what may differ between equal states.
  static StateArchive Hasher() {
    StateArchive ar(true, {});
    ar.hashing_ = true;
    return ar;
  }
  static StateArchive Loader(std::string_view bytes) { return StateArchive(false, bytes); }

  bool saving() const { return saving_; }
  bool hashing() const { return hashing_; }
  // False once a load met bytes that do not fit; everything read after that is zero or empty.
  bool ok() const { return ok_; }
  // Marks a load as failed: for owners whose fields must agree with each other.
  void Fail() { ok_ = false; }
  // True when a load has consumed every byte.
  bool AtEnd() const { return in_.empty(); }
  const std::string& bytes() const { return out_; }

  template <typename... Ts>
  void operator()(Ts&... fields) {
    (Field(fields), ...);
  }

 private:
  StateArchive(bool saving, std::string_view in) : saving_(saving), in_(in) {}

  void Raw(void* data, std::size_t size) {
    if (saving_) {
      out_.append(static_cast<const char*>(data), size);
    } else if (ok_ && in_.size() >= size) {
      std::memcpy(data, in_.data(), size);
      in_.remove_prefix(size);
    } else {
      ok_ = false;
      std::memset(data, 0, size);
    }
  }

  // The length of a container; a loaded one is at most what the remaining bytes could hold.
  std::size_t Length(std::size_t size) {
    std::uint64_t length = size;
    Raw(&length, sizeof length);
    if (!saving_ && length > in_.size()) {
      ok_ = false;
      length = 0;
    }
    return static_cast<std::size_t>(length);
  }

  template <typename T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) void Field(T& value) {
    Raw(&value, sizeof value);
  }
  void Field(bool& value) {
    std::uint8_t byte = value ? 1 : 0;
    Raw(&byte, 1);
    value = byte != 0;
  }
  void Field(Instant& value) { Field(value.ns); }
  void Field(std::string& value) {
    value.resize(Length(value.size()));
    Raw(value.data(), value.size());
  }
  template <typename A, typename B>
  void Field(std::pair<A, B>& value) {
    Field(value.first);
    Field(value.second);
  }
  template <typename T>
  void Field(std::optional<T>& value) {
    bool present = value.has_value();
    Field(present);
    if (!saving_) value = present ? std::optional<T>(T{}) : std::nullopt;
    if (value) Field(*value);
  }
  template <typename T>
  void Field(std::vector<T>& value) {
    Sequence(value);
  }
  template <typename T>
  void Field(std::deque<T>& value) {
    Sequence(value);
  }
  // The index of the alternative, then its fields.
  template <typename... Ts>
  void Field(std::variant<Ts...>& value) {
    std::uint8_t index = static_cast<std::uint8_t>(value.index());
    Field(index);
    if (!saving_) Emplace(value, index, std::index_sequence_for<Ts...>{});
    std::visit([this](auto& alternative) { this->Field(alternative); }, value);
  }
  template <typename K, typename V>
  void Field(std::map<K, V>& value) {
    const std::size_t length = Length(value.size());
    if (saving_) {
      for (auto& [key, mapped] : value) {
        K copy = key;
        Field(copy);
        Field(mapped);
      }
      return;
    }
    value.clear();
    for (std::size_t i = 0; i < length && ok_; ++i) {
      K key{};
      Field(key);
      Field(value[key]);
    }
  }
  template <typename K>
  void Field(std::set<K>& value) {
    const std::size_t length = Length(value.size());
    if (saving_) {
      for (K key : value) Field(key);
      return;
    }
    value.clear();
    for (std::size_t i = 0; i < length && ok_; ++i) {
      K key{};
      Field(key);
      value.insert(key);
    }
  }
  template <typename T>
  requires requires(T& t, StateArchive& ar) { t.Archive(ar); }
  void Field(T& value) { value.Archive(*this); }
  template <Described T>
  requires(!requires(T & t, StateArchive& ar) { t.Archive(ar); }) void Field(T& value) {
    Visit(value, Each{*this});
  }
  struct Each {
    StateArchive& ar;
    Each& operator()(const char*, auto& field, FieldTraits = kPlain, const char* = nullptr) {
      ar.Field(field);
      return *this;
    }
  };

  template <typename V, std::size_t... Is>
  void Emplace(V& value, std::size_t index, std::index_sequence<Is...>) {
    if (index >= sizeof...(Is)) ok_ = false;
    (void)((index == Is && (value.template emplace<Is>(), true)) || ...);
  }

  template <typename C>
  void Sequence(C& value) {
    const std::size_t length = Length(value.size());
    if (!saving_) {
      value.clear();
      for (std::size_t i = 0; i < length && ok_; ++i) {
        value.emplace_back();
        Field(value.back());
      }
      return;
    }
    for (auto& element : value) Field(element);
  }

  bool saving_;
  bool hashing_ = false;
  bool ok_ = true;
  std::string_view in_;
  std::string out_;
};

// The snapshot of anything with an Archive member.
template <typename T>
std::string SaveState(const T& object) {
  StateArchive ar = StateArchive::Saver();
  const_cast<T&>(object).Archive(ar);  // a Saver only reads
  return ar.bytes();
}

// FNV-1a, 64 bits: equal states have equal hashes; not for secrets.
inline std::uint64_t HashBytes(std::string_view bytes, std::uint64_t seed = 0xcbf29ce484222325u) {
  std::uint64_t hash = seed;
  for (const char c : bytes) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3u;
  }
  return hash;
}

}  // namespace prd

#endif  // PRD_COMMON_BASE_ARCHIVE_H_
