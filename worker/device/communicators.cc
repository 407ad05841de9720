#include "worker/device/communicators.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace prd {
namespace {

using Kind = CommMessage::Kind;

// Without a device: groups whose members may still propose.
constexpr std::size_t kRecentGroups = 16;
// Of Options::timeout: between two questions for a word that does not come.
constexpr DurationNs kAsks = 6;

}  // namespace

// ---- groups ----

Communicators::~Communicators() { Join(0, kNoRun); }

void Communicators::Join(Incarnation self, RunId run) {
  for (auto& [id, record] : comms_) {
    if (record.comm != nullptr) gpu_->CommAbort(record.comm);
  }
  comms_.clear();
  ++peers_version_;
  making_.reset();
  sets_.clear();
  wish_.reset();
  no_device_.clear();
  known_.clear();
  holder_.clear();
  recent_.clear();
  last_begun_ = kNoGroup;
  running_.reset();
  ways_.clear();
  outgoing_.clear();
  poll_at_.reset();
  self_ = self;
  run_ = run;
}

// Remembers its members. Who has another's rank has taken its place.
void Communicators::Know(Instant now, const Group& group) {
  if (known_.size() > kMaxKnown) known_.clear();
  if (holder_.size() > kMaxKnown) holder_.clear();
  for (const GroupMember& member : group.members) {
    known_.try_emplace(member.incarnation, member);
    Incarnation& holder = holder_[member.rank];
    const Incarnation before = std::exchange(holder, member.incarnation);
    if (before != 0 && before != member.incarnation) OnLost(now, before);
  }
}

const GroupMember* Communicators::Known(Incarnation member) const {
  if (const auto known = known_.find(member); known != known_.end()) return &known->second;
  for (const auto& [id, record] : comms_) {
    const auto rank = record.rank_of.find(member);
    if (rank != record.rank_of.end())
      return &record.members[static_cast<std::size_t>(rank->second)];
  }
  return nullptr;
}

Communicators::Set Communicators::SetOf(const Group& group) {
  std::vector<std::pair<Rank, Incarnation>> ranked;
  for (const GroupMember& member : group.members) {
    ranked.emplace_back(member.rank, member.incarnation);
  }
  std::sort(ranked.begin(), ranked.end());
  Set set;
  for (const auto& [rank, incarnation] : ranked) set.push_back(incarnation);
  return set;
}

// Whether this group may be reduced on it.
bool Communicators::Serves(const Record& record, const Group& group, const Set& set) {
  if (!record.cover) return record.set == set;
  return std::all_of(group.members.begin(), group.members.end(), [&](const GroupMember& member) {
    return record.rank_of.count(member.incarnation) != 0;
  });
}

std::optional<Communicators::Choice> Communicators::Begin(Instant now, const Group& group) {
  last_begun_ = std::max(last_begun_, group.id);
  if (gpu_ == nullptr) {
    recent_.push_front(group.members);
    if (recent_.size() > kRecentGroups) recent_.pop_back();
    return Choice{};
  }
  Know(now, group);
  Leave(false);
  ways_.erase(ways_.begin(), ways_.lower_bound(group.id));
  Sweep();
  if (group.members.size() < 2 || run_ == kNoRun) return Choice{};
  const Set set = SetOf(group);
  running_ = Running{.group = group.id,
                     .leader = set.front(),
                     .waits_on = {},
                     .choice = {},
                     .ask_at = now + options_.timeout / kAsks};
  bool may_wait = false;
  for (const auto& [id, record] : comms_) {
    if (record.state == State::kProposed || record.broken || record.retired) continue;
    if (!Serves(record, group, set)) continue;
    may_wait |= record.leads;
    if (record.state == State::kReady && record.quit.count(set.front()) == 0) {
      running_->waits_on.push_back(id);
    }
  }
  if (set.front() != self_) {
    Resolve();
    return running_->choice;
  }
  running_->choice = ChooseWay(group, set);
  if (!may_wait) return running_->choice;
  for (const Incarnation member : set) {
    if (member == self_) continue;
    Tell(member, {.kind = Kind::kWay,
                  .comm = running_->choice->comm,
                  .group = group.id,
                  .way = running_->choice->way});
  }
  return running_->choice;
}

// The way of a group that is led here.
Communicators::Choice Communicators::ChooseWay(const Group& group, const Set& set) const {
  const std::pair<const CommId, Record>* cover = nullptr;
  for (const auto& entry : comms_) {
    const Record& record = entry.second;
    if (!record.usable || record.broken || !record.leads || record.retired) continue;
    if (group.id <= record.after || !Serves(record, group, set)) continue;
    if (record.set == set) return {Way::kCollective, entry.first};
    if (cover == nullptr || record.set.size() < cover->second.set.size()) cover = &entry;
  }
  return cover == nullptr ? Choice{} : Choice{Way::kExchange, cover->first};
}

