#include "worker/device/way_agreement.h"

#include <algorithm>
#include <utility>

namespace prd {

void WayAgreement::Join(Incarnation self) {
  self_ = self;
  newest_ = kNoGroup;
  running_.reset();
  ways_.clear();
}

void WayAgreement::Reach(GroupId group) {
  newest_ = std::max(newest_, group);
  ways_.erase(ways_.begin(), ways_.lower_bound(group));
}

void WayAgreement::Begin(Instant now, GroupId group, const CommSet& set) {
  const Incarnation leader = set.front();
  running_ = Running{
      .group = group, .leader = leader, .waits_on = {}, .choice = {}, .ask_at = now + pause_};
  bool may_wait = false;
  for (const auto& [id, comm] : comms_->all()) {
    if (comm.state == Communicator::State::kProposed || comm.over() || !comm.Serves(set)) continue;
    may_wait |= comm.leads;
    const bool ready = comm.state == Communicator::State::kReady;
    if (ready && !comm.quit.contains(leader)) running_->waits_on.push_back(id);
  }
  if (leader != self_) return Resolve();
  running_->choice = Choose(group, set);
  if (!may_wait) return;
  for (const Incarnation member : set) {
    if (member != self_) TellWay(member, group, *running_->choice);
  }
}

// The way of a group that is led here.
WayAgreement::Choice WayAgreement::Choose(GroupId group, const CommSet& set) const {
  const Communicator* cover = nullptr;
  for (const auto& [id, comm] : comms_->all()) {
    if (!comm.usable || comm.over() || !comm.leads) continue;
    if (group <= comm.after || !comm.Serves(set)) continue;
    if (comm.set == set) return {Way::kCollective, id};
    if (cover == nullptr || comm.set.size() < cover->set.size()) cover = &comm;
  }
  return cover == nullptr ? Choice{} : Choice{Way::kExchange, cover->id};
}

std::optional<WayAgreement::Choice> WayAgreement::Told(GroupId group) const {
  return Runs(group) ? running_->choice : Choice{};
}

std::optional<CommId> WayAgreement::End() {
  const std::optional<Running> running = std::exchange(running_, std::nullopt);
  if (!running || !running->choice || running->choice->way == Way::kStaged) return std::nullopt;
  return running->choice->comm;
}

bool WayAgreement::HasChosen(CommId comm) const {
  if (running_ && running_->choice && running_->choice->comm == comm) return true;
  return std::any_of(ways_.begin(), ways_.end(),
                     [&](const auto& word) { return word.second.choice.comm == comm; });
}

void WayAgreement::OnWay(Incarnation from, const CommMessage& message) {
  const bool awaited = Runs(message.group) && !running_->choice;
  if (message.group <= newest_ && !awaited) return;
  Choice choice{.way = message.way, .comm = message.comm};
  if (choice.way == Way::kStaged) choice.comm = {};
  if (choice.way != Way::kStaged && post_->Known(from) == nullptr) return;
  // A communicator that is not here (any more) is kept all the same: Resolve answers for it.
  if (ways_.try_emplace(message.group, Word{from, choice}).second && ways_.size() > kMaxWays) {
    ways_.erase(ways_.begin());
  }
}

void WayAgreement::Answer(Incarnation from, GroupId group) {
  if (group == kNoGroup || group > newest_) return;  // it is still to come
  Choice choice;
  if (Runs(group) && running_->leader == self_) choice = running_->choice.value_or(Choice{});
  TellWay(from, group, choice);
}

void WayAgreement::TellWay(Incarnation to, GroupId group, const Choice& choice) {
  post_->Tell(
      to,
      {.kind = CommMessage::Kind::kWay, .comm = choice.comm, .group = group, .way = choice.way});
}

void WayAgreement::Resolve() {
  if (!running_ || running_->choice) return;
  const auto word = ways_.find(running_->group);
  if (word != ways_.end() && word->second.from == running_->leader) {
    Choice choice = word->second.choice;
    ways_.erase(word);
    if (choice.way != Way::kStaged && comms_->Live(choice.comm) == nullptr) {
      post_->TellBroken(running_->leader, choice.comm);
      choice = {};
    }
    running_->choice = choice;
    return;
  }
  std::erase_if(running_->waits_on, [&](CommId id) {
    const Communicator* comm = comms_->Live(id);
    return comm == nullptr || comm->retired || comm->quit.contains(running_->leader);
  });
  if (running_->waits_on.empty()) running_->choice = Choice{};
}

void WayAgreement::Service(Instant now) {
  if (!running_ || running_->choice || now < running_->ask_at) return;
  running_->ask_at = now + pause_;
  post_->Tell(running_->leader, {.kind = CommMessage::Kind::kAsk,
                                 .comm = running_->waits_on.front(),
                                 .group = running_->group});
}

std::optional<Instant> WayAgreement::ask_at() const {
  return running_ && !running_->choice ? std::optional(running_->ask_at) : std::nullopt;
}

}  // namespace prd
