#include "tools/sim/item_book.h"

#include <cmath>
#include <cstring>
#include <string>
#include <variant>

#include "engines/violation.h"
#include "tools/sim/mesh_values.h"
#include "tools/sim/names.h"

namespace prd::sim {
namespace {

std::vector<double> Parameters(const ReplicaStore& store) {
  return mesh::Values(store.parameters, mesh::Read(store.parameters));
}

// All of its numbers are float64.
std::vector<double> Base(const ReplicaStore& store) {
  std::vector<double> base(store.base.size() / sizeof(double));
  std::memcpy(base.data(), store.base.data(), store.base.size());
  return base;
}

void Add(std::vector<double>* sum, double factor, const std::vector<double>& part) {
  for (std::size_t j = 0; j < sum->size(); ++j) (*sum)[j] += factor * part[j];
}

}  // namespace

ItemBook::Numbers ItemBook::Cut(const Side& side, const Numbers& row, std::uint32_t shard) {
  const ByteRange range = ShardRange(row.size() * sizeof(double), side.cut, shard);
  const auto begin = row.begin() + static_cast<std::ptrdiff_t>(range.begin / sizeof(double));
  return {begin, begin + static_cast<std::ptrdiff_t>(range.length / sizeof(double))};
}

const ItemBook::Shard* ItemBook::AnswerTo(const Side& side, Incarnation self, Ticket ticket) const {
  const auto pull = side.pulled.find(ticket);
  if (pull == side.pulled.end()) return nullptr;
  const auto it = served_.find({pull->second.from, self, pull->second.parcel});
  const bool known = it != served_.end() && it->second.given && !it->second.differ;
  return known ? &it->second.newest : nullptr;
}

bool ItemBook::OnPulled(std::uint32_t worker, Ticket ticket) {
  Side& side = sides_[worker];
  const auto pull = side.pulls.extract(ticket);
  if (pull.empty()) return false;
  side.pulled[ticket] = pull.mapped();
  return true;
}

// With the bytes of now.
void ItemBook::Serves(const Side& side, Incarnation self, const Serve& serve) {
  const auto asked = side.requests.find(serve.request);
  const PeerItem& item = serve.parcel;
  if (asked == side.requests.end() || item.kind == PeerItem::Kind::kUpdate) return;
  Shard shard;
  if (item.kind == PeerItem::Kind::kDelta) {
    if (side.delta.empty() || item.shard >= side.cut) return;
    shard.values = Cut(side, side.delta, item.shard);
  } else {
    const auto kept = side.kept.find(item.shard);
    if (kept == side.kept.end()) return;
    shard = kept->second;
  }
  Answers& answers = served_[{self, asked->second, item}];
  answers.differ |= answers.given && answers.pulls > 1 && !(answers.newest == shard);
  answers.given = true;
  answers.newest = std::move(shard);
}

void ItemBook::Before(std::uint32_t worker, Incarnation self, const Action& action,
                      const ReplicaStore& store) {
  Side& side = sides_[worker];
  side.expected.clear();
  if (const auto* pull = std::get_if<StartPull>(&action)) {
    side.pulls[pull->ticket] = *pull;
    ++served_[{pull->from, self, pull->parcel}].pulls;
  } else if (const auto* drop = std::get_if<DropPull>(&action)) {
    side.pulls.erase(drop->ticket);
    side.pulled.erase(drop->ticket);
  } else if (const auto* serve = std::get_if<Serve>(&action)) {
    Serves(side, self, *serve);
  } else if (const auto* publish = std::get_if<PublishUpdate>(&action)) {
    published_[{self, publish->iteration}] = Parameters(store);
  } else if (const auto* mix = std::get_if<MixUpdates>(&action)) {
    side.begin = 0;
    side.expected = Parameters(store);
    for (double& value : side.expected) value *= mix->own_weight;
    for (const MixUpdates::Update& update : mix->updates) {
      const StartPull& used = side.pulled.at(update.ticket);
      Add(&side.expected, update.weight, published_.at({used.from, used.parcel.stamp}));
      side.pulled.erase(update.ticket);
    }
  } else if (const auto* cut = std::get_if<CutShards>(&action)) {
    if (cut->shards == side.cut) return;
    side.cut = cut->shards;
    side.delta.clear();
    side.kept.clear();
  } else if (const auto* take = std::get_if<TakeDelta>(&action)) {
    side.delta = Parameters(store);
    Add(&side.delta, -1, Base(store));
    for (double& value : side.delta) value *= take->share;
  } else if (const auto* keep = std::get_if<KeepShard>(&action)) {
    Shard shard;
    if (keep->ticket == 0) {
      shard.values = Cut(side, Base(store), keep->shard);
      shard.pending.assign(shard.values.size(), 0.0);
    } else if (const Shard* pulled = AnswerTo(side, self, keep->ticket)) {
      shard = *pulled;
    }
    side.kept.insert_or_assign(keep->shard, std::move(shard));
    side.pulled.erase(keep->ticket);
  } else if (const auto* add = std::get_if<AddDelta>(&action)) {
    const Shard* pulled = add->ticket != 0 ? AnswerTo(side, self, add->ticket) : nullptr;
    const auto kept = side.kept.find(add->shard);
    if (kept != side.kept.end() && (add->ticket == 0 ? !side.delta.empty() : pulled != nullptr)) {
      const Numbers delta = pulled != nullptr ? pulled->values : Cut(side, side.delta, add->shard);
      Add(add->pending ? &kept->second.pending : &kept->second.values, add->factor, delta);
    } else {
      side.kept.erase(add->shard);
    }
    side.pulled.erase(add->ticket);
  } else if (const auto* merge = std::get_if<MergePending>(&action)) {
    const auto kept = side.kept.find(merge->shard);
    if (kept == side.kept.end()) return;
    Add(&kept->second.values, 1, kept->second.pending);
    kept->second.pending.assign(kept->second.values.size(), 0.0);
  } else if (const auto* read = std::get_if<ReadShard>(&action)) {
    const std::size_t bytes = store.parameters.bytes();
    side.begin = ShardRange(bytes, side.cut, read->shard).begin / sizeof(double);
    const auto kept = side.kept.find(read->shard);
    if (const Shard* pulled = read->ticket != 0 ? AnswerTo(side, self, read->ticket) : nullptr) {
      side.expected = pulled->values;
    } else if (read->ticket == 0 && kept != side.kept.end()) {
      side.expected = kept->second.values;
    }
    side.pulled.erase(read->ticket);
  } else if (const auto* forget = std::get_if<ForgetShard>(&action)) {
    side.kept.erase(forget->shard);
  }
}

void ItemBook::After(std::uint32_t worker, const Action& action, const ReplicaStore& store) const {
  const Side& side = sides_[worker];
  if (side.expected.empty()) return;
  const std::vector<double> found = Parameters(store);
  for (std::size_t j = 0; j < side.expected.size(); ++j) {
    const double expected = side.expected[j];
    const double here = found[side.begin + j];
    if (std::abs(here - expected) <= 1e-9 * (1 + std::abs(expected))) continue;
    const bool mixes = std::holds_alternative<MixUpdates>(action);
    throw Violation(mixes ? "mix" : "shard",
                    WorkerName(worker) + " has " + std::to_string(here) + " where " +
                        (mixes ? "its average with the updates of its neighbours"
                               : "what it reads of a shard") +
                        " is " + std::to_string(expected));
  }
}

}  // namespace prd::sim
