#include "worker/mesh/pull_server.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace prd {
namespace {

// Sent per peer before the owner gets to look at its other sockets.
constexpr int kPartsPerService = 4;

}  // namespace

void PullServer::Reset() {
  asked_.clear();
  due_ = false;
}

// ---- requests ----

std::optional<Request> PullServer::OnPull(Instant now, const FrameHeader& header) {
  const std::string endpoint = peers_->EndpointOf(header.from);
  std::size_t open = 0;
  bool again = false;
  for (const auto& [request, asked] : asked_) {
    open += asked.from == header.from ? 1 : 0;
    again = again || (asked.from == header.from && asked.number == header.group);
  }
  // Its loss ends the request, so there must be a connection from now on.
  if (again || !peers_->Connect(endpoint)) return std::nullopt;
  if (open >= kMaxRequests) {
    peers_->Say(header.from, endpoint, FrameKind::kRefused, header.group);
    return std::nullopt;
  }
  const Request request = ++requests_;
  asked_[request] = {.from = header.from,
                     .endpoint = endpoint,
                     .number = header.group,
                     .slice = {},
                     .progress = now};
  return request;
}

bool PullServer::OnStop(const FrameHeader& header) {
  return std::erase_if(asked_, [&header](const auto& entry) {
           return entry.second.from == header.from && entry.second.number == header.group;
         }) > 0;
}

bool PullServer::Awaits(Request request) const {
  const auto it = asked_.find(request);
  return it != asked_.end() && !it->second.served();
}

void PullServer::Serve(Instant now, Request request, Slice slice, const ShardHeader& enclosure) {
  if (slice.buffer == nullptr) return Refuse(request);
  Asked& asked = asked_.at(request);
  const std::vector<std::byte> info =
      EncodeParcelInfo({.bytes = slice.range.length, .enclosure = enclosure});
  if (!peers_->Say(asked.from, asked.endpoint, FrameKind::kParcel, asked.number, info)) {
    asked_.erase(request);
    return;
  }
  asked.slice = std::move(slice);
  asked.progress = now;
  due_ = true;
}

void PullServer::Refuse(Request request) {
  const auto it = asked_.find(request);
  if (it == asked_.end()) return;
  const Asked& asked = it->second;
  peers_->Say(asked.from, asked.endpoint, FrameKind::kRefused, asked.number);
  asked_.erase(it);
}

void PullServer::KeepOnly(const std::set<Incarnation>& peers) {
  std::erase_if(asked_, [&](const auto& entry) {
    const Asked& asked = entry.second;
    if (peers.contains(asked.from)) return false;
    peers_->Say(asked.from, asked.endpoint, FrameKind::kRefused, asked.number);
    return true;
  });
}

void PullServer::OnLost(const std::string& endpoint) {
  std::erase_if(asked_, [&](const auto& entry) { return entry.second.endpoint == endpoint; });
}

void PullServer::Forget(Incarnation peer) {
  std::erase_if(asked_, [peer](const auto& entry) { return entry.second.from == peer; });
}

bool PullServer::IsAsked(Instant now, Incarnation from, std::uint64_t number) {
  for (auto& [request, asked] : asked_) {
    if (asked.from != from || asked.number != number) continue;
    asked.progress = now;
    return true;
  }
  return false;
}

void PullServer::SayToCome(Instant now) {
  for (const auto& [request, asked] : asked_) {
    peers_->SayToCome(now, asked.from, asked.endpoint, asked.number);
  }
}

// ---- sending ----

// Bytes of a slice that are in host memory; of a device that failed none.
std::size_t PullServer::Ready(const Slice& slice) const {
  const std::size_t ready = slice.buffer->ready();
  if (!store_->memory->failure().ok()) return 0;
  return ready <= slice.range.begin ? 0 : std::min(ready - slice.range.begin, slice.range.length);
}

// False: nothing is left.
bool PullServer::SendPart(Instant now, Asked* asked) {
  if (asked->sent_all()) return false;
  const Slice& slice = asked->slice;
  const std::size_t ready = Ready(slice);
  if (ready <= asked->sent) return true;  // none any more, of a device that has failed by now
  FrameHeader header = peers_->Header(FrameKind::kPart, asked->from, asked->number);
  header.offset = asked->sent;
  header.length = std::min(part_bytes_, ready - asked->sent);
  connections_->Send(asked->endpoint, header,
                     Within(slice.buffer, slice.range.begin + asked->sent, header.length));
  asked->sent += header.length;
  asked->progress = now;
  counters_->sent_bytes += header.length;
  return !asked->sent_all();
}

bool PullServer::Arriving() const {
  return std::any_of(asked_.begin(), asked_.end(), [this](const auto& entry) {
    const Asked& asked = entry.second;
    return asked.served() && Ready(asked.slice) < asked.slice.range.length;
  });
}

// In turns, to those that can take something.
void PullServer::Service(Instant now) {
  due_ = false;
  for (int round = 0; round < kPartsPerService; ++round) {
    bool any = false;
    for (auto it = asked_.begin(); it != asked_.end();) {
      Asked& asked = it->second;
      const bool there = asked.served() && (Ready(asked.slice) > asked.sent || asked.sent_all());
      const bool sends = there && connections_->Idle(asked.endpoint);
      const bool over = sends ? !SendPart(now, &asked)
                              : asked.served() && now - asked.progress > peers_->timeout();
      if (sends && over) {
        connections_->Sent(Topic::kPull, asked.from, asked.number, asked.endpoint);
      }
      any = any || sends;
      it = over ? asked_.erase(it) : std::next(it);
    }
    if (!any) return;
  }
  due_ = true;
}

std::optional<Instant> PullServer::NextDeadline() const {
  if (due_) return Instant{0};
  std::optional<Instant> next;
  for (const auto& [request, asked] : asked_) {
    const Instant at = asked.progress + peers_->timeout();
    if (asked.served()) next = std::min(next.value_or(at), at);
  }
  return next;
}

}  // namespace prd
