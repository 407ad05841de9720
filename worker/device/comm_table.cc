#include "worker/device/comm_table.h"

#include <algorithm>
#include <utility>

namespace prd {

CommSet SetOf(const std::vector<GroupMember>& members) {
  std::vector<std::pair<Rank, Incarnation>> ranked;
  for (const GroupMember& member : members) ranked.emplace_back(member.rank, member.incarnation);
  std::sort(ranked.begin(), ranked.end());
  CommSet set;
  for (const auto& [rank, incarnation] : ranked) set.push_back(incarnation);
  return set;
}

bool Communicator::HasAll(const CommSet& all) const {
  return std::all_of(all.begin(), all.end(), [this](Incarnation member) { return Has(member); });
}

void CommTable::Clear() {
  for (auto& [id, comm] : comms_) {
    if (comm.comm != nullptr) gpu_->CommAbort(comm.comm);
  }
  comms_.clear();
  ++peers_version_;
}

Communicator* CommTable::Add(Communicator comm) {
  ++peers_version_;
  const CommId id = comm.id;
  return &comms_.emplace(id, std::move(comm)).first->second;
}

void CommTable::Abort(CommId id) {
  const auto at = comms_.find(id);
  if (at->second.comm != nullptr) gpu_->CommAbort(at->second.comm);
  comms_.erase(at);
  ++peers_version_;
}

const Communicator* CommTable::Find(CommId id) const {
  const auto at = comms_.find(id);
  return at == comms_.end() ? nullptr : &at->second;
}

const Communicator* CommTable::Live(CommId id) const {
  const Communicator* comm = Find(id);
  return comm == nullptr || comm->broken ? nullptr : comm;
}

bool CommTable::HasLive(const CommSet& set) const {
  return std::any_of(comms_.begin(), comms_.end(), [&](const auto& entry) {
    return entry.second.set == set && !entry.second.broken;
  });
}

bool CommTable::HasCover(const CommSet& set) const {
  return std::any_of(comms_.begin(), comms_.end(), [&](const auto& entry) {
    const Communicator& comm = entry.second;
    return comm.cover && !comm.broken && comm.leads && comm.HasAll(set);
  });
}

const Communicator* CommTable::LargestCover() const {
  const Communicator* largest = nullptr;
  for (const auto& [id, comm] : comms_) {
    if (!comm.cover || !comm.usable || comm.broken) continue;
    if (largest == nullptr || comm.set.size() > largest->set.size()) largest = &comm;
  }
  return largest;
}

const GroupMember* CommTable::Member(Incarnation member) const {
  for (const auto& [id, comm] : comms_) {
    const auto rank = comm.rank_of.find(member);
    if (rank != comm.rank_of.end()) return &comm.members[static_cast<std::size_t>(rank->second)];
  }
  return nullptr;
}

std::map<CommId, CommSet> CommTable::Usable() const {
  std::map<CommId, CommSet> usable;
  for (const auto& [id, comm] : comms_) {
    if (comm.usable && !comm.over()) usable.emplace(id, comm.set);
  }
  return usable;
}

std::vector<GroupMember> CommTable::Peers(Incarnation self) const {
  std::map<Incarnation, const GroupMember*> peers;
  for (const auto& [id, comm] : comms_) {
    for (const GroupMember& member : comm.members) {
      if (member.incarnation != self) peers.emplace(member.incarnation, &member);
    }
  }
  std::vector<GroupMember> all;
  for (const auto& [incarnation, member] : peers) all.push_back(*member);
  return all;
}

}  // namespace prd
