#include "worker/mesh/early_frames.h"

#include <algorithm>
#include <utility>

namespace prd {
namespace {

// Groups remembered that have lost frames.
constexpr std::size_t kMaxIncomplete = 64;

}  // namespace

std::size_t EarlyFrames::Keep(const FrameHeader& header, SharedBytes payload, std::size_t limit) {
  frames_.push_back({header, std::move(payload)});
  bytes_ += BytesOf(frames_.back());
  std::size_t dropped = 0;
  for (; bytes_ > limit; ++dropped) {
    const Kept& oldest = frames_.front();
    bytes_ -= BytesOf(oldest);
    if (incomplete_.empty() || incomplete_.back() != oldest.header.group) {
      incomplete_.push_back(oldest.header.group);
      if (incomplete_.size() > kMaxIncomplete) incomplete_.pop_front();
    }
    frames_.pop_front();
  }
  return dropped;
}

bool EarlyFrames::Misses(GroupId group) const {
  return std::find(incomplete_.begin(), incomplete_.end(), group) != incomplete_.end();
}

std::deque<EarlyFrames::Kept> EarlyFrames::Take() {
  bytes_ = 0;
  return std::exchange(frames_, {});
}

std::deque<EarlyFrames::Kept> EarlyFrames::TakeFailures(RunId run, GroupId group) {
  std::deque<Kept> failures;
  std::erase_if(frames_, [&](Kept& frame) {
    const FrameHeader& header = frame.header;
    if (header.kind != FrameKind::kFail || header.run != run || header.group != group) return false;
    bytes_ -= BytesOf(frame);
    failures.push_back(std::move(frame));
    return true;
  });
  return failures;
}

void EarlyFrames::Forget(Incarnation member) {
  std::erase_if(frames_, [&](const Kept& frame) {
    if (frame.header.from != member) return false;
    bytes_ -= BytesOf(frame);
    return true;
  });
}

void EarlyFrames::Clear() {
  frames_.clear();
  bytes_ = 0;
}

}  // namespace prd