// Whether the leader's word is here, or none is to come any more.
void Communicators::Resolve() {
  if (!running_ || running_->choice) return;
  const auto word = ways_.find(running_->group);
  if (word != ways_.end() && word->second.from == running_->leader) {
    Choice choice = word->second.choice;
    ways_.erase(word);
    const auto at = comms_.find(choice.comm);
    if (choice.way != Way::kStaged && (at == comms_.end() || at->second.broken)) {
      SayBroken(running_->leader, choice.comm);
      choice = {};
    }
    running_->choice = choice;
    return;
  }
  std::erase_if(running_->waits_on, [&](CommId id) {
    const auto at = comms_.find(id);
    return at == comms_.end() || at->second.broken || at->second.retired ||
           at->second.quit.count(running_->leader) != 0;
  });
  if (running_->waits_on.empty()) running_->choice = Choice{};
}

std::optional<Communicators::Choice> Communicators::Told(const Group& group) const {
  if (!running_ || running_->group != group.id) return Choice{};
  return running_->choice;
}

void Communicators::End(Instant now, const Group& group, bool ok) {
  if (!running_ || running_->group != group.id) return;
  const std::optional<CommId> used = Leave(ok);
  Sweep();
  if (wish_ && wish_->wait > 0) --wish_->wait;
  if (!ok || !CanMake()) return;
  const Set set = SetOf(group);
  Count(group, set, used);
  WantCoverOf(group, set);
  TryWish(now);
  TryRecurring(now, set);
}

// The group that runs does not any more. Returns what it was to use. Of one that failed, the others
// may have asked something of it that this worker will not: it is of no more use.
std::optional<CommId> Communicators::Leave(bool ok) {
  const std::optional<Running> running = std::exchange(running_, std::nullopt);
  if (!running || !running->choice || running->choice->way == Way::kStaged) return std::nullopt;
  const auto at = comms_.find(running->choice->comm);
  if (!ok && at != comms_.end()) BreakOne(at, "a group that uses it was given up", {}, true);
  return running->choice->comm;
}

double Communicators::ScoreAt(const Set& set, GroupId group) const {
  const auto at = sets_.find(set);
  if (at == sets_.end()) return 0;
  const double age = static_cast<double>(group - std::min(group, at->second.at));
  return at->second.score * std::exp2(-age / static_cast<double>(kHalfLife));
}

// A group of these members has succeeded: their score rises, and that of the cover that was used.
void Communicators::Count(const Group& group, const Set& set, std::optional<CommId> used) {
  const auto add = [&](const Set& to) {
    const double score = ScoreAt(to, group.id) + 1;
    History& history = sets_[to];
    history.score = score;
    history.at = group.id;
    return &history;
  };
  ++add(set)->groups;
  const auto at = used ? comms_.find(*used) : comms_.end();
  if (at != comms_.end() && at->second.set != set) add(at->second.set);
  while (sets_.size() > kMaxSets) {
    sets_.erase(std::min_element(sets_.begin(), sets_.end(), [](const auto& a, const auto& b) {
      return a.second.at < b.second.at;
    }));
  }
}

// ---- use ----

std::optional<Communicators::Use> Communicators::Find(CommId id, const Group& group) const {
  const auto at = comms_.find(id);
  if (at == comms_.end() || at->second.broken || at->second.state != State::kReady) {
    return std::nullopt;
  }
  Use use{.comm = at->second.comm, .ranks = {}};
  for (const GroupMember& member : group.members) {
    const auto rank = at->second.rank_of.find(member.incarnation);
    if (rank == at->second.rank_of.end()) return std::nullopt;
    use.ranks.push_back(rank->second);
  }
  return use;
}

void Communicators::Hold(CommId id) {
  if (const auto at = comms_.find(id); at != comms_.end()) ++at->second.held;
}

void Communicators::Release(CommId id) {
  const auto at = comms_.find(id);
  if (at == comms_.end() || at->second.held == 0) return;
  --at->second.held;
  Sweep();
}

std::string Communicators::WhyBroken(CommId id) const {
  const auto at = comms_.find(id);
  if (at == comms_.end()) return "its communicator is gone";
  return at->second.broken ? at->second.why : std::string();
}

