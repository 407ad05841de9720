#include "worker/mesh/directory.h"

namespace prd {

void Directory::Join(Incarnation self, RunId run) {
  self_ = self;
  run_ = run;
  entries_.clear();
  holders_.clear();
  out_.clear();
  out_order_.clear();
}

bool Directory::Announce(const GroupMember& member) {
  if (member.incarnation == self_ || member.incarnation == 0) return false;
  if (out_.erase(member.incarnation) > 0) std::erase(out_order_, member.incarnation);
  const Incarnation before = HolderOf(member.rank);
  if (before != 0 && before != member.incarnation) Remove(before);
  holders_[member.rank] = member.incarnation;
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
  return holds && !IsOut(member.incarnation) && Announce(member);
}

void Directory::Remove(Incarnation member) {
  if (member == self_) return;
  const auto entry = entries_.find(member);
  if (entry != entries_.end()) {
    if (HolderOf(entry->second.member.rank) == member) holders_.erase(entry->second.member.rank);
    entries_.erase(entry);
  }
  if (!out_.insert(member).second) return;
  out_order_.push_back(member);
  if (out_order_.size() <= kMaxOut) return;
  out_.erase(out_order_.front());
  out_order_.pop_front();
}

Incarnation Directory::HolderOf(Rank rank) const {
  const auto holder = holders_.find(rank);
  return holder == holders_.end() ? 0 : holder->second;
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
    const Direction out{.run = run_, .from = self_, .to = peer};
    entry.keys = AgreeOnKeys(own_, entry.member.mesh_key, out, secret_of_);
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
