#include "worker/mesh/directory.h"

namespace prd {

void Directory::Join(Incarnation self, RunId run) {
  self_ = self;
  run_ = run;
  entries_.clear();
  holders_.clear();
}

bool Directory::Announce(const GroupMember& member) {
  if (member.incarnation == self_ || member.incarnation == 0) return false;
  const auto [holder, fresh] = holders_.try_emplace(member.rank, member.incarnation);
  if (!fresh && holder->second != member.incarnation) {
    entries_.erase(holder->second);
    holder->second = member.incarnation;
  }
  Entry& entry = entries_[member.incarnation];
  const bool same = entry.member.incarnation == member.incarnation &&
                    entry.member.mesh_key == member.mesh_key && entry.member.host == member.host &&
                    entry.member.endpoints == member.endpoints;
  if (!same) entry = {.member = member, .agreed = false, .keys = std::nullopt};
  return !same;
}

bool Directory::Meet(const GroupMember& member) {
  const auto holder = holders_.find(member.rank);
  const bool holds = holder == holders_.end() || holder->second == member.incarnation;
  return holds && Announce(member);
}

const GroupMember* Directory::Find(Incarnation peer) const {
  const auto found = entries_.find(peer);
  return found == entries_.end() ? nullptr : &found->second.member;
}

const PairKeys* Directory::KeysOf(Incarnation peer) const {
  const auto found = entries_.find(peer);
  if (found == entries_.end() || run_ == kNoRun) return nullptr;
  const Entry& entry = found->second;
  if (!entry.agreed) {
    entry.agreed = true;
    entry.keys = AgreeOnKeys(own_, entry.member.mesh_key, {.run = run_, .from = self_, .to = peer});
  }
  return entry.keys ? &*entry.keys : nullptr;
}

std::optional<Incarnation> Directory::HolderOf(const MeshKey& key) const {
  for (const auto& [peer, entry] : entries_) {
    if (key.known() && entry.member.mesh_key == key) return peer;
  }
  return std::nullopt;
}

}  // namespace prd
