#include "worker/device/comm_demand.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace prd {
namespace {

// Attempts that fail double the groups until the next one, up to 1 << this.
constexpr std::uint32_t kMaxDoublings = 6;

bool Contains(const CommSet& set, Incarnation member) {
  return std::find(set.begin(), set.end(), member) != set.end();
}

}  // namespace

void CommDemand::Attempts::Fail() { wait = 1u << std::min(++failed, kMaxDoublings); }

void CommDemand::Join(Incarnation self) {
  self_ = self;
  sets_.clear();
  wish_.reset();
  no_device_.clear();
}

// ---- scores ----

GroupId CommDemand::NewestOf(const CommSet& set) const {
  const auto at = sets_.find(set);
  return at == sets_.end() ? kNoGroup : at->second.at;
}

double CommDemand::ScoreAt(const CommSet& set, GroupId group) const {
  const auto at = sets_.find(set);
  if (at == sets_.end()) return 0;
  const double age = static_cast<double>(group - std::min(group, at->second.at));
  return at->second.score * std::exp2(-age / static_cast<double>(kHalfLife));
}

CommDemand::History* CommDemand::Count(const CommSet& set, GroupId group) {
  const double score = ScoreAt(set, group) + 1;
  History& history = sets_[set];
  history.score = score;
  history.at = group;
  return &history;
}

std::optional<CommId> CommDemand::Replaceable(const CommSet& set, bool cover, GroupId group) const {
  const Communicator* lowest = nullptr;
  double least = 0;
  for (const auto& [id, comm] : comms_->all()) {
    if (comm.asked || comm.over() || !comm.leads) return std::nullopt;  // there will be room
    if (!comm.usable) continue;
    const double score = ScoreAt(comm.set, group);
    if (lowest == nullptr || score < least ||
        (score == least && NewestOf(comm.set) < NewestOf(lowest->set))) {
      lowest = &comm;
      least = score;
    }
  }
  if (lowest == nullptr || (!cover && ScoreAt(set, group) < 2 * least)) return std::nullopt;
  return lowest->id;
}

// ---- what is wanted ----

CommSet CommDemand::WithDevices(const CommSet& set) const {
  CommSet with;
  for (const Incarnation member : set) {
    if (!no_device_.contains(member)) with.push_back(member);
  }
  return with;
}

void CommDemand::WantCover(const CommSet& set) {
  const CommSet with = WithDevices(set);
  if (with.size() < 2 || with.front() != self_ || with.size() > max_members_) return;
  if (comms_->HasCover(with) || comms_->HasLive(with) || (wish_ && wish_->set == with)) return;
  wish_ = Wish{.set = with};
}

void CommDemand::GroupEnded() {
  if (wish_ && wish_->attempts.wait > 0) --wish_->attempts.wait;
}

void CommDemand::Succeeded(const Group& group, const CommSet& set, const Communicator* used) {
  ++Count(set, group.id)->groups;
  if (used != nullptr && used->set != set) Count(used->set, group.id);
  while (sets_.size() > kMaxSets) {
    sets_.erase(std::min_element(sets_.begin(), sets_.end(), [](const auto& a, const auto& b) {
      return a.second.at < b.second.at;
    }));
  }
  const bool all = group.kind == GroupKind::kInitial || group.kind == GroupKind::kAverage ||
                   group.kind == GroupKind::kRound;
  if (all) return WantCover(set);
  if (set.front() != self_ || comms_->HasCover(WithDevices(set))) return;
  // It brings somebody whom the largest cover does not have yet: that one grows.
  const Communicator* largest = comms_->LargestCover();
  if (largest == nullptr) return;
  std::vector<GroupMember> both = group.members.get();
  for (const GroupMember& member : largest->members) {
    if (!Contains(set, member.incarnation)) both.push_back(member);
  }
  WantCover(SetOf(both));
}

std::optional<CommSet> CommDemand::DueCover() {
  if (!wish_ || wish_->attempts.wait > 0) return std::nullopt;
  wish_->set = WithDevices(wish_->set);
  const CommSet& set = wish_->set;
  if (set.size() < 2 || set.front() != self_ || comms_->HasCover(set) || comms_->HasLive(set)) {
    wish_.reset();
    return std::nullopt;
  }
  return set;
}

bool CommDemand::RecursEnough(const CommSet& set) {
  if (set.size() < 2 || set.front() != self_ || set.size() > max_members_) return false;
  History& history = sets_[set];
  if (history.groups < recurs_ || comms_->HasLive(set) || WithDevices(set) != set) return false;
  if (history.attempts.wait == 0) return true;
  --history.attempts.wait;
  return false;
}

// ---- what becomes of it ----

void CommDemand::Failed(const CommSet& set, bool cover, bool soon) {
  if (!cover) {
    if (!soon) sets_[set].attempts.Fail();
  } else if (wish_ && wish_->set == set) {
    if (soon) {
      wish_->attempts.wait = WithDevices(set) != set ? 0 : 1;
    } else {
      wish_->attempts.Fail();
    }
  }
}

void CommDemand::Made(const CommSet& set) {
  if (wish_ && wish_->set == set) wish_.reset();
  sets_[set].attempts = {};
}

void CommDemand::Broke(const Communicator& comm, const CommSet& gone) {
  if (!comm.cover) {
    if (comm.leader() == self_ && !comm.usable) Failed(comm.set, false, false);
    return;
  }
  CommSet left;
  for (const Incarnation member : WithDevices(comm.set)) {
    if (!Contains(gone, member)) left.push_back(member);
  }
  Attempts attempts;
  if (wish_ && wish_->set == comm.set) {
    attempts = wish_->attempts;
    wish_.reset();
  }
  if (left.size() < 2 || left.front() != self_) return;
  wish_ = Wish{.set = left};
  if (left != comm.set) return;
  wish_->attempts = attempts;
  wish_->attempts.Fail();
}

}  // namespace prd
