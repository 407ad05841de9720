#include "worker/device/communicators.h"

#include <algorithm>
#include <utility>

namespace prd {
namespace {

using Kind = CommMessage::Kind;
using State = Communicator::State;

// Of Options::timeout: between two questions for a word that does not come.
constexpr DurationNs kAsks = 6;

}  // namespace

Communicators::Communicators(Gpu* gpu, const Options& options)
    : gpu_(gpu),
      options_(options),
      comms_(gpu),
      post_(&comms_),
      demand_(&comms_, options.recurs, options.cover_members),
      making_(gpu, &post_, options.timeout),
      ways_(&comms_, &post_, options.timeout / kAsks) {}

void Communicators::Join(Incarnation self, RunId run) {
  comms_.Clear();
  post_.Join(self);
  demand_.Join(self);
  making_.Join(self);
  ways_.Join(self);
  self_ = self;
  run_ = run;
}

// ---- groups ----

std::optional<Communicators::Choice> Communicators::Begin(Instant now, const Group& group) {
  ways_.Reach(group.id);
  if (gpu_ == nullptr) {
    post_.KnowToDecline(group);
    return Choice{};
  }
  for (const Incarnation gone : post_.Know(group)) OnLost(now, gone);
  Leave(false);
  Sweep();
  if (group.members.size() < 2 || run_ == kNoRun) return Choice{};
  ways_.Begin(now, group.id, SetOf(group.members.get()));
  return ways_.Told(group.id);
}

void Communicators::End(Instant now, const Group& group, bool ok) {
  if (!ways_.Runs(group.id)) return;
  const std::optional<CommId> used = Leave(ok);
  Sweep();
  demand_.GroupEnded();
  if (!ok || !CanMake()) return;
  const CommSet set = SetOf(group.members.get());
  demand_.Succeeded(group, set, used ? comms_.Find(*used) : nullptr);
  TryCover(now);
  if (demand_.RecursEnough(set) && !making_.busy()) Propose(now, set, false);
}

// The group that runs does not any more. Returns what it was to use. Of one that failed, the others
// may have asked something of it that this worker will not: it is of no more use.
std::optional<CommId> Communicators::Leave(bool ok) {
  const std::optional<CommId> used = ways_.End();
  Communicator* comm = used && !ok ? comms_.Find(*used) : nullptr;
  if (comm != nullptr) BreakOne(comm, "a group that uses it was given up", {}, true);
  return used;
}

// ---- use ----

std::optional<Communicators::Use> Communicators::Find(CommId id, const Group& group) const {
  const Communicator* comm = comms_.Live(id);
  if (comm == nullptr || comm->state != State::kReady) return std::nullopt;
  Use use{.comm = comm->comm, .ranks = {}};
  for (const GroupMember& member : group.members) {
    const auto rank = comm->rank_of.find(member.incarnation);
    if (rank == comm->rank_of.end()) return std::nullopt;
    use.ranks.push_back(rank->second);
  }
  return use;
}

void Communicators::Hold(CommId id) {
  if (Communicator* comm = comms_.Find(id)) ++comm->held;
}

void Communicators::Release(CommId id) {
  Communicator* comm = comms_.Find(id);
  if (comm == nullptr || comm->held == 0) return;
  --comm->held;
  Sweep();
}

std::string Communicators::WhyBroken(CommId id) const {
  const Communicator* comm = comms_.Find(id);
  if (comm == nullptr) return "its communicator is gone";
  return comm->broken ? comm->why : std::string();
}

void Communicators::Break(Instant now, CommId id, const std::string& why) {
  Communicator* comm = comms_.Find(id);
  if (comm == nullptr) return;
  comm->held = 0;
  if (comm->broken) {
    Abort(*comm);
  } else {
    BreakOne(comm, why, {}, true);
  }
  ways_.Resolve();
  TryCover(now);
}

// Lets go of those that are over and not used any more: by a reduction that runs, or by one whose
// leader has chosen it already.
void Communicators::Sweep() {
  comms_.ForEach([this](const Communicator* comm) {
    if (!comm->over() || comm->held > 0) return;
    if (!comm->broken && ways_.HasChosen(comm->id)) return;
    if (!comm->broken) ++counters_.given_up;
    Abort(*comm);
  });
}

void Communicators::Abort(const Communicator& comm) {
  making_.End(comm.id);
  comms_.Abort(comm.id);
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
      if (gpu_ != nullptr) ways_.OnWay(from, message);
      break;
    case Kind::kAsk:
      OnAsk(from, message);
      break;
    default:
      OnOfOne(now, from, message);
  }
  ways_.Resolve();
  Sweep();
  TryCover(now);
}

