#include "engines/peer_links.h"

#include <algorithm>
#include <utility>

namespace prd {
namespace {

// How long an acknowledgement waits for a message that carries it along. Workers send again after
// about 250 ms.
constexpr DurationNs kAckDelay = 100 * kMillisecond;

DurationNs LeaseNs(const Job& job) { return job.spec().lease_ms * kMillisecond; }

DurationNs GraceNs(const Job& job) { return job.spec().death_grace_ms * kMillisecond; }

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

void PeerLinks::AddRun(Instant now, const Job& job) {
  Run& run = runs_[job.run()];
  run.job = &job;
  run.floor = now;
  ++leases_[LeaseNs(job)];
}

void PeerLinks::RemoveRun(const Job& job) {
  const auto lease = leases_.find(LeaseNs(job));
  if (--lease->second == 0) leases_.erase(lease);
  runs_.erase(job.run());
}

PeerLinks::Contact& PeerLinks::At(const Job& job, Rank rank) {
  std::vector<Contact>& contacts = runs_.at(job.run()).contacts;
  if (RankIndex(rank) >= contacts.size()) contacts.resize(RankIndex(rank) + 1);
  return contacts[RankIndex(rank)];
}

// ---- what comes from workers ----

void PeerLinks::Joined(Instant now, const Job& job, Rank rank) {
  Contact& contact = At(job, rank);
  Contact fresh;
  fresh.watched = contact.watched;
  fresh.ack_due = contact.ack_due;
  fresh.acked = 1;
  contact = fresh;
  Heard(now, job, rank);
}

void PeerLinks::Heard(Instant now, const Job& job, Rank rank) {
  Contact& contact = At(job, rank);
  contact.heard = now;
  if (std::exchange(contact.watched, true)) return;
  runs_.at(job.run()).checks.push_back({now + LeaseNs(job) / 4, rank});
}

void PeerLinks::OnAck(Instant now, Job* job, Rank rank, Seq ack) {
  const Seq oldest = job->link(rank).oldest();
  job->OnAck(rank, ack);
  if (job->link(rank).oldest() != oldest) At(*job, rank).resends.Restart(now, 0);
}

void PeerLinks::OnTaken(Instant now, const Job& job, Rank rank, Seq seq) {
  Contact& contact = At(job, rank);
  if (contact.acked >= seq || std::exchange(contact.ack_due, true)) return;
  acks_.push_back({.due = now + kAckDelay, .run = job.run(), .rank = rank});
}

void PeerLinks::OnHeartbeat(Instant now, const Job& job, Rank rank) {
  Contact& contact = At(job, rank);
  Resend(now, job, rank, contact.sent_before);
  contact.sent_before = job.link(rank).last_out();
  Acknowledge(now, job, rank);
}

void PeerLinks::OnReturn(Instant now, const Job& job, Rank rank) {
  Resend(now, job, rank);
  At(job, rank).sent_before = job.link(rank).last_out();
}

// A healthy worker owes few acknowledgements, so most calls look at their number alone.
bool PeerLinks::OverAckLimit(const Job& job, Rank rank) {
  Contact& contact = At(job, rank);
  const auto& unacked = job.link(rank).unacked();
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
  if (over_ack_limit_) over_ack_limit_(job, rank);
  return true;
}

// A worker that does not come back at once (Hello::returns_at_once) has its lease.
bool PeerLinks::OnConnection(Instant now, const Job& job, Rank rank, bool there) {
  Contact& contact = At(job, rank);
  if (!there && contact.ends_at) return false;  // it has not come back since
  contact.ends_at.reset();
  if (there || GraceNs(job) == 0 || !job.workers()[RankIndex(rank)].returns_at_once) return false;
  contact.ends_at = now + GraceNs(job);
  runs_.at(job.run()).ends.push_back({*contact.ends_at, rank});
  return true;
}

// ---- what goes to them ----

ControllerEnvelope& PeerLinks::Append(const Job& job, Rank rank) {
  out_->push_back({.identity = {job.identity().high, epoch_},
                   .incarnation = job.workers()[RankIndex(rank)].incarnation,
                   .ack = job.link(rank).last_in(),
                   .progress = job.progress()});
  return out_->back();
}

void PeerLinks::Send(const Job& job, Rank rank, ControllerEnvelope&& envelope) {
  At(job, rank).acked = envelope.ack;
  envelope.identity = {job.identity().high, epoch_};
  envelope.progress = job.progress();
  out_->push_back(std::move(envelope));
}

void PeerLinks::Acknowledge(Instant now, const Job& job, Rank rank) {
  ControllerEnvelope& envelope = Append(job, rank);
  envelope.body = HeartbeatAck{.waits_for = job.WaitsFor(now, rank)};
  At(job, rank).acked = envelope.ack;
}

void PeerLinks::Resend(Instant now, const Job& job, Rank rank, Seq up_to) {
  const auto send = [&](Seq seq, const ControllerBody& body) {
    ++counters_->resent;
    ControllerEnvelope& envelope = Append(job, rank);
    envelope.seq = seq;
    envelope.body = body;
    return SizeOf(body);
  };
  At(job, rank).resends.SendAgain(now, job.link(rank), up_to, send);
}

// ---- time ----

std::optional<Input> PeerLinks::NextLost(Instant now, const Job& job) {
  const auto incarnation = [&](Rank rank) { return job.workers()[RankIndex(rank)].incarnation; };
  if (const std::optional<Rank> rank = NextEnded(now, job)) {
    ++counters_->processes_ended;
    return ProcessEnded{.rank = *rank, .incarnation = incarnation(*rank)};
  }
  if (const std::optional<Rank> rank = NextExpired(now, job)) {
    ++counters_->leases_expired;
    return LeaseExpired{.rank = *rank, .incarnation = incarnation(*rank)};
  }
  return std::nullopt;
}

// Every worker is looked at every quarter of its lease, so the queue stays in order of time and
// costs nothing per message.
std::optional<Rank> PeerLinks::NextExpired(Instant now, const Job& job) {
  Run& run = runs_.at(job.run());
  while (!run.checks.empty() && run.checks.front().at <= now) {
    const Rank rank = run.checks.front().rank;
    run.checks.pop_front();
    Contact& contact = run.contacts[RankIndex(rank)];
    contact.watched = false;
    if (job.workers()[RankIndex(rank)].state == Job::State::kAbsent) continue;
    if (now - std::max(contact.heard, run.floor) > LeaseNs(job)) return rank;
    contact.watched = true;
    run.checks.push_back({now + LeaseNs(job) / 4, rank});
  }
  return std::nullopt;
}

// A controller that was itself held up, as by a full disk, has not seen who came back meanwhile: it
// waits once more.
std::optional<Rank> PeerLinks::NextEnded(Instant now, const Job& job) {
  Run& run = runs_.at(job.run());
  while (!run.ends.empty() && run.ends.front().at <= now) {
    const auto [at, rank] = run.ends.front();
    run.ends.pop_front();
    Contact& contact = run.contacts[RankIndex(rank)];
    if (job.workers()[RankIndex(rank)].state == Job::State::kAbsent || contact.ends_at != at)
      continue;
    if (now - at <= GraceNs(job) / 2) return rank;
    contact.ends_at = now + GraceNs(job);
    run.ends.push_back({*contact.ends_at, rank});
  }
  return std::nullopt;
}

std::optional<Instant> PeerLinks::NextDeadline(const Job& job) const {
  const Run& run = runs_.at(job.run());
  std::optional<Instant> next;
  for (const std::deque<Timer>* timers : {&run.checks, &run.ends}) {
    if (!timers->empty() && (!next || timers->front().at < *next)) next = timers->front().at;
  }
  return next;
}

void PeerLinks::SendDueAcks(Instant now) {
  while (!acks_.empty() && acks_.front().due <= now) {
    const Ack ack = acks_.front();
    acks_.pop_front();
    const auto run = runs_.find(ack.run);
    if (run == runs_.end()) continue;
    const Job& job = *run->second.job;
    Contact& contact = run->second.contacts[RankIndex(ack.rank)];
    contact.ack_due = false;
    if (job.workers()[RankIndex(ack.rank)].state == Job::State::kAbsent) continue;
    if (contact.acked < job.link(ack.rank).last_in()) Acknowledge(now, job, ack.rank);
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
  for (auto& [id, run] : runs_) {
    if (now - *before > LeaseNs(*run.job) / 2) run.floor = now;
  }
}

std::optional<DurationNs> PeerLinks::Silence(Instant now, RunId id, Rank rank) const {
  const auto run = runs_.find(id);
  if (run == runs_.end() || rank < 0) return std::nullopt;
  const std::vector<Job::Worker>& workers = run->second.job->workers();
  if (RankIndex(rank) >= workers.size() || workers[RankIndex(rank)].state == Job::State::kAbsent) {
    return std::nullopt;
  }
  return now - run->second.contacts[RankIndex(rank)].heard;
}

}  // namespace prd
