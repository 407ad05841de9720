#include "tools/sim/mesh_values.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "common/base/check.h"
#include "common/base/prng.h"
#include "tools/reference/numbers.h"

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

namespace {

// A row as `read` puts it into a place of host memory.
template <typename F>
Bytes RowOf(const ReplicaStore& store, F&& read) {
  const Row row = store.memory->AllocateHost(MemoryUse::kReading, store.parameters.bytes());
  const std::shared_ptr<Transfer> transfer = read(Memory::InHost(row.data()));
  if (transfer != nullptr) transfer->Wait();
  return CopyOf(row);
}

}  // namespace

Bytes SharedOf(const ReplicaStore& store) {
  return RowOf(store, [&](const Memory::Place& row) { return store.ReadShared(row); });
}

bool Landed(const ReplicaStore& store, Iteration iteration) {
  const std::vector<bool>& cells = store.averaged_cells;
  return store.averaged_for == iteration &&
         std::find(cells.begin(), cells.end(), true) != cells.end();
}

Bytes ChangeOf(const ReplicaStore& store) {
  if (store.base.size() != store.parameters.bytes()) return Read(store.parameters);
  return RowOf(store, [&](const Memory::Place& row) {
    return store.memory->Combine(store.parameters, row,
                                 {{Memory::Tensors()}, {Memory::In(store.base.data()), {-1, -1}}});
  });
}

Version VersionOf(const ReplicaStore& store) {
  Version version{.shared = SharedOf(store),
                  .kept = Read(store.kept),
                  .inbox = {},
                  .iteration = store.iteration + store.inbox_gain};
  if (store.inbox_rounds != 0 && !store.background) version.inbox = CopyOf(store.inbox);
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

}  // namespace prd::sim::mesh
