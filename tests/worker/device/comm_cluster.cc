#include "tests/worker/device/comm_cluster.h"

#include <algorithm>
#include <cstring>

namespace prd::testing {

CommCluster::~CommCluster() {
  for (auto& [self, node] : nodes_) node->comms.reset();
  EXPECT_EQ(nccl.inits, nccl.aborts);
}

CommCluster::Node& CommCluster::Add(Rank rank, bool device) {
  auto node = std::make_unique<Node>();
  node->self = ++incarnations_;
  node->rank = rank;
  if (device) node->gpu = std::make_unique<FakeGpu>(&nccl);
  node->comms = std::make_unique<Communicators>(node->gpu.get(), options_);
  node->comms->Join(node->self, 1);
  by_rank_[rank] = node->self;
  return *(nodes_[node->self] = std::move(node));
}

std::vector<CommCluster::Node*> CommCluster::Alive() {
  std::vector<Node*> alive;
  for (const auto& [rank, self] : by_rank_) {
    if (!Gone(self)) alive.push_back(nodes_.at(self).get());
  }
  return alive;
}

GroupId CommCluster::Announce(const std::vector<Rank>& ranks, GroupKind kind) {
  Group group{.id = ++newest_, .kind = kind, .members = {}, .reason = {}};
  for (const Rank rank : ranks) {
    Node& node = At(rank);
    group.members.push_back({.rank = rank,
                             .incarnation = node.self,
                             .weight = 1.0 / static_cast<double>(ranks.size()),
                             .host = {},
                             .endpoints = {}});
    node.announced.push_back(group.id);
  }
  groups_[group.id].group = group;
  return group.id;
}

void CommCluster::Kill(Rank rank) {
  Node& node = At(rank);
  node.alive = false;
  node.comms.reset();
  for (auto& [link, messages] : links_) {
    if (link.second == node.self) messages.clear();
  }
  for (const auto& [self, other] : nodes_) {
    if (other->alive) broken_links_.insert({self, node.self});
  }
  for (auto& [id, group] : groups_) {
    for (const GroupMember& member : group.group.members) {
      if (member.incarnation == node.self && !group.done) group.failed = true;
    }
  }
}

void CommCluster::Cut(Rank from, Rank to) {
  const Link link{At(from).self, At(to).self};
  links_[link].clear();
  broken_links_.insert(link);
}

void CommCluster::Controller(Node* node) {
  for (const Communicators::Outgoing& out : node->comms->TakeOutgoing()) {
    // What is asked now and then is no sign that anything happens.
    if (out.message.kind != CommMessage::Kind::kAsk) ++sent_;
    const Incarnation to = out.to.incarnation;
    ASSERT_EQ(nodes_.count(to), 1u);
    ASSERT_NE(to, node->self);
    const auto back = DecodeCommMessage(EncodeCommMessage(out.message));
    ASSERT_EQ(back, out.message);
    const CommMessage::Kind kind = out.message.kind;
    if (kind == CommMessage::Kind::kBroken) broken_.insert(out.message.comm);
    if (kind == CommMessage::Kind::kReady || kind == CommMessage::Kind::kUse) {
      ready_[out.message.comm].insert(node->self);
    }
    if (Gone(to)) {
      broken_links_.insert({node->self, to});
    } else {
      links_[{node->self, to}].push_back(out.message);
    }
  }
}

std::size_t CommCluster::on_their_way() const {
  std::size_t count = 0;
  for (const auto& [link, messages] : links_) count += messages.size();
  return count;
}

bool CommCluster::Deliver(std::uint64_t pick) {
  std::vector<Link> full;
  for (const auto& [link, messages] : links_) {
    if (!messages.empty() && !Gone(link.second)) full.push_back(link);
  }
  if (full.empty()) return false;
  const Link link = full[pick % full.size()];
  const CommMessage message = links_[link].front();
  links_[link].pop_front();
  Node* to = nodes_.at(link.second).get();
  to->comms->OnMessage(now, link.first, message);
  Controller(to);
  return true;
}

bool CommCluster::See(std::uint64_t pick) {
  if (broken_links_.empty()) return false;
  auto at = broken_links_.begin();
  std::advance(at, static_cast<std::ptrdiff_t>(pick % broken_links_.size()));
  const Link link = *at;
  broken_links_.erase(at);
  Node* node = nodes_.at(link.first).get();
  if (!node->alive) return true;
  node->comms->OnLost(now, link.second);
  Controller(node);
  return true;
}

void CommCluster::Serve(Node* node) {
  node->comms->Service(now);
  Controller(node);
}

void CommCluster::Leave(Node* node, bool ok) {
  const Group& group = groups_.at(node->runs).group;
  if (node->asked && node->choice->way != Way::kStaged) {
    if (!ok) node->comms->Break(now, node->choice->comm, "the group failed");
    node->comms->Release(node->choice->comm);
  }
  node->comms->End(now, group, ok);
  node->runs = kNoGroup;
  node->choice.reset();
  node->asked = false;
  Controller(node);
}

// A worker's next move with its groups.
bool CommCluster::Proceed(Node* node) {
  if (node->runs == kNoGroup) {
    if (node->announced.empty()) return false;
    const GroupId id = node->announced.front();
    node->announced.pop_front();
    if (groups_.at(id).failed) return true;  // called off before it began here
    node->runs = id;
    node->choice = node->comms->Begin(now, groups_.at(id).group);
    Controller(node);
    return true;
  }
  TheGroup& group = groups_.at(node->runs);
  if (group.failed) return Leave(node, false), true;
  if (!node->choice) {
    node->choice = node->comms->Told(group.group);
    return node->choice.has_value();
  }
  if (!node->asked) {
    group.chosen[node->self] = *node->choice;
    if (node->choice->way != Way::kStaged) {
      if (!node->comms->Find(node->choice->comm, group.group)) {
        group.failed = true;
        return Leave(node, false), true;
      }
      node->comms->Hold(node->choice->comm);
    }
    node->asked = true;
    Judge(&group);
    return true;
  }
  if (!group.done) {
    // It cannot end here any more; the owner gives it up after a while.
    if (node->choice->way == Way::kStaged || node->comms->WhyBroken(node->choice->comm).empty()) {
      return false;
    }
    group.failed = true;
    return true;
  }
  return Leave(node, true), true;
}

// A member has said so, or is gone: what excuses that others do not know yet.
bool CommCluster::Excused(const TheGroup& group, CommId comm) const {
  const std::vector<GroupMember>& members = group.group.members.get();
  return broken_.count(comm) != 0 ||
         std::any_of(members.begin(), members.end(),
                     [&](const auto& m) { return Gone(m.incarnation); });
}

// Whether the members do the same, and can.
void CommCluster::Judge(TheGroup* group) {
  const Choice& first = group->chosen.begin()->second;
  bool same = true;
  for (const auto& [self, choice] : group->chosen) {
    same &= choice == first;
    if (choice.way == Way::kStaged) continue;
    for (const GroupMember& member : group->group.members) {
      EXPECT_EQ(ready_[choice.comm].count(member.incarnation), 1u)
          << "group " << group->group.id << " is to use what is not ready at " << member.rank;
      Node& node = *nodes_.at(member.incarnation);
      const bool usable = node.alive && node.comms->Find(choice.comm, group->group);
      EXPECT_TRUE(usable || Excused(*group, choice.comm))
          << "group " << group->group.id << " is to use what rank " << member.rank << " has not";
    }
  }
  if (!same) {
    for (const auto& [self, choice] : group->chosen) {
      EXPECT_TRUE(choice.way == Way::kStaged || Excused(*group, choice.comm))
          << "members disagree about group " << group->group.id;
    }
    ++disagreed;
    group->failed = true;
    return;
  }
  if (group->chosen.size() == group->group.members.size()) {
    group->done = true;
    ++ended[first.way];
  }
}

void CommCluster::Check() {
  for (Node* node : Alive()) {
    EXPECT_LE(node->comms->counters().here, options_.limit);
    if (node->gpu) {
      EXPECT_LE(node->gpu->open(), options_.limit);
    }
  }
}

void CommCluster::RandomStep() {
  const std::vector<Node*> alive = Alive();
  Node* node = alive[random.Below(alive.size())];
  switch (random.Below(8)) {
    case 0:
    case 1:
    case 2:
      Deliver(random.Next());
      break;
    case 3:
      now = now + static_cast<DurationNs>(random.Below(20 * kMillisecond));
      Serve(node);
      break;
    case 4:
      if (random.Below(4) == 0) See(random.Next());
      break;
    default:
      Proceed(node);
  }
  Check();
}

void CommCluster::Settle() {
  for (int quiet = 0; quiet < 8;) {  // longer than CommBusy is true
    bool moved = false;
    while (See(0)) moved = true;
    const std::uint64_t before = sent_;
    std::uint64_t versions = 0;
    while (Deliver(random.Next())) {
    }
    for (Node* node : Alive()) {
      versions -= node->comms->peers_version();
      while (Proceed(node)) moved = true;
      Serve(node);
      versions += node->comms->peers_version();
    }
    moved |= sent_ != before || versions != 0;
    Check();
    now = now + 20 * kMillisecond;
    quiet = moved ? 0 : quiet + 1;
  }
}

std::optional<CommCluster::Choice> CommCluster::Reduce(const std::vector<Rank>& ranks,
                                                       GroupKind kind) {
  const GroupId id = Announce(ranks, kind);
  Settle();
  const TheGroup& group = groups_.at(id);
  EXPECT_TRUE(group.done || group.failed) << "group " << id << " hangs";
  if (!group.done) return std::nullopt;
  return group.chosen.begin()->second;
}

void CommCluster::ExpectAgreed() {
  for (Node* node : Alive()) {
    for (const auto& [id, set] : node->comms->Usable()) {
      for (const Incarnation member : set) {
        ASSERT_FALSE(Gone(member)) << node->rank;
        const auto there = nodes_.at(member)->comms->Usable();
        ASSERT_EQ(there.count(id), 1u) << node->rank << " shares it with " << member;
        EXPECT_EQ(there.at(id), set);
      }
    }
    if (node->gpu) {
      EXPECT_EQ(node->gpu->open(), node->comms->Usable().size()) << node->rank;
      EXPECT_EQ(node->comms->counters().here, node->comms->Usable().size()) << node->rank;
    }
  }
}

}  // namespace prd::testing