// A word of this worker's may be lost, of a group or of a communicator's end.
void Communicators::OnAsk(Incarnation from, const CommMessage& message) {
  const Communicator* comm = comms_.Live(message.comm);
  if (comm == nullptr) post_.Tell(from, {.kind = Kind::kGone, .comm = message.comm});
  if (comm != nullptr && !comm->leads) {
    post_.Tell(from, {.kind = Kind::kRetired, .comm = message.comm});
  }
  ways_.Answer(from, message.group);
}

// About one that is here, from one of its members.
void Communicators::OnOfOne(Instant now, Incarnation from, const CommMessage& message) {
  Communicator* comm = comms_.Live(message.comm);
  if (comm == nullptr) {
    if (message.kind == Kind::kCreate) post_.TellBroken(from, message.comm);
    if (message.kind == Kind::kReady || message.kind == Kind::kGiveUp) {
      post_.Tell(from, {.kind = Kind::kGone, .comm = message.comm});
    }
    return;
  }
  if (!comm->Has(from)) return;
  const bool from_leader = comm->leader() == from;
  if (message.kind == Kind::kBroken) {
    BreakOne(comm, message.reason, message.members, false);
  } else if (message.kind == Kind::kAccept && Leads(*comm) && comm->state == State::kProposed) {
    Answered(now, comm, from, std::nullopt);
  } else if (message.kind == Kind::kCreate && from_leader && comm->state == State::kProposed) {
    making_.Make(now, comm, message.id);
  } else if (message.kind == Kind::kReady && Leads(*comm) && comm->state != State::kProposed) {
    comm->after = std::max(comm->after, message.group);
    ReadyAt(now, comm, from);
  } else if (message.kind == Kind::kUse && from_leader && comm->state == State::kReady) {
    comm->after = message.group;
    BecomesUsable(now, comm);
  } else if (message.kind == Kind::kRetire && from_leader) {
    OnRetire(now, comm);
  } else if (message.kind == Kind::kGiveUp && Leads(*comm) && comm->usable) {
    Retire(now, comm);
  } else if (message.kind == Kind::kRetired && comm->cover && comm->state == State::kReady) {
    comm->quit.insert(from);
    Quit(now, comm);
  } else if (message.kind == Kind::kGone) {
    OnGone(now, from, comm);
  }
}

// A member does not have it any more: it has retired, as here, or this worker has missed that it is
// broken.
void Communicators::OnGone(Instant now, Incarnation from, Communicator* comm) {
  if (comm->leads && !comm->retired) {
    BreakOne(comm, "it is not at all of its members (any more)", {}, true);
  } else if (comm->cover) {
    comm->quit.insert(from);
    Quit(now, comm);
  }
}

void Communicators::OnLost(Instant now, Incarnation peer) {
  comms_.ForEach([&](Communicator* comm) {
    if (!comm->Has(peer) || peer == self_) return;
    const std::string rank = " " + std::to_string(post_.Known(peer)->rank);
    BreakOne(comm, "the connection to rank" + rank + " broke", {peer}, true);
  });
  ways_.Resolve();
  TryCover(now);
}

// ---- proposals ----

void Communicators::TryCover(Instant now) {
  if (making_.busy() || !CanMake()) return;
  if (const std::optional<CommSet> set = demand_.DueCover()) Propose(now, *set, true);
}

Communicator* Communicators::Add(Instant now, CommId id, const CommSet& set, bool cover) {
  Communicator comm{.id = id, .set = set, .cover = cover, .check_at = now + options_.timeout};
  for (const Incarnation member : set) {
    comm.rank_of.emplace(member, static_cast<int>(comm.members.size()));
    comm.members.push_back(*post_.Known(member));
  }
  Communicator* added = comms_.Add(std::move(comm));
  making_.Begin(now, *added);
  return added;
}

