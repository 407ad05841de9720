#include "worker/device/comm_post.h"

namespace prd {
namespace {

// Without a device: groups whose members may still propose.
constexpr std::size_t kRecentGroups = 16;

}  // namespace

void CommPost::Join(Incarnation self) {
  self_ = self;
  known_.clear();
  holder_.clear();
  recent_.clear();
  outgoing_.clear();
}

std::vector<Incarnation> CommPost::Know(const Group& group) {
  if (known_.size() > kMaxKnown) known_.clear();
  if (holder_.size() > kMaxKnown) holder_.clear();
  std::vector<Incarnation> gone;
  for (const GroupMember& member : group.members) {
    known_.try_emplace(member.incarnation, member);
    const Incarnation before = std::exchange(holder_[member.rank], member.incarnation);
    if (before != 0 && before != member.incarnation) gone.push_back(before);
  }
  return gone;
}

void CommPost::KnowToDecline(const Group& group) {
  recent_.push_front(group.members);
  if (recent_.size() > kRecentGroups) recent_.pop_back();
}

const GroupMember* CommPost::Known(Incarnation member) const {
  const auto known = known_.find(member);
  return known == known_.end() ? comms_->Member(member) : &known->second;
}

void CommPost::Tell(Incarnation to, CommMessage message) {
  if (const GroupMember* member = Known(to)) outgoing_.push_back({*member, std::move(message)});
}

void CommPost::TellAll(const Communicator& comm, const CommMessage& message) {
  for (const GroupMember& member : comm.members) {
    if (member.incarnation != self_) outgoing_.push_back({member, message});
  }
}

void CommPost::TellBroken(Incarnation to, CommId comm) {
  Tell(to,
       {.kind = CommMessage::Kind::kBroken, .comm = comm, .reason = "it is not here (any more)"});
}

void CommPost::Decline(Incarnation to, CommMessage message) {
  for (const SharedList<GroupMember>& members : recent_) {
    for (const GroupMember& member : members) {
      if (member.incarnation != to) continue;
      outgoing_.push_back({member, std::move(message)});
      return;
    }
  }
}

}  // namespace prd
