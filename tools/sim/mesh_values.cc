#include "tools/sim/mesh_values.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "common/base/check.h"
#include "common/base/prng.h"
#include "engines/violation.h"
#include "tools/reference/numbers.h"
#include "tools/sim/sim_device.h"

namespace prd::sim::mesh {

Bytes Read(const Layout& layout) {
  Bytes row(layout.bytes());
  layout.Read(0, row.size(), row.data());
  return row;
}
std::vector<double> Values(const Layout& layout, const Bytes& row) {
  std::vector<double> values;
  for (const Layout::Piece& piece : layout.pieces()) {
    for (std::size_t at = piece.begin; at < piece.end; at += DTypeSize(piece.dtype)) {
      values.push_back(reference::Decode(piece.dtype, row.data() + at));
    }
  }
  return values;
}
std::vector<double> Epsilons(const Layout& layout) {
  std::vector<double> epsilons;
  for (const Layout::Piece& piece : layout.pieces()) {
    epsilons.resize(epsilons.size() + (piece.end - piece.begin) / DTypeSize(piece.dtype),
                    reference::Epsilon(piece.dtype));
  }
  return epsilons;
}

void CheckNear(const char* law, const std::string& who, const Layout& layout, const Bytes& row,
               const Due& due, double steps, bool exact) {
  const std::vector<double> values = Values(layout, row);
  const std::vector<double> epsilons = Epsilons(layout);
  for (std::size_t j = 0; j < values.size(); ++j) {
    const double off = std::abs(values[j] - due.sum[j]);
    if (exact ? off == 0 : off <= steps * epsilons[j] * (due.size[j] + 1e-4)) continue;
    throw Violation(law, who + "'s element " + std::to_string(j) + " of " +
                             std::to_string(values.size()) + " is " + std::to_string(values[j]) +
                             " where " + std::to_string(due.sum[j]) + " is due");
  }
}

namespace {

// The sum of these, as a row of the replica's parameters. What is under way on a device is done
// before.
Bytes SumOf(const ReplicaStore& store, std::initializer_list<Memory::Input> from) {
  if (auto* device = dynamic_cast<SimDevice*>(store.memory.get())) device->Settle();
  Bytes row(store.parameters.bytes());
  thread_local HostMemory arithmetic;
  arithmetic.Combine(store.parameters, Memory::In(row.data()), from);
  return row;
}

}  // namespace

Bytes SharedOf(const ReplicaStore& store) {
  if (!store.base.empty()) return SumOf(store, {{Memory::In(store.base.data())}});
  if (!store.background || store.inbox.rounds == 0) return SumOf(store, {{Memory::Tensors()}});
  if (store.fold.open && store.fold.before.empty()) {
    return SumOf(store, {{Memory::In(store.inbox.row.data())}});
  }
  Bytes inbox = InboxOf(store);
  return SumOf(store, {{Memory::Tensors()}, {Memory::In(inbox.data())}});
}

Bytes InboxOf(const ReplicaStore& store) {
  Bytes inbox = CopyOf(store.inbox.row);
  if (!store.fold.there) return inbox;
  Bytes before = CopyOf(store.fold.before);
  const Memory::Place start = before.empty() ? Memory::Tensors() : Memory::In(before.data());
  return SumOf(store, {{Memory::In(inbox.data())}, {start, {-1, -1}}});
}

bool Landed(const ReplicaStore& store, Iteration iteration) {
  const std::vector<bool>& cells = store.partly_averaged.cells;
  return store.partly_averaged.iteration == iteration &&
         std::find(cells.begin(), cells.end(), true) != cells.end();
}

Bytes ChangeOf(const ReplicaStore& store) {
  if (store.base.size() != store.parameters.bytes()) return Read(store.parameters);
  return SumOf(store, {{Memory::Tensors()}, {Memory::In(store.base.data()), {-1, -1}}});
}

Version VersionOf(const ReplicaStore& store) {
  Version version{.shared = SharedOf(store),
                  .kept = Read(store.kept.layout()),
                  .inbox = {},
                  .iteration = store.iteration + store.inbox.gain};
  if (store.inbox.rounds != 0 && !store.background) version.inbox = CopyOf(store.inbox.row);
  return version;
}

const MeshKeyPair& KeyPair(std::size_t number) {
  static std::mutex mutex;
  static std::map<std::size_t, MeshKeyPair> pairs;
  const std::lock_guard lock(mutex);
  const auto [at, fresh] = pairs.try_emplace(number);
  if (fresh) {
    SecretKey secret;
    Prng prng(number);
    for (std::uint8_t& byte : secret) byte = static_cast<std::uint8_t>(prng.Next());
    const Result<MeshKeyPair> made = MeshKeysOf(secret);
    PRD_CHECK(made.ok());
    at->second = *made;
  }
  return at->second;
}

std::optional<SecretKey> KnownSecret(const MeshKeyPair& own, const MeshKey& peer) {
  thread_local std::map<std::pair<decltype(MeshKey::bytes), decltype(MeshKey::bytes)>,
                        std::optional<SecretKey>>
      secrets;
  const auto [at, fresh] = secrets.try_emplace({own.public_key.bytes, peer.bytes});
  if (fresh) at->second = SharedSecret(own, peer);
  return at->second;
}

}  // namespace prd::sim::mesh
