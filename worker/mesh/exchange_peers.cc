#include "worker/mesh/exchange_peers.h"

namespace prd {
namespace {

constexpr Peers::Keeper kKeeper = Peers::Keeper::kExchange;

}  // namespace

void ExchangePeers::Join(Incarnation self, RunId run) {
  self_ = self;
  run_ = run;
  for (const auto& [peer, endpoint] : endpoints_) connections_->Release(endpoint, kKeeper);
  endpoints_.clear();
  ranks_.clear();
  out_of_reach_.clear();
  given_up_.clear();
}

void ExchangePeers::Meet(const std::vector<GroupMember>& peers) {
  const std::map<Incarnation, std::string> before = std::exchange(endpoints_, {});
  std::set<std::string> used;
  ranks_.clear();
  for (const GroupMember& peer : peers) {
    if (peer.incarnation == self_) continue;
    const Result<std::string> endpoint = connections_->EndpointOf(peer);
    ranks_[peer.incarnation] = peer.rank;
    endpoints_[peer.incarnation] = endpoint.ok() ? *endpoint : std::string();
    if (endpoint.ok()) used.insert(*endpoint);
  }
  for (const auto& [peer, endpoint] : before) {
    if (!used.contains(endpoint)) connections_->Release(endpoint, kKeeper);
  }
}

void ExchangePeers::Forget(Incarnation peer) {
  ranks_.erase(peer);
  const auto met = endpoints_.find(peer);
  if (met == endpoints_.end()) return;
  connections_->Release(met->second, kKeeper);
  met->second.clear();
}

bool ExchangePeers::Hears(const FrameHeader& header) const {
  return run_ != kNoRun && header.run == run_ && header.from != self_;
}

std::string ExchangePeers::EndpointOf(Incarnation peer) const {
  const auto met = endpoints_.find(peer);
  return met == endpoints_.end() ? std::string() : met->second;
}

bool ExchangePeers::Connect(const std::string& endpoint) {
  return !endpoint.empty() && connections_->Keep(endpoint, kKeeper).ok();
}

FrameHeader ExchangePeers::Header(FrameKind kind, Incarnation to, std::uint64_t number) const {
  return {.kind = kind, .run = run_, .group = number, .from = self_, .to = to};
}

bool ExchangePeers::Say(Incarnation to, const std::string& endpoint, FrameKind kind,
                        std::uint64_t number, std::span<const std::byte> payload) {
  if (!Connect(endpoint)) return false;
  const bool needed = kind == FrameKind::kPull || kind == FrameKind::kParcel;
  if (!needed && connections_->Queued(endpoint) >= kMaxQueued) return false;
  FrameHeader header = Header(kind, to, number);
  header.length = payload.size();
  connections_->Send(endpoint, header, SharedBytes(payload.data(), payload.size()));
  return true;
}

void ExchangePeers::Ask(Instant now, Incarnation peer, const std::string& endpoint,
                        std::uint64_t number) {
  const FrameHeader ping = PingOf(Topic::kPull, number, run_, self_, peer);
  (void)connections_->Signal(now, endpoint, ping, SharedBytes());
}

void ExchangePeers::SayToCome(Instant now, Incarnation peer, const std::string& endpoint,
                              std::uint64_t number) {
  FrameHeader pong = Header(FrameKind::kPong, peer, number);
  pong.stage = static_cast<std::uint32_t>(Topic::kPull);
  pong.chunk = static_cast<std::uint32_t>(Answer::kToCome);
  (void)connections_->Signal(now, endpoint, pong, SharedBytes());
}

void ExchangePeers::NoteOutOfReach(Incarnation peer) {
  if (const auto rank = ranks_.find(peer); rank != ranks_.end()) out_of_reach_.insert(rank->second);
}

void ExchangePeers::GiveUp(Incarnation peer, const std::string& endpoint) {
  given_up_.push_back(endpoint);
  NoteOutOfReach(peer);
}

}  // namespace prd