void Communicators::Propose(Instant now, const CommSet& set, bool cover) {
  const bool known = std::all_of(
      set.begin(), set.end(), [&](Incarnation member) { return post_.Known(member) != nullptr; });
  if (!known || !MakeRoom(now, set, cover)) return demand_.Failed(set, cover, false);
  const CommId id{.leader = self_, .number = ++numbers_};
  post_.TellAll(*Add(now, id, set, cover),
                {.kind = Kind::kPropose, .comm = id, .cover = cover, .members = set});
}

// Whether there is room for one more. If not, and these are worth it, makes some, for later.
bool Communicators::MakeRoom(Instant now, const CommSet& set, bool cover) {
  if (comms_.all().size() + gpu_->aborting() < options_.limit) return true;
  const std::optional<CommId> id = demand_.Replaceable(set, cover, ways_.newest());
  if (!id) return false;
  Communicator* comm = comms_.Find(*id);
  comm->asked = true;
  if (Leads(*comm)) {
    Retire(now, comm);
  } else {
    post_.Tell(comm->leader(), {.kind = Kind::kGiveUp, .comm = *id});
  }
  return false;
}

void Communicators::OnProposal(Instant now, Incarnation from, const CommMessage& message) {
  const auto decline = [&](Refusal refusal, std::string reason) {
    ++counters_.declined;
    CommMessage answer{.kind = Kind::kDecline,
                       .comm = message.comm,
                       .refusal = refusal,
                       .reason = std::move(reason)};
    gpu_ != nullptr ? post_.Tell(from, std::move(answer)) : post_.Decline(from, std::move(answer));
  };
  if (gpu_ == nullptr) return decline(Refusal::kNoDevice, "it has no device");
  const CommSet& set = message.members;
  if (post_.Known(from) == nullptr || message.comm.leader != from ||
      comms_.Find(message.comm) != nullptr || set.size() < 2 || set.front() != from ||
      std::find(set.begin(), set.end(), self_) == set.end()) {
    return;
  }
  if (Status status = gpu_->nccl(); !status.ok()) {
    return decline(Refusal::kNoDevice, status.message());
  }
  Rank last = kNoRank;
  for (const Incarnation member : set) {
    const GroupMember* known = post_.Known(member);
    if (known == nullptr) return decline(Refusal::kUnknown, "it does not know all members");
    if (known->rank <= last) return;
    last = known->rank;
  }
  // Its leader would not propose these again, if it had one of them that stays.
  comms_.ForEach([&](Communicator* comm) {
    if (comm->set != set || !comm->leads || comm->over()) return;
    BreakOne(comm, "its leader proposes it again", {}, true);
  });
  if (making_.busy()) return decline(Refusal::kBusy, "it is making another one");
  if (!MakeRoom(now, set, message.cover)) return decline(Refusal::kNoRoom, "it has no room for it");
  Add(now, message.comm, set, message.cover);
  post_.Tell(from, {.kind = Kind::kAccept, .comm = message.comm});
}

void Communicators::OnDecline(Instant now, Incarnation from, const CommMessage& message) {
  if (gpu_ == nullptr || message.comm.leader != self_) return;
  if (message.refusal == Refusal::kNoDevice && post_.Known(from) != nullptr) {
    demand_.HasNoDevice(from);
  }
  Communicator* comm = comms_.Live(message.comm);
  if (comm == nullptr || comm->state != State::kProposed || !comm->Has(from)) return;
  Answered(now, comm, from, message.refusal);
}

void Communicators::Answered(Instant now, Communicator* comm, Incarnation from,
                             std::optional<Refusal> refusal) {
  const std::optional<Refusal> why = making_.Answer(now, comm, from, refusal);
  if (!why) return;
  post_.TellAll(*comm, {.kind = Kind::kRetire, .comm = comm->id});
  const bool soon = *why == Refusal::kBusy || *why == Refusal::kNoDevice;
  demand_.Failed(comm->set, comm->cover, soon);
  Abort(*comm);
}

// ---- making ----

void Communicators::PollMaking(Instant now) {
  Communicator* comm = comms_.Find(*making_.id());
  const Result<bool> ready = making_.Poll(now, comm);
  if (!ready.ok()) return BreakOne(comm, ready.status().message(), making_.Silent(*comm), true);
  if (*ready) Ready(now, comm);
}