void Communicators::Break(Instant now, CommId id, const std::string& why) {
  const auto at = comms_.find(id);
  if (at == comms_.end()) return;
  at->second.held = 0;
  if (at->second.broken) {
    Abort(at);
  } else {
    BreakOne(at, why, {}, true);
  }
  Resolve();
  TryWish(now);
}

// Something may be used by a reduction that runs, or by one whose leader has chosen it already.
bool Communicators::InUse(CommId id, const Record& record) const {
  if (record.held > 0) return true;
  if (record.broken) return false;
  if (running_ && running_->choice && running_->choice->comm == id) return true;
  return std::any_of(ways_.begin(), ways_.end(),
                     [&](const auto& word) { return word.second.choice.comm == id; });
}

// Lets go of those that are over and not used any more.
void Communicators::Sweep() {
  for (auto at = comms_.begin(); at != comms_.end();) {
    const auto next = std::next(at);
    const Record& record = at->second;
    if ((record.broken || record.retired) && !InUse(at->first, record)) {
      if (!record.broken) ++counters_.given_up;
      Abort(at);
    }
    at = next;
  }
}

// ---- messages ----

void Communicators::OnMessage(Instant now, Incarnation from, const CommMessage& message) {
  if (run_ == kNoRun || from == self_) return;
  switch (message.kind) {
    case Kind::kPropose:
      OnProposal(now, from, message);
      break;
    case Kind::kDecline:
      OnDecline(now, from, message);
      break;
    case Kind::kWay:
      OnWay(from, message);
      break;
    case Kind::kAsk:
      OnAsk(from, message);
      break;
    default:
      OnOfRecord(now, from, message);
  }
  Resolve();
  Sweep();
  TryWish(now);
}

void Communicators::OnWay(Incarnation from, const CommMessage& message) {
  const bool running = running_ && running_->group == message.group && !running_->choice;
  if (gpu_ == nullptr || (message.group <= last_begun_ && !running)) return;
  Choice choice{.way = message.way, .comm = message.comm};
  if (choice.way == Way::kStaged) choice.comm = {};
  const auto at = comms_.find(choice.comm);
  const bool member = at != comms_.end() && at->second.rank_of.count(from) != 0;
  if (choice.way != Way::kStaged && !member && Known(from) == nullptr) return;
  // A communicator that is not here (any more) is kept all the same: Resolve answers for it.
  if (ways_.try_emplace(message.group, Word{from, choice}).second && ways_.size() > kMaxWays) {
    ways_.erase(ways_.begin());
  }
}

// A word of this worker's may be lost, of a group or of a communicator's end.
void Communicators::OnAsk(Incarnation from, const CommMessage& message) {
  const auto at = comms_.find(message.comm);
  const bool here = at != comms_.end() && !at->second.broken;
  if (!here) Tell(from, {.kind = Kind::kGone, .comm = message.comm});
  if (here && !at->second.leads) Tell(from, {.kind = Kind::kRetired, .comm = message.comm});
  if (message.group == kNoGroup || message.group > last_begun_) return;  // it is still to come
  Choice choice;
  if (running_ && running_->group == message.group && running_->leader == self_) {
    choice = running_->choice.value_or(Choice{});
  }
  Tell(from, {.kind = Kind::kWay, .comm = choice.comm, .group = message.group, .way = choice.way});
}

void Communicators::SayBroken(Incarnation to, CommId comm) {
  Tell(to, {.kind = Kind::kBroken, .comm = comm, .reason = "it is not here (any more)"});
}

// About one that is here, from one of its members.
void Communicators::OnOfRecord(Instant now, Incarnation from, const CommMessage& message) {
  const auto at = comms_.find(message.comm);
  if (at == comms_.end() || at->second.broken) {
    if (message.kind == Kind::kCreate) SayBroken(from, message.comm);
    if (message.kind == Kind::kReady || message.kind == Kind::kGiveUp) {
      Tell(from, {.kind = Kind::kGone, .comm = message.comm});
    }
    return;
  }
  Record& record = at->second;
  if (record.rank_of.count(from) == 0) return;
  const bool from_leader = record.set.front() == from;
  if (message.kind == Kind::kBroken) {
    BreakOne(at, message.reason, message.members, false);
  } else if (message.kind == Kind::kAccept && Leads(record) && record.state == State::kProposed) {
    record.answered.insert(from);
    Answered(now, at);
  } else if (message.kind == Kind::kCreate && from_leader && record.state == State::kProposed) {
    Make(now, at, message.id);
  } else if (message.kind == Kind::kReady && Leads(record) && record.state != State::kProposed) {
    record.after = std::max(record.after, message.group);
    record.answered.insert(from);
    AllReady(now, at);
  } else if (message.kind == Kind::kUse && from_leader && record.state == State::kReady) {
    record.after = message.group;
    BecomesUsable(now, at);
  } else if (message.kind == Kind::kRetire && from_leader) {
    OnRetire(now, at);
  } else if (message.kind == Kind::kGiveUp && Leads(record) && record.usable) {
    Retire(now, at);
  } else if (message.kind == Kind::kRetired && record.cover && record.state == State::kReady) {
    record.quit.insert(from);
    Quit(now, at);
  } else if (message.kind == Kind::kGone) {
    OnGone(now, from, at);
  }
}

