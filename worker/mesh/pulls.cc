#include "worker/mesh/pulls.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"

namespace prd {

void Pulls::Reset() {
  pulls_.clear();
  due_ = false;
  counters_->held_bytes = counters_->most_held_bytes = 0;
}

void Pulls::Start(Instant now, const StartPull& action, std::optional<std::size_t> bytes) {
  const auto [it, fresh] =
      pulls_.try_emplace(action.ticket, Pull{.from = action.from,
                                             .endpoint = {},
                                             .buffer = nullptr,
                                             .enclosure = {},
                                             .silence = Silence(now, peers_->timeout()),
                                             .failure = {}});
  PRD_CHECK(fresh);
  Pull& pull = it->second;
  if (!bytes) {
    return Fail(action.ticket, &pull, Status(Code::kInvalidArgument, "there is no such shard"));
  }
  pull.bytes = *bytes;
  const std::string endpoint = peers_->EndpointOf(action.from);
  if (!peers_->Say(action.from, endpoint, FrameKind::kPull, action.ticket,
                   EncodeParcel(action.parcel))) {
    return Fail(
        action.ticket, &pull,
        Status(Code::kUnavailable, "the peer has no endpoint that can be reached from here"));
  }
  pull.endpoint = endpoint;
}

void Pulls::Drop(Ticket ticket) {
  const auto it = pulls_.find(ticket);
  if (it == pulls_.end()) return;
  Pull& pull = it->second;
  if (!pull.ended()) peers_->Say(pull.from, pull.endpoint, FrameKind::kStop, ticket);
  LetGo(&pull);
  pulls_.erase(it);
}

std::shared_ptr<Buffer> Pulls::Use(Ticket ticket) {
  if (ticket == 0) return nullptr;
  const auto it = pulls_.find(ticket);
  PRD_CHECK(it != pulls_.end() && it->second.failure.ok() && it->second.complete());
  std::shared_ptr<Buffer> buffer = LetGo(&it->second);
  pulls_.erase(it);
  return buffer;
}

// ---- failures ----

// Tells the peer, if it may be sending.
void Pulls::Fail(Ticket ticket, Pull* pull, Status status) {
  peers_->Say(pull->from, pull->endpoint, FrameKind::kStop, ticket);
  LetGo(pull);
  pull->failure = std::move(status);
  due_ = true;
}

std::shared_ptr<Buffer> Pulls::LetGo(Pull* pull) {
  if (pull->buffer != nullptr) counters_->held_bytes -= pull->bytes;
  return std::exchange(pull->buffer, nullptr);
}

void Pulls::KeepFrom(const std::set<Incarnation>& peers) {
  for (auto& [ticket, pull] : pulls_) {
    if (pull.ended() || peers.contains(pull.from)) continue;
    Fail(ticket, &pull,
         Status(Code::kUnavailable, "the peer is no neighbour or keeper of shards any more"));
  }
}

void Pulls::OnLost(const std::string& endpoint) {
  for (auto& [ticket, pull] : pulls_) {
    if (pull.endpoint != endpoint || pull.ended()) continue;
    pull.endpoint.clear();  // nothing to be told there
    peers_->NoteOutOfReach(pull.from);
    Fail(ticket, &pull, Status(Code::kUnavailable, "the connection was lost"));
  }
}

// It is not out of reach: nobody is to look for it.
void Pulls::Forget(Incarnation peer) {
  for (auto& [ticket, pull] : pulls_) {
    if (pull.from != peer || pull.ended()) continue;
    pull.endpoint.clear();
    Fail(ticket, &pull, Status(Code::kUnavailable, "the peer is out"));
  }
}

// ---- frames ----

// One from this peer that has not ended, or null.
Pulls::Pull* Pulls::Find(Ticket ticket, Incarnation from) {
  const auto it = pulls_.find(ticket);
  const bool open = it != pulls_.end() && it->second.from == from && !it->second.ended();
  return open ? &it->second : nullptr;
}

bool Pulls::OnPong(Instant now, const FrameHeader& header) {
  const bool over = header.chunk == static_cast<std::uint32_t>(Answer::kOver);
  Pull* pull = Find(header.group, header.from);
  return pull != nullptr && pull->silence.Answered(now, 0, over);
}

bool Pulls::OnAnswer(Instant now, const FrameHeader& header, std::span<const std::byte> payload) {
  Pull* pull = Find(header.group, header.from);
  if (pull == nullptr) return false;
  pull->silence.Progress(now);
  Status status;
  if (header.kind == FrameKind::kRefused) {
    pull->endpoint.clear();  // it knows
    status = Status(Code::kNotFound, "the peer does not have it");
  } else if (header.kind == FrameKind::kParcel) {
    status = TakeInfo(pull, payload);
  } else {
    status = TakePart(pull, header, payload);
  }
  if (!status.ok()) Fail(header.group, pull, std::move(status));
  return true;
}

Status Pulls::TakeInfo(Pull* pull, std::span<const std::byte> payload) {
  std::optional<ParcelInfo> info = DecodeParcelInfo(payload);
  if (!info || pull->described) {
    return Status(Code::kDataLoss, "the description of what is sent is damaged");
  }
  if (info->bytes != pull->bytes) {
    return Status(Code::kDataLoss, "it has " + std::to_string(info->bytes) + " bytes, expected " +
                                       std::to_string(pull->bytes));
  }
  pull->described = true;
  pull->enclosure = std::move(info->enclosure);
  pull->buffer = buffers_->Get(pull->bytes);
  counters_->held_bytes += pull->bytes;
  counters_->most_held_bytes = std::max(counters_->most_held_bytes, counters_->held_bytes);
  return Status::Ok();
}

Status Pulls::TakePart(Pull* pull, const FrameHeader& header, std::span<const std::byte> payload) {
  if (!pull->described || payload.empty() || header.offset != pull->received ||
      payload.size() > pull->bytes - pull->received) {
    return Status(Code::kDataLoss, "the peer sent bytes that it did not announce");
  }
  std::memcpy(pull->buffer->data() + pull->received, payload.data(), payload.size());
  pull->received += payload.size();
  return Status::Ok();
}

// ---- turns ----

void Pulls::Watch(Instant now, Ticket ticket, Pull* pull) {
  const Silence::Step step = pull->silence.Next(now);
  if (step == Silence::Step::kAsk && !pull->silence.Ask(now, {0}).empty()) {
    peers_->Ask(now, pull->from, pull->endpoint, ticket);
  }
  if (step != Silence::Step::kGiveUp) return;
  const bool answered = pull->silence.silent().empty();
  if (!answered) peers_->GiveUp(pull->from, pull->endpoint);
  Fail(ticket, pull,
       Status(Code::kDeadlineExceeded, answered ? "the peer has nothing more to send"
                                                : "the peer sent nothing for too long"));
}

std::vector<Pulls::Ended> Pulls::Service(Instant now) {
  due_ = false;
  std::vector<Ended> ended;
  for (auto it = pulls_.begin(); it != pulls_.end();) {
    auto& [ticket, pull] = *it;
    if (!pull.ended()) Watch(now, ticket, &pull);
    const bool failed = !pull.failure.ok();
    if (pull.ended() && !std::exchange(pull.reported, true)) {
      ended.push_back({ticket, pull.failure, std::move(pull.enclosure)});
    }
    it = failed ? pulls_.erase(it) : std::next(it);
  }
  return ended;
}

std::optional<Instant> Pulls::NextDeadline() const {
  if (due_) return Instant{0};
  std::optional<Instant> next;
  for (const auto& [ticket, pull] : pulls_) {
    if (pull.ended()) continue;
    next = std::min(next.value_or(pull.silence.At()), pull.silence.At());
  }
  return next;
}

}  // namespace prd
