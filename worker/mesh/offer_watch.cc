#include "worker/mesh/offer_watch.h"

#include <algorithm>
#include <iterator>

namespace prd {

void OfferWatch::Offered(Instant now, Incarnation peer) {
  silences_.try_emplace(peer, now, peers_->timeout());
}

void OfferWatch::KeepOnly(const std::set<Incarnation>& peers) {
  std::erase_if(silences_, [&](const auto& entry) { return !peers.contains(entry.first); });
}

bool OfferWatch::OnPong(Instant now, Incarnation peer) {
  const auto silence = silences_.find(peer);
  return silence != silences_.end() && silence->second.Answered(now, 0, false);
}

void OfferWatch::Service(Instant now) {
  for (auto it = silences_.begin(); it != silences_.end();) {
    auto& [peer, silence] = *it;
    const Silence::Step step = silence.Next(now);
    if (step == Silence::Step::kAsk && !silence.Ask(now, {0}).empty()) {
      peers_->Ask(now, peer, peers_->EndpointOf(peer), kOffers);
    }
    if (step == Silence::Step::kGiveUp) peers_->GiveUp(peer, peers_->EndpointOf(peer));
    it = step == Silence::Step::kGiveUp ? silences_.erase(it) : std::next(it);
  }
}

std::optional<Instant> OfferWatch::NextDeadline() const {
  std::optional<Instant> next;
  for (const auto& [peer, silence] : silences_) {
    next = std::min(next.value_or(silence.At()), silence.At());
  }
  return next;
}

}  // namespace prd