// A member does not have it any more: it has retired, as here, or this worker has missed that it is
// broken.
void Communicators::OnGone(Instant now, Incarnation from, Records::iterator at) {
  if (at->second.leads && !at->second.retired) {
    BreakOne(at, "it is not at all of its members (any more)", {}, true);
  } else if (at->second.cover) {
    at->second.quit.insert(from);
    Quit(now, at);
  }
}

void Communicators::OnLost(Instant now, Incarnation peer) {
  for (auto at = comms_.begin(); at != comms_.end();) {
    const auto next = std::next(at);
    if (at->second.rank_of.count(peer) != 0 && peer != self_) {
      const GroupMember* member = Known(peer);
      const std::string who = member == nullptr ? "" : " " + std::to_string(member->rank);
      BreakOne(at, "the connection to rank" + who + " broke", {peer}, true);
    }
    at = next;
  }
  Resolve();
  TryWish(now);
}

void Communicators::Tell(Incarnation to, CommMessage message) {
  if (const GroupMember* member = Known(to)) outgoing_.push_back({*member, std::move(message)});
}

void Communicators::TellAll(const Record& record, const CommMessage& message) {
  for (const GroupMember& member : record.members) {
    if (member.incarnation != self_) outgoing_.push_back({member, message});
  }
}

// ---- for its owner ----

std::vector<GroupMember> Communicators::Peers() const {
  std::map<Incarnation, const GroupMember*> peers;
  for (const auto& [id, record] : comms_) {
    for (const GroupMember& member : record.members) {
      if (member.incarnation != self_) peers.emplace(member.incarnation, &member);
    }
  }
  std::vector<GroupMember> all;
  for (const auto& [incarnation, member] : peers) all.push_back(*member);
  return all;
}

std::map<CommId, std::vector<Incarnation>> Communicators::Usable() const {
  std::map<CommId, std::vector<Incarnation>> usable;
  for (const auto& [id, record] : comms_) {
    if (record.usable && !record.broken && !record.retired) usable.emplace(id, record.set);
  }
  return usable;
}

Communicators::Counters Communicators::counters() const {
  Counters counters = counters_;
  counters.here = comms_.size();
  counters.making = making_.has_value();
  return counters;
}

void Communicators::Service(Instant now) {
  if (gpu_ == nullptr) return;
  if (id_pending_) {
    if (const std::unique_ptr<Gpu::Id> id = gpu_->TakeUniqueId()) {
      id_pending_ = false;
      if (id->status.ok()) unique_id_ = id->id;
    }
  }
  if (making_) Look(now, *making_);
  if (running_ && !running_->choice && now >= running_->ask_at) {
    running_->ask_at = now + options_.timeout / kAsks;
    Tell(running_->leader,
         {.kind = Kind::kAsk, .comm = running_->waits_on.front(), .group = running_->group});
  }
  CheckAll(now);
  Resolve();
  Sweep();
  TryWish(now);
  poll_at_.reset();
  if (making_ || id_pending_) poll_at_ = now + kPoll;
}

// Now and then, whether they are still what they seem to be.
void Communicators::CheckAll(Instant now) {
  for (auto at = comms_.begin(); at != comms_.end();) {
    const auto next = std::next(at);
    Record& record = at->second;
    if (now >= record.check_at && !record.broken) {
      record.check_at = now + options_.timeout;
      if (!record.leads && !record.retired) {
        BreakOne(at, "not all of its members gave it up", {}, true);
      } else if (!Leads(record)) {
        Tell(record.set.front(), {.kind = Kind::kAsk, .comm = at->first});
      }
    }
    at = next;
  }
}

std::optional<Instant> Communicators::NextDeadline() const {
  std::optional<Instant> next = poll_at_;
  if (running_ && !running_->choice)
    next = std::min(next.value_or(running_->ask_at), running_->ask_at);
  for (const auto& [id, record] : comms_) {
    if (record.broken) continue;
    next = std::min(next.value_or(record.check_at), record.check_at);
  }
  return next;
}

}  // namespace prd