void Communicators::Ready(Instant now, Communicator* comm) {
  if (Leads(*comm)) {
    comm->after = std::max(comm->after, ways_.newest());
    return ReadyAt(now, comm, self_);
  }
  making_.End(comm->id);
  post_.Tell(comm->leader(), {.kind = Kind::kReady, .comm = comm->id, .group = ways_.newest()});
}

void Communicators::ReadyAt(Instant now, Communicator* comm, Incarnation member) {
  if (comm->usable || !making_.IsReady(*comm, member)) return;
  making_.End(comm->id);
  demand_.Made(comm->set);
  post_.TellAll(*comm, {.kind = Kind::kUse, .comm = comm->id, .group = comm->after});
  BecomesUsable(now, comm);
}

void Communicators::BecomesUsable(Instant now, Communicator* comm) {
  if (comm->usable) return;
  comm->usable = true;
  ++counters_.made;
  if (!comm->cover) return;
  // Smaller ones are of no more use.
  comms_.ForEach([&](Communicator* other) {
    if (other == comm || !comm->HasAll(other->set)) return;
    if (!other->cover || !other->usable || other->broken) return;
    if (Leads(*other)) Retire(now, other);
  });
}

// ---- the end ----

// REQUIRES: it is usable. Does nothing if it is not led here.
void Communicators::Retire(Instant now, Communicator* comm) {
  if (comm->retired || !comm->leads) return;
  post_.TellAll(*comm, {.kind = Kind::kRetire, .comm = comm->id});
  OnRetire(now, comm);
}

// Its leader has said so; Sweep lets go of it.
void Communicators::OnRetire(Instant now, Communicator* comm) {
  if (!comm->usable) {
    Abort(*comm);  // withdrawn
  } else if (comm->cover) {
    Quit(now, comm);
  } else {
    comm->retired = true;
  }
}

void Communicators::Quit(Instant now, Communicator* comm) {
  if (comm->leads) {
    comm->leads = false;
    comm->quit.insert(self_);
    comm->check_at = now + options_.timeout;
    post_.TellAll(*comm, {.kind = Kind::kRetired, .comm = comm->id});
  }
  comm->retired = comm->quit.size() == comm->set.size();
}

// `gone`: members of it, if that is why.
void Communicators::BreakOne(Communicator* comm, const std::string& why, const CommSet& gone,
                             bool tell) {
  if (comm->broken) return;
  if (tell) {
    post_.TellAll(*comm, {.kind = Kind::kBroken, .comm = comm->id, .members = gone, .reason = why});
  }
  comm->broken = true;
  comm->why = why;
  if (comm->state != State::kProposed) ++counters_.broken;
  making_.End(comm->id);
  demand_.Broke(*comm, gone);
  if (comm->held == 0) Abort(*comm);
}

// ---- for its owner ----

Communicators::Counters Communicators::counters() const {
  Counters counters = counters_;
  counters.here = comms_.all().size();
  counters.making = making_.busy();
  return counters;
}

void Communicators::Service(Instant now) {
  if (gpu_ == nullptr) return;
  making_.TakeUniqueId();
  if (making_.busy()) PollMaking(now);
  ways_.Service(now);
  comms_.ForEach([&](Communicator* comm) { Check(now, comm); });
  ways_.Resolve();
  Sweep();
  TryCover(now);
  making_.PollAgain(now);
}

// Now and then, whether one is still what it seems to be.
void Communicators::Check(Instant now, Communicator* comm) {
  if (now < comm->check_at || comm->broken) return;
  comm->check_at = now + options_.timeout;
  if (!comm->leads && !comm->retired) {
    BreakOne(comm, "not all of its members gave it up", {}, true);
  } else if (!Leads(*comm)) {
    post_.Tell(comm->leader(), {.kind = Kind::kAsk, .comm = comm->id});
  }
}

std::optional<Instant> Communicators::NextDeadline() const {
  std::optional<Instant> next = making_.poll_at();
  const auto consider = [&next](std::optional<Instant> at) {
    if (at && (!next || *at < *next)) next = at;
  };
  consider(ways_.ask_at());
  for (const auto& [id, comm] : comms_.all()) {
    if (!comm.broken) consider(comm.check_at);
  }
  return next;
}

}  // namespace prd
