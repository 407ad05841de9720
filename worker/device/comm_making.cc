// How communicators come and go: proposals, making, giving up.
#include <algorithm>

#include "worker/device/communicators.h"

namespace prd {
namespace {

using Kind = CommMessage::Kind;

// Attempts that fail double the groups until the next one, up to 1 << this.
constexpr std::uint32_t kMaxDoublings = 6;

std::uint32_t WaitAfter(std::uint32_t failed) { return 1u << std::min(failed, kMaxDoublings); }

bool Contains(const std::vector<Incarnation>& set, Incarnation member) {
  return std::find(set.begin(), set.end(), member) != set.end();
}

}  // namespace

// ---- what is wanted ----

bool Communicators::HasLive(const Set& set) const {
  return std::any_of(comms_.begin(), comms_.end(), [&](const auto& entry) {
    return entry.second.set == set && !entry.second.broken;
  });
}

// Whether a cover of all these is here, or on its way.
bool Communicators::Covered(const Set& set) const {
  return std::any_of(comms_.begin(), comms_.end(), [&](const auto& entry) {
    const Record& record = entry.second;
    return record.cover && !record.broken && record.leads &&
           std::all_of(set.begin(), set.end(),
                       [&](Incarnation member) { return record.rank_of.count(member) != 0; });
  });
}

Communicators::Set Communicators::WithDevices(const Set& set) const {
  Set with;
  for (const Incarnation member : set) {
    if (no_device_.count(member) == 0) with.push_back(member);
  }
  return with;
}

void Communicators::WantCover(const Set& set) {
  const Set with = WithDevices(set);
  if (with.size() < 2 || with.front() != self_ || with.size() > options_.cover_members) return;
  if (Covered(with) || HasLive(with) || (wish_ && wish_->set == with)) return;
  wish_ = Wish{.set = with};
}

// A group of these has succeeded.
void Communicators::WantCoverOf(const Group& group, const Set& set) {
  const bool all = group.kind == GroupKind::kInitial || group.kind == GroupKind::kAverage ||
                   group.kind == GroupKind::kRound;
  if (all) return WantCover(set);
  if (set.front() != self_ || Covered(WithDevices(set))) return;
  // It brings somebody whom the largest cover does not have yet: that one grows.
  const Record* largest = nullptr;
  for (const auto& [id, record] : comms_) {
    if (!record.cover || !record.usable || record.broken) continue;
    if (largest == nullptr || record.set.size() > largest->set.size()) largest = &record;
  }
  if (largest == nullptr) return;
  Group both = group;
  for (const GroupMember& member : largest->members) {
    if (!Contains(set, member.incarnation)) both.members.push_back(member);
  }
  WantCover(SetOf(both));
}

void Communicators::TryWish(Instant now) {
  if (!wish_ || wish_->wait > 0 || making_ || !CanMake()) return;
  const Set with = WithDevices(wish_->set);
  if (with.size() < 2 || with.front() != self_ || Covered(with) || HasLive(with)) {
    wish_.reset();
    return;
  }
  wish_->set = with;
  Propose(now, with, true);
}

void Communicators::TryRecurring(Instant now, const Set& set) {
  if (set.size() < 2 || set.front() != self_ || set.size() > options_.cover_members) return;
  History& history = sets_[set];
  if (history.groups < options_.recurs || HasLive(set) || WithDevices(set) != set) return;
  if (history.wait > 0) {
    --history.wait;
  } else if (!making_) {
    Propose(now, set, false);
  }
}

// ---- proposals ----

Communicators::Record Communicators::NewRecord(Instant now, const Set& set, bool cover) const {
  Record record;
  record.set = set;
  record.cover = cover;
  record.deadline = record.check_at = now + options_.timeout;
  for (const Incarnation member : set) {
    record.rank_of.emplace(member, static_cast<int>(record.members.size()));
    record.members.push_back(*Known(member));
  }
  return record;
}

void Communicators::Propose(Instant now, const Set& set, bool cover) {
  const bool known = std::all_of(set.begin(), set.end(),
                                 [&](Incarnation member) { return Known(member) != nullptr; });
  if (!known || !MakeRoom(now, set, cover)) {
    Record none;
    none.set = set;
    none.cover = cover;
    return Failed(none, false);
  }
  const CommId id{.leader = self_, .number = ++numbers_};
  const auto at = comms_.emplace(id, NewRecord(now, set, cover)).first;
  ++peers_version_;
  making_ = id;
  poll_at_ = now;
  if (!unique_id_ && !id_pending_) {
    gpu_->MakeUniqueId();
    id_pending_ = true;
  }
  TellAll(at->second, {.kind = Kind::kPropose, .comm = id, .cover = cover, .members = set});
}

// Whether there is room for one more. If not, and these are worth it, makes some, for later.
bool Communicators::MakeRoom(Instant now, const Set& set, bool cover) {
  if (comms_.size() + gpu_->aborting() < options_.limit) return true;
  const double score = ScoreAt(set, last_begun_);
  Records::iterator lowest = comms_.end();
  for (auto at = comms_.begin(); at != comms_.end(); ++at) {
    const Record& record = at->second;
    if (record.asked || record.broken || record.retired || !record.leads) return false;
    if (!record.usable) continue;
    if (lowest == comms_.end()) lowest = at;
    const double a = ScoreAt(record.set, last_begun_);
    const double b = ScoreAt(lowest->second.set, last_begun_);
    if (a < b || (a == b && sets_[record.set].at < sets_[lowest->second.set].at)) lowest = at;
  }
  if (lowest == comms_.end()) return false;
  if (!cover && score < 2 * ScoreAt(lowest->second.set, last_begun_)) return false;
  lowest->second.asked = true;
  if (Leads(lowest->second)) {
    Retire(now, lowest);
  } else {
    Tell(lowest->second.set.front(), {.kind = Kind::kGiveUp, .comm = lowest->first});
  }
  return false;
}

void Communicators::OnProposal(Instant now, Incarnation from, const CommMessage& message) {
  const auto decline = [&](Refusal refusal, std::string reason) {
    ++counters_.declined;
    const CommMessage answer{.kind = Kind::kDecline,
                             .comm = message.comm,
                             .refusal = refusal,
                             .reason = std::move(reason)};
    if (gpu_ != nullptr) return Tell(from, answer);
    for (const SharedList<GroupMember>& members : recent_) {
      for (const GroupMember& member : members) {
        if (member.incarnation != from) continue;
        outgoing_.push_back({member, answer});
        return;
      }
    }
  };
  if (gpu_ == nullptr) return decline(Refusal::kNoDevice, "it has no device");
  const Set& set = message.members;
  if (Known(from) == nullptr || message.comm.leader != from || comms_.count(message.comm) != 0 ||
      set.size() < 2 || set.front() != from || !Contains(set, self_)) {
    return;
  }
  if (Status status = gpu_->nccl(); !status.ok()) {
    return decline(Refusal::kNoDevice, status.message());
  }
  Rank last = kNoRank;
  for (const Incarnation member : set) {
    const GroupMember* known = Known(member);
    if (known == nullptr) return decline(Refusal::kUnknown, "it does not know all members");
    if (known->rank <= last) return;
    last = known->rank;
  }
  // Its leader would not propose these again, if it had one of them that stays.
  for (auto at = comms_.begin(); at != comms_.end();) {
    const auto next = std::next(at);
    const bool stays = at->second.leads && !at->second.retired && !at->second.broken;
    if (at->second.set == set && stays) {
      BreakOne(at, "its leader proposes it again", {}, true);
    }
    at = next;
  }
  if (making_) return decline(Refusal::kBusy, "it is making another one");
  if (!MakeRoom(now, set, message.cover)) return decline(Refusal::kNoRoom, "it has no room for it");
  const auto at = comms_.emplace(message.comm, NewRecord(now, set, message.cover)).first;
  // The leader's time is shorter, and it tells when it is over.
  at->second.deadline = now + 2 * options_.timeout;
  ++peers_version_;
  making_ = message.comm;
  poll_at_ = now;
  Tell(from, {.kind = Kind::kAccept, .comm = message.comm});
}

void Communicators::OnDecline(Instant now, Incarnation from, const CommMessage& message) {
  if (gpu_ == nullptr || message.comm.leader != self_) return;
  if (message.refusal == Refusal::kNoDevice && Known(from) != nullptr) no_device_.insert(from);
  const auto at = comms_.find(message.comm);
  if (at == comms_.end() || at->second.broken || at->second.state != State::kProposed ||
      at->second.rank_of.count(from) == 0) {
    return;
  }
  Record& record = at->second;
  record.answered.insert(from);
  // The one that is the longest to stay.
  const bool later = record.refused &&
                     (*record.refused == Refusal::kNoRoom || *record.refused == Refusal::kUnknown);
  if (!later) record.refused = message.refusal;
  Answered(now, at);
}

void Communicators::Answered(Instant now, Records::iterator at) {
  if (at->second.answered.size() + 1 < at->second.set.size()) return;
  if (at->second.refused) return Withdraw(at);
  if (unique_id_) Create(now, at);
}

void Communicators::Withdraw(Records::iterator at) {
  TellAll(at->second, {.kind = Kind::kRetire, .comm = at->first});
  const Refusal why = *at->second.refused;
  Failed(at->second, why == Refusal::kBusy || why == Refusal::kNoDevice);
  Abort(at);
}

// Puts off the next attempt. `soon`: nothing speaks against one after the next group; at once, if
// it is another set now.
void Communicators::Failed(const Record& record, bool soon) {
  if (!record.cover) {
    History& history = sets_[record.set];
    if (!soon) history.wait = WaitAfter(++history.failed);
  } else if (wish_ && wish_->set == record.set) {
    const bool other = WithDevices(wish_->set) != wish_->set;
    wish_->wait = soon ? (other ? 0 : 1) : WaitAfter(++wish_->failed);
  }
}

// ---- making ----

void Communicators::Create(Instant now, Records::iterator at) {
  const Gpu::UniqueId id = *unique_id_;
  unique_id_.reset();
  CommMessage message{.kind = Kind::kCreate, .comm = at->first};
  message.id = id;
  TellAll(at->second, message);
  Make(now, at, id);
}

void Communicators::Make(Instant now, Records::iterator at, const Gpu::UniqueId& id) {
  Record& record = at->second;
  record.state = State::kMaking;
  record.answered.clear();
  record.deadline = now + (Leads(record) ? 1 : 2) * options_.timeout;
  record.comm = gpu_->CommInit(static_cast<int>(record.set.size()), id, record.rank_of.at(self_));
  poll_at_ = now;
}

// The one that is being made.
void Communicators::Look(Instant now, CommId id) {
  const auto at = comms_.find(id);
  if (at == comms_.end()) return making_.reset();
  Record& record = at->second;
  if (record.state == State::kMaking) {
    const Result<bool> busy = gpu_->CommBusy(record.comm);
    if (!busy.ok()) return BreakOne(at, busy.status().message(), {}, true);
    if (!*busy) return Ready(now, at);
  }
  const bool answered = Leads(record) && record.answered.size() + 1 == record.set.size();
  if (record.state == State::kProposed && answered && !record.refused) {
    if (unique_id_) return Create(now, at);
    if (!id_pending_) return BreakOne(at, "NCCL gives no unique id", {}, true);
  }
  if (now < record.deadline) return;
  Set silent;
  for (const Incarnation member : record.set) {
    const bool heard = !Leads(record) || record.answered.count(member) != 0 || member == self_;
    if (!heard && record.state == State::kProposed) silent.push_back(member);
  }
  BreakOne(at, "it was not ready in time", silent, true);
}

void Communicators::Ready(Instant now, Records::iterator at) {
  Record& record = at->second;
  record.state = State::kReady;
  if (Leads(record)) {
    record.answered.insert(self_);
    record.after = std::max(record.after, last_begun_);
    return AllReady(now, at);
  }
  making_.reset();
  Tell(record.set.front(), {.kind = Kind::kReady, .comm = at->first, .group = last_begun_});
}

void Communicators::AllReady(Instant now, Records::iterator at) {
  Record& record = at->second;
  if (record.usable || record.answered.size() < record.set.size()) return;
  making_.reset();
  if (wish_ && wish_->set == record.set) wish_.reset();
  History& history = sets_[record.set];
  history.failed = history.wait = 0;
  TellAll(record, {.kind = Kind::kUse, .comm = at->first, .group = record.after});
  BecomesUsable(now, at);
}

void Communicators::BecomesUsable(Instant now, Records::iterator at) {
  if (at->second.usable) return;
  at->second.usable = true;
  ++counters_.made;
  if (!at->second.cover) return;
  // Smaller ones are of no more use.
  const std::map<Incarnation, int>& all = at->second.rank_of;
  for (auto& [id, other] : comms_) {
    const bool smaller = std::all_of(other.set.begin(), other.set.end(),
                                     [&](Incarnation member) { return all.count(member) != 0; });
    if (id == at->first || !smaller || !other.cover || !other.usable || other.broken) continue;
    if (Leads(other) && other.leads) Retire(now, comms_.find(id));
  }
}

// ---- the end ----

// REQUIRES: it is usable. Does nothing if it is not led here.
void Communicators::Retire(Instant now, Records::iterator at) {
  if (at->second.retired || !at->second.leads) return;
  TellAll(at->second, {.kind = Kind::kRetire, .comm = at->first});
  OnRetire(now, at);
}

// Its leader has said so; Sweep lets go of it.
void Communicators::OnRetire(Instant now, Records::iterator at) {
  Record& record = at->second;
  if (!record.usable) {
    Abort(at);  // withdrawn
  } else if (record.cover) {
    Quit(now, at);
  } else {
    record.retired = true;
  }
}

void Communicators::Quit(Instant now, Records::iterator at) {
  Record& record = at->second;
  if (record.leads) {
    record.leads = false;
    record.quit.insert(self_);
    record.check_at = now + options_.timeout;
    TellAll(record, {.kind = Kind::kRetired, .comm = at->first});
  }
  record.retired = record.quit.size() == record.set.size();
}

// `gone`: members of it, if that is why.
void Communicators::BreakOne(Records::iterator at, const std::string& why, const Set& gone,
                             bool tell) {
  Record& record = at->second;
  if (record.broken) return;
  if (tell) {
    TellAll(record, {.kind = Kind::kBroken, .comm = at->first, .members = gone, .reason = why});
  }
  record.broken = true;
  record.why = why;
  if (record.state != State::kProposed) ++counters_.broken;
  if (making_ == at->first) making_.reset();
  if (record.cover) {
    Reform(record, gone);
  } else if (Leads(record) && !record.usable) {
    Failed(record, false);
  }
  if (record.held == 0) Abort(at);
}

// Its survivors want another one.
void Communicators::Reform(const Record& record, const Set& gone) {
  Set left;
  for (const Incarnation member : WithDevices(record.set)) {
    if (!Contains(gone, member)) left.push_back(member);
  }
  std::uint32_t failed = 0;
  if (wish_ && wish_->set == record.set) {
    failed = wish_->failed;
    wish_.reset();
  }
  if (left.size() < 2 || left.front() != self_ || !CanMake()) return;
  wish_ = Wish{.set = left};
  if (left != record.set) return;
  wish_->failed = failed + 1;
  wish_->wait = WaitAfter(wish_->failed);
}

void Communicators::Abort(Records::iterator at) {
  if (at->second.comm != nullptr) gpu_->CommAbort(at->second.comm);
  if (making_ == at->first) making_.reset();
  comms_.erase(at);
  ++peers_version_;
}

}  // namespace prd
