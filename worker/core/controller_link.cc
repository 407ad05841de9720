#include "worker/core/controller_link.h"

#include <algorithm>
#include <utility>

namespace prd {
namespace {

// Between Hellos of one incarnation and the next, so that a controller that refuses both is not
// flooded.
constexpr DurationNs kHelloGap = 100 * kMillisecond;
constexpr std::size_t kMaxLives = 16;

}  // namespace

void ControllerLink::Attach(Instant now, const LinkToken& token) {
  token_ = token;
  former_ = {};
  answered_ = now;
}

void ControllerLink::Close(Status why) {
  contact_ = Contact::kOver;
  over_ = std::move(why);
}

// ---- incarnations ----

void ControllerLink::BeginHello(Instant now) {
  contact_ = Contact::kHello;
  link_ = {};
  run_ = kNoRun;
  identity_ = {};
  lives_.clear();
  waits_for_.clear();
  heartbeats_out_ = 0;
  heard_ = now;
  hello_due_ = true;
}

bool ControllerLink::MaySayHello(Instant now) const {
  return hello_due_ && !wants_incarnation() && now >= hello_at_;
}

void ControllerLink::SayHello(Instant now, Hello hello, Actions* out) {
  hello_due_ = false;
  hello_at_ = now + kHelloGap;
  incarnation_ = std::exchange(next_incarnation_, 0);
  out->push_back(BecomeIncarnation{incarnation_});
  if (welcome_.run != kNoRun) hello.rank = welcome_.rank;
  hello.former = former_;
  Push(now, std::move(hello), out);
}

// ---- to the controller ----

WorkerEnvelope ControllerLink::Envelope(Seq seq, WorkerBody body) const {
  return {.run = run_,
          .identity = identity_,
          .rank = run_ == kNoRun ? kNoRank : welcome_.rank,
          .incarnation = incarnation_,
          .seq = seq,
          .ack = link_.last_in(),
          .oldest = link_.oldest(),
          .token = token_,
          .body = std::move(body)};
}

void ControllerLink::Push(Instant now, WorkerBody body, Actions* out) {
  if (link_.unacked().empty()) resends_.Restart(now, kResends.first);
  const auto& [seq, kept] = link_.Push(std::move(body));
  out->push_back(SendToController{Envelope(seq, kept)});
}

void ControllerLink::SendHeartbeat(Instant now, Actions* out) {
  const std::uint32_t every = std::clamp<std::uint32_t>(welcome_.heartbeat_ms, 10, 60'000);
  heartbeat_at_ = now + every * kMillisecond;
  heartbeat_sent_ = now;
  ++heartbeats_out_;
  out->push_back(SendToController{Envelope(0, Heartbeat{})});
}

void ControllerLink::SendHeartbeatIfDue(Instant now, Actions* out) {
  if (is_member() && now >= heartbeat_at_) SendHeartbeat(now, out);
}

void ControllerLink::SendAgain(Instant now, Actions* out) {
  resends_.SendAgain(now, link_, link_.last_out(), [&](Seq seq, const WorkerBody& body) {
    out->push_back(SendToController{Envelope(seq, body)});
    return std::size_t{0};
  });
}

void ControllerLink::OnConnected(Instant now, Actions* out) {
  if (!talks()) return;
  resends_.Restart(now, 0);
  SendAgain(now, out);
  if (is_member()) SendHeartbeat(now, out);
}

bool ControllerLink::OnTime(Instant now, Actions* out) {
  if (talks()) SendAgain(now, out);
  if (!is_member() || now < heartbeat_at_) return false;
  SendHeartbeat(now, out);
  return true;
}

std::optional<Instant> ControllerLink::NextDeadline(bool hello) const {
  std::optional<Instant> next;
  if (talks() && hello_due_) {
    if (hello) next = hello_at_;
  } else if (talks() && !link_.unacked().empty()) {
    next = resends_.due();
  }
  if (is_member() && (!next || heartbeat_at_ < *next)) next = heartbeat_at_;
  return next;
}

// ---- from the controller ----

bool ControllerLink::IsForMe(Instant now, const ControllerEnvelope& envelope) {
  if (!talks() || envelope.incarnation != incarnation_ || hello_due_) return false;
  answered_ = now;
  return true;
}

const Welcome* ControllerLink::OnHelloAnswered(const ControllerEnvelope& envelope) {
  const auto* welcome = std::get_if<Welcome>(&envelope.body);
  if (welcome == nullptr || envelope.seq != 1) return nullptr;
  link_.OnReceive(envelope.seq);
  link_.OnAck(envelope.ack);
  identity_ = envelope.identity;
  return welcome;
}

void ControllerLink::Admit(Instant now, const Welcome& welcome) {
  contact_ = Contact::kMember;
  welcome_ = welcome;
  run_ = welcome.run;
  heard_ = now;
  refusal_.clear();
}

bool ControllerLink::IsOfThisRun(Instant now, const RunIdentity& identity, Actions* out) {
  if (identity == identity_) return true;
  if (identity.high != identity_.high) return false;
  if (std::find(lives_.begin(), lives_.end(), identity.low) != lives_.end()) return false;
  if (lives_.size() == kMaxLives) lives_.erase(lives_.begin());
  lives_.push_back(identity_.low);
  identity_ = identity;
  SendHeartbeat(now, out);
  resends_.Restart(now, 0);
  SendAgain(now, out);
  return true;
}

ControllerLink::Acked ControllerLink::OnAck(Instant now, Seq ack) {
  const std::size_t before = unacked();
  if (!link_.OnAck(ack)) return Acked::kWrong;
  if (unacked() == before) return Acked::kNothing;
  resends_.Restart(now, kResends.first);
  return Acked::kMore;
}

bool ControllerLink::Receive(Instant now, Seq seq) {
  if (seq == 0) return false;
  if (link_.OnReceive(seq) == LinkEnd<WorkerBody>::Verdict::kDeliver) return true;
  heartbeat_at_ = now;  // says what was received, and so what was not
  return false;
}

// Also acknowledges other messages, so that an answer may seem to come too early: smoothed, and
// not measured when it could be that to an earlier heartbeat.
void ControllerLink::OnHeartbeatAck(Instant now, const HeartbeatAck& ack) {
  waits_for_ = ack.waits_for;
  if (std::exchange(heartbeats_out_, 0) != 1) return;
  const DurationNs rtt = now - heartbeat_sent_;
  rtt_ = rtt_ == 0 ? rtt : rtt_ + (rtt - rtt_) / 8;
}

void ControllerLink::OnRefused(Instant now, const Refused& refused, bool retry) {
  refusal_ = refused.reason;
  if (!retry || !says_hello()) return;
  resends_.Restart(now, std::max<std::uint32_t>(refused.retry_ms, 10) * kMillisecond);
}

void ControllerLink::OnNoConnection(const std::string& why) {
  if (says_hello()) refusal_ = why;
}

}  // namespace prd
