#include "common/io/peer_connections.h"

namespace prd {

// Keeps the order of peers by their silent connections, and the sum of these.
template <typename Change>
void PeerConnections::ChangeSilent(const std::string& peer, Change change) {
  BySerial& silent = peers_.at(peer).silent;
  most_silent_.erase({silent.size(), peer});
  const std::size_t before = silent.size();
  change(silent);
  change(silent_);
  if (peer.empty()) return;
  others_silent_ = others_silent_ - before + silent.size();
  if (!silent.empty()) most_silent_.emplace(silent.size(), peer);
}

void PeerConnections::Open(const std::string& peer, std::uint64_t serial, int fd) {
  ++open_;
  ++peers_[peer].open;
  ChangeSilent(peer, [&](BySerial& silent) { silent[serial] = fd; });
}

void PeerConnections::Spoke(const std::string& peer, std::uint64_t serial) {
  ChangeSilent(peer, [&](BySerial& silent) { silent.erase(serial); });
}

void PeerConnections::Close(const std::string& peer, std::uint64_t serial) {
  Spoke(peer, serial);
  --open_;
  const auto it = peers_.find(peer);
  if (--it->second.open == 0) peers_.erase(it);
}

std::size_t PeerConnections::OpenOf(const std::string& peer) const {
  const auto it = peers_.find(peer);
  return it == peers_.end() ? 0 : it->second.open;
}

std::optional<int> PeerConnections::First(const BySerial& silent) {
  return silent.empty() ? std::nullopt : std::optional(silent.begin()->second);
}

std::optional<int> PeerConnections::OldestOf(const std::string& peer) const {
  const auto it = peers_.find(peer);
  return it == peers_.end() ? std::nullopt : First(it->second.silent);
}

std::optional<int> PeerConnections::OldestOfMost() const {
  return most_silent_.empty() ? std::nullopt : OldestOf(most_silent_.rbegin()->second);
}

}  // namespace prd
