#include "worker/mesh/early_asks.h"

#include <algorithm>
#include <utility>

namespace prd {
namespace {

constexpr std::size_t kMaxBytes = 64;  // of one payload: notes and requests are smaller

auto IsPull(Incarnation from, std::uint64_t number) {
  return [from, number](const EarlyAsks::Frame& frame) {
    const FrameHeader& header = frame.header;
    return header.kind == FrameKind::kPull && header.from == from && header.group == number;
  };
}

}  // namespace

bool EarlyAsks::Keep(const FrameHeader& header, SharedBytes payload) {
  if (payload.size() > kMaxBytes) return false;
  frames_.push_back({header, std::move(payload)});
  if (frames_.size() > kMax) frames_.pop_front();
  return true;
}

std::deque<EarlyAsks::Frame> EarlyAsks::TakeMet(const ExchangePeers& peers) {
  std::deque<Frame> met;
  std::erase_if(frames_, [&](Frame& frame) {
    const bool take = peers.Meets(frame.header.from);
    if (take) met.push_back(std::move(frame));
    return take;
  });
  return met;
}

bool EarlyAsks::HasPull(Incarnation from, std::uint64_t number) const {
  return std::any_of(frames_.begin(), frames_.end(), IsPull(from, number));
}

bool EarlyAsks::DropPull(Incarnation from, std::uint64_t number) {
  return std::erase_if(frames_, IsPull(from, number)) > 0;
}

void EarlyAsks::Forget(Incarnation peer) {
  std::erase_if(frames_, [peer](const Frame& frame) { return frame.header.from == peer; });
}

}  // namespace prd
