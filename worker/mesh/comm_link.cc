#include "worker/mesh/comm_link.h"

#include <set>
#include <utility>
#include <vector>

namespace prd {

void CommLink::Use(Communicators* communicators) {
  Join(self_, kNoRun);
  communicators_ = communicators == nullptr ? &none_ : communicators;
}

void CommLink::Join(Incarnation self, RunId run) {
  self_ = self;
  run_ = run;
  communicators_->Join(self, run);
  for (const auto& [peer, endpoint] : watched_) {
    peers_->Release(endpoint, Peers::Keeper::kCommunicators);
  }
  watched_.clear();
}

bool CommLink::OnFrame(Instant now, const FrameHeader& header, const SharedBytes& payload) {
  if (header.run != run_ || run_ == kNoRun || header.from == self_) return false;
  const std::optional<CommMessage> message = DecodeCommMessage(payload.span());
  if (message) communicators_->OnMessage(now, header.from, *message);
  return message.has_value();
}

void CommLink::OnLost(Instant now, const std::string& endpoint) {
  std::vector<Incarnation> lost;
  for (const auto& [peer, at] : watched_) {
    if (at == endpoint) lost.push_back(peer);
  }
  for (const Incarnation peer : lost) {
    watched_.erase(peer);
    communicators_->OnLost(now, peer);
  }
}

// That something is over is said over connections that are there: a new one to a peer that is gone
// would hold up the end of the session (Peers' linger).
void CommLink::Send(Instant now, const Communicators::Outgoing& out) {
  using Kind = CommMessage::Kind;
  const bool over = out.message.kind == Kind::kBroken || out.message.kind == Kind::kRetire;
  if (over && !watched_.contains(out.to.incarnation)) return;
  const Result<std::string> endpoint = peers_->EndpointOf(out.to);
  if (!endpoint.ok() || !peers_->Use(*endpoint).ok()) {
    return communicators_->OnLost(now, out.to.incarnation);
  }
  const std::vector<std::byte> bytes = EncodeCommMessage(out.message);
  peers_->Send(*endpoint,
               {.kind = FrameKind::kComm,
                .run = run_,
                .from = self_,
                .to = out.to.incarnation,
                .length = bytes.size()},
               SharedBytes(bytes.data(), bytes.size()));
}

void CommLink::Watch(Instant now) {
  std::map<Incarnation, std::string> watched;
  std::set<std::string> endpoints;
  for (const GroupMember& peer : communicators_->Peers()) {
    const Result<std::string> endpoint = peers_->EndpointOf(peer);
    if (!endpoint.ok() || !peers_->Keep(*endpoint, Peers::Keeper::kCommunicators).ok()) {
      communicators_->OnLost(now, peer.incarnation);
      continue;
    }
    watched[peer.incarnation] = *endpoint;
    endpoints.insert(*endpoint);
  }
  for (const auto& [peer, endpoint] : watched_) {
    if (!endpoints.contains(endpoint)) peers_->Release(endpoint, Peers::Keeper::kCommunicators);
  }
  watched_ = std::move(watched);
}

void CommLink::Service(Instant now) {
  communicators_->Service(now);
  std::vector<Communicators::Outgoing> out = communicators_->TakeOutgoing();
  do {
    for (const Communicators::Outgoing& each : out) Send(now, each);
    Watch(now);
    out = communicators_->TakeOutgoing();
  } while (!out.empty());
}

}  // namespace prd
