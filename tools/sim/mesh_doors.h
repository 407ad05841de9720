// Whom a worker's mesh lets in: those whom its core has announced to it in this run, by the keys
// that came with them. Laws of it:
//
//   keys       who begins a reduction, a copy or a question knows the key of everybody whom it
//              turns to, and each is that process's own
//   let-in     nobody is let in who has not the key of the process that is called so: not who takes
//              a member's name, nor who asks the controller to announce another key for it
//   out        nobody is let in, or served, who is out for the controller, once the worker has
//              acknowledged all that the controller has said to it
//
// Looked at with up to 64 workers, since it grows with the square of their number.
#ifndef PRD_TOOLS_SIM_MESH_DOORS_H_
#define PRD_TOOLS_SIM_MESH_DOORS_H_

#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/messages.h"
#include "engines/violation.h"
#include "tools/sim/mutation.h"
#include "tools/sim/names.h"

namespace prd::sim {

class MeshDoors {
 public:
  MeshDoors(std::size_t workers, Mutation mutation)
      : name_suffices_(mutation == Mutation::kNameSuffices),
        serves_out_(mutation == Mutation::kOutServed),
        doors_(workers <= kMost ? workers : 0) {}

  // The key of a process, by a number that no other has.
  static MeshKey KeyOf(std::uint64_t process) {
    MeshKey key;
    key.bytes[31] = 1;
    std::memcpy(key.bytes.data(), &process, sizeof process);
    return key;
  }
  // That no process of the job has.
  static MeshKey ForgedKey() {
    MeshKey key;
    key.bytes.fill(0xee);
    return key;
  }

  // The worker's process is this incarnation from now on.
  void Become(std::uint32_t worker, Incarnation incarnation, const MeshKey& key) {
    if (worker >= doors_.size()) return;
    keys_[incarnation] = key;
    doors_[worker] = {.self = incarnation, .announced = {}, .out = {}};
  }
  // It is in another run.
  void Join(std::uint32_t worker) {
    if (worker >= doors_.size()) return;
    doors_[worker].announced.clear();
    doors_[worker].out.clear();
  }
  void Hear(std::uint32_t worker, const SharedList<GroupMember>& members) {
    if (worker >= doors_.size()) return;
    for (const GroupMember& member : members) {
      doors_[worker].announced[member.rank] = {member.incarnation, member.mesh_key};
      doors_[worker].out.erase(member.incarnation);
    }
  }

  void Forget(std::uint32_t worker, const std::vector<Incarnation>& members) {
    if (worker >= doors_.size() || serves_out_) return;
    Door& door = doors_[worker];
    for (const Incarnation member : members) {
      door.out.insert(member);
      std::erase_if(door.announced,
                    [member](const auto& entry) { return entry.second.first == member; });
    }
  }
  bool IsOut(std::uint32_t worker, Incarnation member) const {
    return worker < doors_.size() && doors_[worker].out.contains(member);
  }
  // This incarnation has acknowledged all that it was told, and these are the members of its run.
  void KnowsOnly(std::uint32_t worker, Incarnation self,
                 const std::set<Incarnation>& members) const {
    if (worker >= doors_.size() || doors_[worker].self != self) return;
    for (const auto& [rank, announced] : doors_[worker].announced) {
      if (members.contains(announced.first)) continue;
      throw Violation("out", WorkerName(worker) + " serves rank " + std::to_string(rank) +
                                 ", incarnation " + std::to_string(announced.first) +
                                 ", which is out");
    }
  }

  void TurnsTo(std::uint32_t worker, const GroupMember& member) const {
    if (worker >= doors_.size() || member.incarnation == doors_[worker].self) return;
    const Door& door = doors_[worker];
    if (door.out.contains(member.incarnation)) return;  // it fails at once
    const auto known = door.announced.find(member.rank);
    if (known == door.announced.end()) Fail(worker, member, "has not been told of it");
    const auto& [incarnation, key] = known->second;
    if (incarnation != member.incarnation) return;  // of which it has heard later
    const auto own = keys_.find(incarnation);
    if (own == keys_.end() || own->second != key) Fail(worker, member, "has another key of it");
  }
  template <typename Members>
  void TurnsToAll(std::uint32_t worker, const Members& members) const {
    if (worker >= doors_.size()) return;
    for (const GroupMember& member : members) TurnsTo(worker, member);
  }

  // Somebody calls itself `name` at all doors, and has this key.
  void Knock(Incarnation name, const MeshKey& key) const {
    const auto own = keys_.find(name);
    if (own != keys_.end() && own->second == key) return;
    for (std::size_t worker = 0; worker < doors_.size(); ++worker) {
      for (const auto& [rank, announced] : doors_[worker].announced) {
        const bool let_in = announced.first == name && (name_suffices_ || announced.second == key);
        if (!let_in) continue;
        throw Violation("let-in", WorkerName(worker) + " lets in somebody as rank " +
                                      std::to_string(rank) + ", incarnation " +
                                      std::to_string(name) + ", with another process's key");
      }
    }
  }

 private:
  static constexpr std::size_t kMost = 64;
  struct Door {
    Incarnation self = 0;
    std::map<Rank, std::pair<Incarnation, MeshKey>> announced;
    std::set<Incarnation> out;
  };
  [[noreturn]] static void Fail(std::uint32_t worker, const GroupMember& member,
                                const std::string& why) {
    throw Violation("keys", WorkerName(worker) + " turns to rank " + std::to_string(member.rank) +
                                ", incarnation " + std::to_string(member.incarnation) + ", and " +
                                why);
  }

  const bool name_suffices_;
  const bool serves_out_;
  std::vector<Door> doors_;              // by worker
  std::map<Incarnation, MeshKey> keys_;  // of all that ever were
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_MESH_DOORS_H_
