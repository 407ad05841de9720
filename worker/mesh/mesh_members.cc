// Mesh: its members, whom the controller announces, and says to be out.
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker/mesh/mesh.h"

namespace prd {

void Mesh::Announce(Instant now, const SharedList<GroupMember>& members, bool copies) {
  for (const GroupMember& member : members) {
    const Incarnation before = directory_.HolderOf(member.rank);
    if (before != 0 && before != member.incarnation) ForgetMembers(now, {before});
    if (directory_.Announce(member)) Introduce(now, member);
    if (!copies || directory_.Find(member.incarnation) == nullptr) continue;
    copies_.Order(now, member.incarnation);
    more_to_do_ = true;
  }
}

void Mesh::Meet(Instant now, std::span<const GroupMember> members) {
  for (const GroupMember& member : members) {
    if (directory_.Meet(member)) Introduce(now, member);
  }
}

// What goes to where the member is, goes to this incarnation of it.
void Mesh::Introduce(Instant now, const GroupMember& member) {
  intake_.AllowMembers();
  if (const std::optional<std::string> before = peers_.Introduce(member)) GiveUp(now, *before);
  more_to_do_ = true;  // it may wait at the door
}

void Mesh::ForgetMembers(Instant now, const std::vector<Incarnation>& members) {
  for (const Incarnation member : members) ForgetMember(now, member);
  intake_.ForgetOut();
  intake_.AllowMembers();
  more_to_do_ = true;  // it may wait at the door
}

void Mesh::ForgetMember(Instant now, Incarnation member) {
  directory_.Remove(member);
  copies_.ForgetPeer(member);
  exchange_.ForgetPeer(member);
  early_.Forget(member);
  prober_.Forget(member);
  transport_->End(member);
  if (const std::optional<std::string> endpoint = peers_.Forget(member)) OnLost(now, *endpoint);
}

}  // namespace prd
