#include "tools/sim/copy_book.h"

#include <algorithm>
#include <string>

#include "engines/violation.h"
#include "tools/sim/names.h"
#include "tools/sim/world.h"

namespace prd::sim {

bool CopyBook::Watched(std::uint32_t worker) const {
  return std::any_of(sides_.begin(), sides_.end(), [&](const Side& side) {
    return std::any_of(std::begin(side.copies), std::end(side.copies), [&](const auto& copy) {
      return copy && copy->source == worker && copy->life == sides_[worker].life;
    });
  });
}

void CopyBook::Begins(std::uint32_t worker, Kind kind, Incarnation source,
                      const ReplicaStore* store) {
  std::optional<Copy>& copy = sides_[worker].copies[Of(kind)];
  copy.reset();
  if (store == nullptr) return;
  const std::uint32_t from = WorkerOf(source);
  if (!Watched(from)) sides_[from].versions.clear();
  sides_[from].versions.push_back(mesh::VersionOf(*store));
  copy = Copy{.source = from, .life = sides_[from].life, .from = sides_[from].versions.size() - 1};
}

void CopyBook::Is(std::uint32_t worker, const ReplicaStore& store) {
  Side& side = sides_[worker];
  if (side.versions.empty()) return;
  if (!Watched(worker)) return side.versions.clear();
  mesh::Version version = mesh::VersionOf(store);
  if (side.versions.back() != version) side.versions.push_back(std::move(version));
}

std::optional<std::vector<mesh::Version>> CopyBook::Take(std::uint32_t worker, Kind kind) {
  const std::optional<Copy> copy = std::exchange(sides_[worker].copies[Of(kind)], std::nullopt);
  if (!copy) return std::nullopt;
  const Side& source = sides_[copy->source];
  if (source.life != copy->life || source.versions.size() <= copy->from) return std::nullopt;
  ++copies_;
  return std::vector(source.versions.begin() + static_cast<std::ptrdiff_t>(copy->from),
                     source.versions.end());
}

void CopyBook::Copied(std::uint32_t worker, const ReplicaStore& store) {
  const auto versions = Take(worker, Kind::kReplica);
  if (!versions) return;
  const mesh::Version got = mesh::VersionOf(store);
  if (std::find(versions->begin(), versions->end(), got) == versions->end()) {
    Torn(worker, "a copy");
  }
}

void CopyBook::Copied(std::uint32_t worker, const mesh::Bytes& parameters) {
  const auto versions = Take(worker, Kind::kParameters);
  if (!versions) return;
  const bool was = std::any_of(versions->begin(), versions->end(),
                               [&](const auto& version) { return version.shared == parameters; });
  if (!was) Torn(worker, "parameters");
}

void CopyBook::Torn(std::uint32_t worker, const char* what) {
  throw Violation("torn",
                  WorkerName(worker) + " has " + what + " that its source never had meanwhile");
}

void CopyBook::Asks(std::uint32_t worker, const SharedList<GroupMember>& targets) {
  std::set<Incarnation>& asked = sides_[worker].asked;
  asked.clear();
  for (const GroupMember& target : targets) asked.insert(target.incarnation);
}

void CopyBook::Answers(std::uint32_t worker, Incarnation of) {
  if (sides_[worker].asked.erase(of) == 1) return;
  throw Violation("probed", WorkerName(worker) + " hears an answer of " + WorkerName(WorkerOf(of)) +
                                " that it does not wait for");
}

void CopyBook::Clear(std::uint32_t worker) {
  Side& side = sides_[worker];
  ++side.life;
  side.versions.clear();
  side.asked.clear();
  for (auto& copy : side.copies) copy.reset();
}

}  // namespace prd::sim
