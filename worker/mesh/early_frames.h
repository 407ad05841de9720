// Frames of groups that the controller has not announced here yet, until it does.
#ifndef PRD_WORKER_MESH_EARLY_FRAMES_H_
#define PRD_WORKER_MESH_EARLY_FRAMES_H_

#include <cstddef>
#include <deque>

#include "common/base/messages.h"
#include "worker/mesh/frame.h"

namespace prd {

class EarlyFrames {
 public:
  struct Kept {
    FrameHeader header;
    SharedBytes payload;
  };

  // Keeps the frame, and of all the newest ones, up to `limit` bytes. Returns how many were
  // dropped: their groups cannot succeed here any more.
  std::size_t Keep(const FrameHeader& header, SharedBytes payload, std::size_t limit);
  // Whether frames of this group were dropped, as far as that is remembered.
  bool Misses(GroupId group) const;
  // All, in the order in which they came.
  std::deque<Kept> Take();
  // The kFail frames of this group, which are kept no longer.
  std::deque<Kept> TakeFailures(RunId run, GroupId group);
  // Drops this member's frames.
  void Forget(Incarnation member);
  // Forgets which groups miss frames.
  void ForgetMissing() { incomplete_.clear(); }
  void Clear();

  // What is kept now takes so many.
  std::size_t bytes() const { return bytes_; }

 private:
  static std::size_t BytesOf(const Kept& frame) { return frame.payload.size() + sizeof frame; }

  std::deque<Kept> frames_;
  std::size_t bytes_ = 0;
  std::deque<GroupId> incomplete_;
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_EARLY_FRAMES_H_
