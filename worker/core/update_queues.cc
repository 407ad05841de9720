#include "worker/core/update_queues.h"

#include <algorithm>
#include <iterator>

#include "worker/core/session_core_limits.h"

namespace prd {
namespace {

constexpr DurationNs kOfferAgain = 500 * kMillisecond;
constexpr DurationNs kOfferAgainMax = 4 * kSecond;
constexpr DurationNs kPullAgain = 100 * kMillisecond;
constexpr DurationNs kPullAgainMax = 2 * kSecond;
// What a peer may make this worker remember. Beyond, offers are disregarded; they are said again.
constexpr std::size_t kMaxOffered = 256;
constexpr std::size_t kMaxEarly = 4096;
// Updates that are kept for peers who do not answer, besides `slots`. The iteration gap keeps those
// that are still of use far below.
constexpr std::size_t kMaxUnanswered = 64;

PeerItem Update(Iteration iteration) {
  return {.kind = PeerItem::Kind::kUpdate, .shard = 0, .epoch = 0, .stamp = iteration};
}

void Say(PeerMessage::Kind kind, Incarnation to, Iteration iteration, Actions* out) {
  out->push_back(SendNote{to, PeerMessage{.kind = kind, .parcel = Update(iteration)}});
}

bool Possible(const PeerMessage& note) {
  const Iteration iteration = note.parcel.stamp;
  return note.parcel == Update(iteration) && iteration >= 0 && iteration <= kMaxIteration;
}

}  // namespace

// ---- neighbours ----

void UpdateQueues::SetNeighbourhood(Instant now, const NeighbourPlan& plan,
                                    const Neighbourhood& hood, Iteration k, Actions* out) {
  if (closed_) return;
  met_ = true;
  k_ = k;
  staleness_ = std::max(plan.staleness, 0);
  backups_ = plan.backups;
  slots_ = std::max<std::uint32_t>(hood.slots, 1);
  own_weight_ = hood.own_weight;
  std::map<Incarnation, GroupMember> peers;
  for (const GroupMember& member : hood.in) peers.emplace(member.incarnation, member);
  for (const GroupMember& member : hood.out) peers.emplace(member.incarnation, member);
  SetPeers meet;
  for (auto& [incarnation, member] : peers) meet.peers.push_back(std::move(member));
  out->push_back(std::move(meet));
  SetSenders(hood, out);
  SetReceivers(now, hood, out);
  for (const auto& [from, note] : std::exchange(early_, {})) {
    if (in_.contains(from)) OnOffer(from, note, out);
  }
}

void UpdateQueues::SetSenders(const Neighbourhood& hood, Actions* out) {
  DropPast(out);
  Senders before = std::exchange(in_, {});
  for (std::size_t i = 0; i < hood.in.size(); ++i) {
    const GroupMember& member = hood.in[i];
    Sender& sender = in_[member.incarnation];
    if (auto known = before.extract(member.incarnation)) sender = std::move(known.mapped());
    if (auto gone = let_go_.extract(member.incarnation)) sender.let_go = std::move(gone.mapped());
    if (staleness_ > 0 && !sender.let_go.empty()) {
      sender.newest = std::max(sender.newest, *sender.let_go.rbegin());
    }
    sender.weight = member.weight;
    sender.from = hood.from[i];
  }
  for (const auto& [from, sender] : before) {
    LetGo(from, sender);
    DropAll(sender, out);
  }
  for (auto& [from, sender] : in_) StartPulls(from, &sender, out);
}

void UpdateQueues::LetGo(Incarnation from, const Sender& sender) {
  std::set<Iteration> here = sender.let_go;
  for (const auto& [iteration, pull] : sender.pulls) {
    if (pull.here) here.insert(iteration);
  }
  if (staleness_ > 0 && sender.newest >= 0) here.insert(sender.newest);
  if (here.empty()) return;
  if (let_go_.size() >= kMaxEarly) let_go_.erase(let_go_.begin());
  let_go_[from] = std::move(here);
}

void UpdateQueues::SetReceivers(Instant now, const Neighbourhood& hood, Actions* out) {
  const std::set<Incarnation> before = std::exchange(out_, {});
  for (const GroupMember& member : hood.out) out_.insert(member.incarnation);
  for (auto& [iteration, update] : published_) {
    std::erase_if(update.offers, [this](const auto& offer) { return !out_.contains(offer.first); });
  }
  RetireOld(out);
  if (published_.empty()) return;
  for (const Incarnation to : out_) {
    if (!before.contains(to)) SayOffer(now, to, newest_published_, out);
  }
}

void UpdateQueues::Close(Actions* out) {
  if (std::exchange(closed_, true)) return;
  for (const auto& [from, sender] : in_) DropAll(sender, out);
  for (const auto& [iteration, update] : published_) out->push_back(RetireUpdate{iteration});
  in_.clear();
  early_.clear();
  out_.clear();
  published_.clear();
  if (std::exchange(met_, false)) out->push_back(SetPeers{});
}

// ---- receiving ----

Iteration UpdateQueues::newest() const {
  return staleness_ > 0 ? kMaxIteration : k_ + static_cast<Iteration>(slots_) - 1;
}

// For this neighbour's update.
bool UpdateQueues::Waits(const Sender& sender, Iteration k) const {
  if (sender.from > k || sender.let_go.contains(k)) return false;
  if (staleness_ > 0) return sender.newest < k - staleness_;
  const auto pull = sender.pulls.find(k);
  if (pull != sender.pulls.end() && pull->second.here) return false;
  return !Skipped(sender, k);
}

// It has no update of k.
bool UpdateQueues::Skipped(const Sender& sender, Iteration k) const {
  const auto skip = sender.skips.upper_bound(k);
  return staleness_ == 0 && skip != sender.skips.end() && skip->second < k;
}

// Neighbours that skipped it are among the backups; more of them than that are not waited for
// either.
bool UpdateQueues::CanReceive(Iteration k) const {
  std::int64_t missing = 0;
  std::int64_t backups = backups_;
  for (const auto& [from, sender] : in_) {
    missing += Waits(sender, k) ? 1 : 0;
    backups -= Skipped(sender, k) ? 1 : 0;
  }
  return missing <= std::max<std::int64_t>(backups, 0);
}

// Section 4.3: without the updates that are not there, the others have their weights renormalised.
// Section 4.4, Equation 2: an update weighs the more, the newer it is; the own one is of k.
bool UpdateQueues::Mix(Iteration k, Actions* out) {
  const auto recency = [&](Iteration iteration) {
    return staleness_ > 0 ? static_cast<double>(iteration - (k - staleness_) + 1) : 1.0;
  };
  MixUpdates mix;
  mix.own_weight = own_weight_ * recency(k);
  double sum = mix.own_weight;
  for (auto& [from, sender] : in_) {
    const auto pull = std::find_if(sender.pulls.begin(), sender.pulls.end(), [&](const auto& p) {
      return p.second.here && (staleness_ > 0 ? p.first >= k - staleness_ : p.first == k);
    });
    if (pull == sender.pulls.end()) continue;
    const double weight = sender.weight * recency(pull->first);
    mix.updates.push_back({.ticket = pull->second.ticket, .weight = weight});
    sum += weight;
    tickets_.erase(pull->second.ticket);
    sender.pulls.erase(pull);
  }
  if (mix.updates.empty()) return false;
  if (sum > 0) {
    mix.own_weight /= sum;
    for (MixUpdates::Update& update : mix.updates) update.weight /= sum;
  } else {
    mix.own_weight = 1;
  }
  out->push_back(std::move(mix));
  return true;
}

void UpdateQueues::MoveTo(Iteration k, Actions* out) {
  k_ = k;
  DropPast(out);
  for (auto& [from, sender] : in_) StartPulls(from, &sender, out);
}

void UpdateQueues::DropPast(Actions* out) {
  for (auto& [from, sender] : in_) DropPast(from, &sender, out);
  std::erase_if(let_go_, [this](const auto& gone) { return *gone.second.rbegin() < oldest(); });
}

void UpdateQueues::DropPast(Incarnation from, Sender* sender, Actions* out) {
  auto& pulls = sender->pulls;
  while (!pulls.empty() && pulls.begin()->first < oldest()) {
    const auto& [iteration, pull] = *pulls.begin();
    Drop(pull, out);
    if (!pull.here) Say(PeerMessage::Kind::kDeclined, from, iteration, out);
    pulls.erase(pulls.begin());
  }
  auto& offered = sender->offered;
  while (!offered.empty() && *offered.begin() < oldest()) {
    Say(PeerMessage::Kind::kDeclined, from, *offered.begin(), out);
    offered.erase(offered.begin());
  }
  auto& skips = sender->skips;
  skips.erase(skips.begin(), skips.upper_bound(k_));
  auto& let_go = sender->let_go;
  let_go.erase(let_go.begin(), let_go.lower_bound(oldest()));
}

void UpdateQueues::Drop(const Pull& pull, Actions* out) {
  if (pull.here) ++dropped_;
  if (pull.ticket == 0) return;
  tickets_.erase(pull.ticket);
  out->push_back(DropPull{pull.ticket});
}

void UpdateQueues::DropAll(const Sender& sender, Actions* out) {
  for (const auto& [iteration, pull] : sender.pulls) Drop(pull, out);
}

void UpdateQueues::OnOffer(Incarnation from, const PeerMessage& note, Actions* out) {
  Sender& sender = in_.at(from);
  const Iteration iteration = note.parcel.stamp;
  const bool skipped = iteration > k_ && note.version >= -1 && note.version < iteration - 1;
  if (skipped && sender.skips.size() < kMaxOffered) sender.skips[iteration] = note.version;
  const auto pull = sender.pulls.find(iteration);
  if (pull != sender.pulls.end()) {
    if (pull->second.here) Say(PeerMessage::Kind::kStored, from, iteration, out);
    return;
  }
  const bool newer_comes = !sender.pulls.empty() && iteration < sender.pulls.rbegin()->first;
  const bool superseded = staleness_ > 0 && (iteration <= sender.newest || newer_comes);
  if (iteration < oldest() || superseded) {
    return Say(PeerMessage::Kind::kDeclined, from, iteration, out);
  }
  sender.offered.insert(iteration);
  if (staleness_ > 0) sender.offered = {*sender.offered.rbegin()};
  if (sender.offered.size() > kMaxOffered) sender.offered.erase(std::prev(sender.offered.end()));
  StartPulls(from, &sender, out);
}

// Pulls what there is room for.
void UpdateQueues::StartPulls(Incarnation from, Sender* sender, Actions* out) {
  auto& pulls = sender->pulls;
  auto& offered = sender->offered;
  while (!offered.empty() && *offered.begin() <= newest()) {
    const Iteration iteration = *offered.begin();
    if (staleness_ > 0) {
      const auto coming =
          std::find_if(pulls.begin(), pulls.end(), [](const auto& p) { return !p.second.here; });
      if (coming != pulls.end() && coming->second.ticket != 0) return;
      if (coming != pulls.end()) pulls.erase(coming);  // failed, and there is a newer one
    }
    offered.erase(offered.begin());
    Start(from, iteration, &pulls[iteration], out);
  }
}

void UpdateQueues::Start(Incarnation from, Iteration iteration, Pull* pull, Actions* out) {
  pull->ticket = ++last_ticket_;
  tickets_[pull->ticket] = {from, iteration};
  out->push_back(StartPull{pull->ticket, from, Update(iteration)});
}

void UpdateQueues::OnPulled(Instant now, Ticket ticket, const Status& status, Actions* out) {
  const auto known = tickets_.find(ticket);
  if (known == tickets_.end()) return;
  const auto [from, iteration] = known->second;
  Sender& sender = in_.at(from);
  Pull& pull = sender.pulls.at(iteration);
  if (pull.here) return;
  if (!status.ok()) {
    tickets_.erase(known);
    pull.ticket = 0;
    pull.retry_after = std::clamp(2 * pull.retry_after, kPullAgain, kPullAgainMax);
    pull.retry_at = now + pull.retry_after;
    return StartPulls(from, &sender, out);
  }
  pull.here = true;
  sender.newest = std::max(sender.newest, iteration);
  Say(PeerMessage::Kind::kStored, from, iteration, out);
  while (staleness_ > 0 && sender.pulls.begin()->first < iteration) {
    Drop(sender.pulls.begin()->second, out);
    sender.pulls.erase(sender.pulls.begin());
  }
  if (staleness_ > 0) {
    sender.offered.erase(sender.offered.begin(), sender.offered.upper_bound(iteration));
  }
  StartPulls(from, &sender, out);
}

// ---- sending ----

void UpdateQueues::Publish(Instant now, Iteration k, Actions* out) {
  if (closed_ || k <= newest_published_) return;
  out->push_back(PublishUpdate{k});
  published_[k].before = newest_published_ < 0 ? k - 1 : newest_published_;
  newest_published_ = k;
  if (staleness_ > 0 || published_.size() > slots_ + kMaxUnanswered) {
    Published& replaced = published_.begin()->second;
    for (const auto& [to, offer] : replaced.offers) suppressed_ += offer.pulled ? 0 : 1;
    replaced.offers.clear();
  }
  RetireOld(out);
  for (const Incarnation to : out_) SayOffer(now, to, k, out);
}

void UpdateQueues::RetireOld(Actions* out) {
  std::erase_if(published_, [&](const auto& entry) {
    if (!entry.second.offers.empty() || entry.first == newest_published_) return false;
    out->push_back(RetireUpdate{entry.first});
    return true;
  });
}

void UpdateQueues::SayOffer(Instant now, Incarnation to, Iteration iteration, Actions* out) {
  Published& update = published_.at(iteration);
  Offer& offer = update.offers[to];
  offer.again_after = std::clamp(2 * offer.again_after, kOfferAgain, kOfferAgainMax);
  offer.again_at = now + offer.again_after;
  PeerMessage note{
      .kind = PeerMessage::Kind::kOffer, .parcel = Update(iteration), .version = update.before};
  out->push_back(SendNote{to, note});
}

void UpdateQueues::OnAnswer(Incarnation from, const PeerMessage& note, Actions* out) {
  const auto update = published_.find(note.parcel.stamp);
  if (update == published_.end()) return;
  auto& offers = update->second.offers;
  const auto offer = offers.find(from);
  if (offer == offers.end()) return;
  if (note.kind == PeerMessage::Kind::kDeclined && !offer->second.pulled) ++suppressed_;
  offers.erase(offer);
  RetireOld(out);
}

void UpdateQueues::OnRequest(Incarnation from, Request request, const PeerItem& parcel,
                             Actions* out) {
  const auto update = published_.find(parcel.stamp);
  if (parcel != Update(parcel.stamp) || !out_.contains(from) || update == published_.end()) {
    out->push_back(Refuse{request});
    return;
  }
  auto& offers = update->second.offers;
  const auto offer = offers.find(from);
  if (offer != offers.end()) offer->second.pulled = true;
  out->push_back(Serve{.request = request, .parcel = parcel, .enclosure = {}});
}

// ---- both ----

void UpdateQueues::OnNote(Incarnation from, const PeerMessage& note, Actions* out) {
  if (closed_ || !Possible(note)) return;
  if (note.kind != PeerMessage::Kind::kOffer) return OnAnswer(from, note, out);
  if (in_.contains(from)) return OnOffer(from, note, out);
  if (early_.size() < kMaxEarly) early_.emplace_back(from, note);
}

UpdateQueues::Counters UpdateQueues::TakeCounters() {
  Counters counters{.dropped = std::exchange(dropped_, 0),
                    .suppressed = std::exchange(suppressed_, 0)};
  for (const auto& [from, sender] : in_) {
    for (const auto& [iteration, pull] : sender.pulls) counters.queued += pull.here ? 1 : 0;
  }
  return counters;
}

void UpdateQueues::OnTime(Instant now, Actions* out) {
  for (auto& [from, sender] : in_) {
    for (auto& [iteration, pull] : sender.pulls) {
      if (pull.ticket == 0 && now >= pull.retry_at) Start(from, iteration, &pull, out);
    }
  }
  for (auto& [iteration, update] : published_) {
    for (const auto& [to, offer] : update.offers) {
      if (now >= offer.again_at) SayOffer(now, to, iteration, out);
    }
  }
}

std::optional<Instant> UpdateQueues::NextDeadline() const {
  std::optional<Instant> next;
  const auto consider = [&next](Instant at) {
    if (!next || at < *next) next = at;
  };
  for (const auto& [from, sender] : in_) {
    for (const auto& [iteration, pull] : sender.pulls) {
      if (pull.ticket == 0) consider(pull.retry_at);
    }
  }
  for (const auto& [iteration, update] : published_) {
    for (const auto& [to, offer] : update.offers) consider(offer.again_at);
  }
  return next;
}

}  // namespace prd
