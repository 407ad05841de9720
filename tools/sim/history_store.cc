#include "tools/sim/history_store.h"

#include <algorithm>
#include <bit>
#include <string>
#include <string_view>
#include <type_traits>

#include "common/base/visit.h"
#include "engines/violation.h"

namespace prd::sim {
namespace {

std::uint64_t Mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

// A hash of every field (common/base/visit.h).
class Hasher {
 public:
  explicit Hasher(std::uint64_t hash) : hash_(hash) {}
  std::uint64_t hash() const { return hash_; }

  template <typename T>
  Hasher& operator()(const char*, const T& value, FieldTraits = kPlain, const char* = nullptr) {
    Add(value);
    return *this;
  }
  template <typename T>
  void Add(const T& value) {
    if constexpr (std::is_floating_point_v<T>) {
      hash_ = Mix(hash_, std::bit_cast<std::uint64_t>(static_cast<double>(value)));
    } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
      hash_ = Mix(hash_, static_cast<std::uint64_t>(value));
    } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      hash_ = Mix(hash_, HashBytes(value));
    } else if constexpr (requires { value.begin(); }) {
      Add(value.size());
      for (const auto& element : value) Add(element);
    } else if constexpr (std::is_same_v<T, RunIdentity>) {
      Add(value.high);
      Add(value.low);
    } else if constexpr (std::is_same_v<T, MeshKey>) {
      Add(value.bytes);
    } else if constexpr (std::is_same_v<T, FromWorker>) {
      Add(value.envelope.incarnation);
      Add(value.envelope.seq);
      Add(value.envelope.ack);
      Add(value.envelope.body.index());
      std::visit([this](const auto& body) { Visit(body, *this); }, value.envelope.body);
    } else {
      Visit(value, *this);
    }
  }

 private:
  std::uint64_t hash_;
};

}  // namespace

std::uint64_t HashRecord(const Record& record) {
  Hasher hasher(Mix(record.run, record.index));
  hasher.Add(record.now.ns);
  hasher.Add(record.body.index());
  std::visit([&hasher](const auto& body) { hasher.Add(body); }, record.body);
  return hasher.hash();
}

Status HistoryStore::Append(std::span<const Record> records) {
  const Fate fate = fate_ ? fate_() : Fate::kFine;
  if (fate == Fate::kFails) return Status(Code::kResourceExhausted, "no space left on device");
  if (forgets_) writes_.emplace_back().at = records.back().now;
  if (fate == Fate::kTorn) {
    for (const Record& record : records.first(below_(records.size() + 1))) Keep(record);
    throw ControllerDied{};
  }
  for (const Record& record : records) Keep(record);
  return Status::Ok();
}

void HistoryStore::Keep(const Record& record) {
  Run& run = runs_[record.run];
  if (record.index != run.next_index) {
    throw Violation("history-whole", "record " + std::to_string(record.index) + " of run " +
                                         std::to_string(record.run) + " is written where " +
                                         std::to_string(run.next_index) + " is due");
  }
  if (record.now < run.last) {
    throw Violation("history-whole", "time goes back at record " + std::to_string(record.index));
  }
  ++run.next_index;
  run.last = record.now;
  hash_ = Mix(hash_, HashRecord(record));
  ++records_;
  seen_(record);
  if (keep_) run.records.push_back(record);
  if (forgets_) writes_.back().records.push_back(record.run);
}

Status HistoryStore::SaveSnapshot(RunId run, std::uint64_t index, std::string_view state) {
  if (!keep_) return Status::Ok();
  Run& of = runs_[run];
  if (forgets_) {
    writes_.push_back({.at = writes_.back().at,
                       .records = {},
                       .run = run,
                       .snapshot_index = of.snapshot_index,
                       .snapshot = std::move(of.snapshot)});
  }
  of.snapshot_index = index;
  of.snapshot.assign(state);
  return Status::Ok();
}

// ---- forgetting ----

std::size_t HistoryStore::WritesSince(Instant at) const {
  const auto first = std::find_if(writes_.begin(), writes_.end(),
                                  [&](const Write& write) { return write.at > at; });
  return static_cast<std::size_t>(writes_.end() - first);
}

void HistoryStore::Forget(std::size_t writes) {
  hash_ = Mix(hash_, writes);
  for (; writes > 0; --writes) {
    Undo(writes_.back());
    writes_.pop_back();
  }
}

void HistoryStore::Undo(const Write& write) {
  if (write.run != kNoRun) {
    runs_[write.run].snapshot_index = write.snapshot_index;
    runs_[write.run].snapshot = write.snapshot;
  }
  for (const RunId id : write.records) {  // of one run, their order means nothing here
    Run& run = runs_[id];
    run.records.pop_back();
    if (--run.next_index == 0) {
      runs_.erase(id);
      continue;
    }
    run.last = run.records.back().now;
  }
}

}  // namespace prd::sim
