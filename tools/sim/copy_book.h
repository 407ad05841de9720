// What workers with real meshes copy of each other, as it is to be.
//
//   torn    a copy is a replica as it was between two steps of its source, since it was begun
//   probed  who answers a question was asked it
#ifndef PRD_TOOLS_SIM_COPY_BOOK_H_
#define PRD_TOOLS_SIM_COPY_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "tools/sim/mesh_values.h"
#include "worker/mesh/mesh.h"

namespace prd::sim {

class CopyBook {
 public:
  explicit CopyBook(std::size_t workers) : sides_(workers) {}

  enum class Kind : std::uint8_t { kReplica, kParameters };

  // The worker begins to copy a source, whose replica is `store` now: null, if it is not there.
  void Begins(std::uint32_t worker, Kind kind, Incarnation source, const ReplicaStore* store);
  // Nothing comes of it.
  void Ends(std::uint32_t worker, Kind kind) { sides_[worker].copies[Of(kind)].reset(); }
  // The worker's mesh is about to go on with its replica as it is now, or has just done so.
  void Is(std::uint32_t worker, const ReplicaStore& store);
  // The worker has copied a replica, which is its own now; or parameters. Throws Violation.
  void Copied(std::uint32_t worker, const ReplicaStore& store);
  void Copied(std::uint32_t worker, const mesh::Bytes& parameters);

  // The worker asks these, and nobody else any more.
  void Asks(std::uint32_t worker, const SharedList<GroupMember>& targets);
  void Answers(std::uint32_t worker, Incarnation of);

  // Its replica is another one, or gone; and so is what it does.
  void Clear(std::uint32_t worker);

  std::uint64_t copies() const { return copies_; }  // that were held to their sources

 private:
  struct Copy {
    std::uint32_t source = 0;
    std::uint64_t life = 0;  // of the source
    std::size_t from = 0;    // the first version that counts
  };
  struct Side {
    std::optional<Copy> copies[2];
    std::uint64_t life = 0;
    std::vector<mesh::Version> versions;  // while somebody copies it
    std::set<Incarnation> asked;
  };
  static std::size_t Of(Kind kind) { return static_cast<std::size_t>(kind); }
  bool Watched(std::uint32_t worker) const;
  // The source's versions that a copy may be. Nullopt: they are gone.
  std::optional<std::vector<mesh::Version>> Take(std::uint32_t worker, Kind kind);
  [[noreturn]] static void Torn(std::uint32_t worker, const char* what);

  std::vector<Side> sides_;
  std::uint64_t copies_ = 0;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_COPY_BOOK_H_
