#include "engines/peer_links.h"

#include <algorithm>
#include <utility>

namespace prd {
namespace {

// How long an acknowledgement waits for a message that carries it along. Workers send again after
// about 250 ms.
constexpr DurationNs kAckDelay = 100 * kMillisecond;

DurationNs LeaseNs(const Run& run) { return run.spec().lease_ms * kMillisecond; }

DurationNs GraceNs(const Run& run) { return run.spec().death_grace_ms * kMillisecond; }

// Bytes of a message as it is sent, about.
std::size_t SizeOf(const ControllerBody& body) {
  constexpr std::size_t kFixed = 128;
  constexpr std::size_t kItem = 192;
  return std::visit(
      [](const auto& message) {
        std::size_t size = kFixed;
        if constexpr (requires { message.reason.size(); }) size += message.reason.size();
        if constexpr (requires { message.members; }) size += kItem * message.members.size();
        if constexpr (requires { message.targets; }) size += kItem * message.targets.size();
        if constexpr (requires { message.incarnations; }) {
          size += sizeof(Incarnation) * message.incarnations.size();
        }
        if constexpr (requires { message.shards; }) size += kItem * message.shards.size();
        if constexpr (requires { message.own_weight; }) {
          size += kItem * (message.in.size() + message.out.size());
        }
        return size;
      },
      body);
}

}  // namespace

void PeerLinks::AddRun(Instant now, const Run& run) {
  RunLinks& links = runs_[run.id()];
  links.run = &run;
  links.floor = now;
  ++leases_[LeaseNs(run)];
}

void PeerLinks::RemoveRun(const Run& run) {
  const auto lease = leases_.find(LeaseNs(run));
  if (--lease->second == 0) leases_.erase(lease);
  runs_.erase(run.id());
}

PeerLinks::Contact& PeerLinks::At(const Run& run, Rank rank) {
  std::vector<Contact>& contacts = runs_.at(run.id()).contacts;
  if (RankIndex(rank) >= contacts.size()) contacts.resize(RankIndex(rank) + 1);
  return contacts[RankIndex(rank)];
}

// ---- what comes from workers ----

void PeerLinks::Joined(Instant now, const Run& run, Rank rank) {
  Contact& contact = At(run, rank);
  Contact fresh;
  fresh.watched = contact.watched;
  fresh.ack_due = contact.ack_due;
  fresh.acked = 1;
  contact = fresh;
  Heard(now, run, rank);
}

void PeerLinks::Heard(Instant now, const Run& run, Rank rank) {
  Contact& contact = At(run, rank);
  contact.heard = now;
  if (std::exchange(contact.watched, true)) return;
  runs_.at(run.id()).checks.push_back({now + LeaseNs(run) / 4, rank});
}

void PeerLinks::OnAck(Instant now, Run* run, Rank rank, Seq ack) {
  const Seq oldest = run->link(rank).oldest();
  run->OnAck(rank, ack);
  if (run->link(rank).oldest() != oldest) At(*run, rank).resends.Restart(now, 0);
}

void PeerLinks::OnTaken(Instant now, const Run& run, Rank rank, Seq seq) {
  Contact& contact = At(run, rank);
  if (contact.acked >= seq || std::exchange(contact.ack_due, true)) return;
  acks_.push_back({.due = now + kAckDelay, .run = run.id(), .rank = rank});
}

void PeerLinks::OnHeartbeat(Instant now, const Run& run, Rank rank) {
  Contact& contact = At(run, rank);
  Resend(now, run, rank, contact.sent_before);
  contact.sent_before = run.link(rank).last_out();
  Acknowledge(now, run, rank);
}

void PeerLinks::OnReturn(Instant now, const Run& run, Rank rank) {
  Resend(now, run, rank);
  At(run, rank).sent_before = run.link(rank).last_out();
}

// A healthy worker owes few acknowledgements, so most calls look at their number alone.
bool PeerLinks::OverAckLimit(const Run& run, Rank rank) {
  Contact& contact = At(run, rank);
  const auto& unacked = run.link(rank).unacked();
  if (unacked.empty()) contact.over_limit = false;
  const bool in_vain = contact.resends.in_vain() >= kResentInVain;
  if (!in_vain && unacked.size() <= kMinUnacked) return false;
  std::size_t bytes = 0;
  for (auto it = unacked.begin(); it != unacked.end() && bytes <= kMaxUnacked; ++it) {
    bytes += SizeOf(it->second);
  }
  if (!in_vain && bytes <= kMaxUnacked) return false;
  if (std::exchange(contact.over_limit, true)) return true;
  ++counters_->over_ack_limit;
  if (over_ack_limit_) over_ack_limit_(run, rank);
  return true;
}

// A worker that does not come back at once (Hello::returns_at_once) has its lease.
bool PeerLinks::OnConnection(Instant now, const Run& run, Rank rank, bool there) {
  Contact& contact = At(run, rank);
  if (!there && contact.ends_at) return false;  // it has not come back since
  contact.ends_at.reset();
  if (there || GraceNs(run) == 0 || !run.workers()[RankIndex(rank)].returns_at_once) return false;
  contact.ends_at = now + GraceNs(run);
  runs_.at(run.id()).ends.push_back({*contact.ends_at, rank});
  return true;
}

// ---- what goes to them ----

ControllerEnvelope& PeerLinks::Append(const Run& run, Rank rank) {
  out_->push_back({.identity = {run.identity().high, epoch_},
                   .incarnation = run.workers()[RankIndex(rank)].incarnation,
                   .ack = run.link(rank).last_in(),
                   .progress = run.progress()});
  return out_->back();
}

void PeerLinks::Send(const Run& run, Rank rank, ControllerEnvelope&& envelope) {
  At(run, rank).acked = envelope.ack;
  envelope.identity = {run.identity().high, epoch_};
  envelope.progress = run.progress();
  out_->push_back(std::move(envelope));
}

void PeerLinks::Acknowledge(Instant now, const Run& run, Rank rank) {
  ControllerEnvelope& envelope = Append(run, rank);
  envelope.body = HeartbeatAck{.waits_for = run.WaitsFor(now, rank)};
  At(run, rank).acked = envelope.ack;
}

void PeerLinks::Resend(Instant now, const Run& run, Rank rank, Seq up_to) {
  const auto send = [&](Seq seq, const ControllerBody& body) {
    ++counters_->resent;
    ControllerEnvelope& envelope = Append(run, rank);
    envelope.seq = seq;
    envelope.body = body;
    return SizeOf(body);
  };
  At(run, rank).resends.SendAgain(now, run.link(rank), up_to, send);
}

// ---- time ----

std::optional<Input> PeerLinks::NextLost(Instant now, const Run& run) {
  const auto incarnation = [&](Rank rank) { return run.workers()[RankIndex(rank)].incarnation; };
  if (const std::optional<Rank> rank = NextEnded(now, run)) {
    ++counters_->processes_ended;
    return ProcessEnded{.rank = *rank, .incarnation = incarnation(*rank)};
  }
  if (const std::optional<Rank> rank = NextExpired(now, run)) {
    ++counters_->leases_expired;
    return LeaseExpired{.rank = *rank, .incarnation = incarnation(*rank)};
  }
  return std::nullopt;
}

// Every worker is looked at every quarter of its lease, so the queue stays in order of time and
// costs nothing per message.
std::optional<Rank> PeerLinks::NextExpired(Instant now, const Run& run) {
  RunLinks& links = runs_.at(run.id());
  while (!links.checks.empty() && links.checks.front().at <= now) {
    const Rank rank = links.checks.front().rank;
    links.checks.pop_front();
    Contact& contact = links.contacts[RankIndex(rank)];
    contact.watched = false;
    if (run.workers()[RankIndex(rank)].state == WorkerState::kAbsent) continue;
    if (now - std::max(contact.heard, links.floor) > LeaseNs(run)) return rank;
    contact.watched = true;
    links.checks.push_back({now + LeaseNs(run) / 4, rank});
  }
  return std::nullopt;
}

// A controller that was itself held up, as by a full disk, has not seen who came back meanwhile: it
// waits once more.
std::optional<Rank> PeerLinks::NextEnded(Instant now, const Run& run) {
  RunLinks& links = runs_.at(run.id());
  while (!links.ends.empty() && links.ends.front().at <= now) {
    const auto [at, rank] = links.ends.front();
    links.ends.pop_front();
    Contact& contact = links.contacts[RankIndex(rank)];
    if (run.workers()[RankIndex(rank)].state == WorkerState::kAbsent || contact.ends_at != at)
      continue;
    if (now - at <= GraceNs(run) / 2) return rank;
    contact.ends_at = now + GraceNs(run);
    links.ends.push_back({*contact.ends_at, rank});
  }
  return std::nullopt;
}

std::optional<Instant> PeerLinks::NextDeadline(const Run& run) const {
  const RunLinks& links = runs_.at(run.id());
  std::optional<Instant> next;
  for (const std::deque<Timer>* timers : {&links.checks, &links.ends}) {
    if (!timers->empty() && (!next || timers->front().at < *next)) next = timers->front().at;
  }
  return next;
}

void PeerLinks::SendDueAcks(Instant now) {
  while (!acks_.empty() && acks_.front().due <= now) {
    const Ack ack = acks_.front();
    acks_.pop_front();
    const auto links = runs_.find(ack.run);
    if (links == runs_.end()) continue;
    const Run& run = *links->second.run;
    Contact& contact = links->second.contacts[RankIndex(ack.rank)];
    contact.ack_due = false;
    if (run.workers()[RankIndex(ack.rank)].state == WorkerState::kAbsent) continue;
    if (contact.acked < run.link(ack.rank).last_in()) Acknowledge(now, run, ack.rank);
  }
}

std::optional<Instant> PeerLinks::NextAck() const {
  if (acks_.empty()) return std::nullopt;
  return acks_.front().due;
}

// Every run is looked at each quarter of its lease, so without a sleep no pause is as long as half
// of one.
void PeerLinks::NoteSleep(Instant now) {
  const std::optional<Instant> before = std::exchange(last_turn_, now);
  if (!before || leases_.empty() || now - *before <= leases_.begin()->first / 2) return;
  for (auto& [id, links] : runs_) {
    if (now - *before > LeaseNs(*links.run) / 2) links.floor = now;
  }
}

void PeerLinks::BeginLeases(Instant now) {
  for (auto& [id, links] : runs_) links.floor = now;
}

std::optional<DurationNs> PeerLinks::Silence(Instant now, RunId id, Rank rank) const {
  const auto links = runs_.find(id);
  if (links == runs_.end() || rank < 0) return std::nullopt;
  const std::vector<RunWorker>& workers = links->second.run->workers();
  if (RankIndex(rank) >= workers.size() || workers[RankIndex(rank)].state == WorkerState::kAbsent) {
    return std::nullopt;
  }
  return now - links->second.contacts[RankIndex(rank)].heard;
}

}  // namespace prd
