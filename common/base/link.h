// One end of the link between a worker and the controller: numbering, acknowledgement, duplicates.
// Both ends use it, the worker with Out = WorkerBody, the controller with Out = ControllerBody.
#ifndef PRD_COMMON_BASE_LINK_H_
#define PRD_COMMON_BASE_LINK_H_

#include <deque>
#include <utility>

#include "common/base/archive.h"
#include "common/base/ids.h"

namespace prd {

template <typename Out>
class LinkEnd {
 public:
  using Entry = std::pair<Seq, Out>;

  enum class Verdict {
    kDeliver,    // the next message in order; it now counts as received
    kDuplicate,  // seen before: drop it, acknowledge again
    kGap,        // one before it is missing: drop it, the peer will send both again
  };

  // Numbers a message and keeps it until acknowledged. The reference lasts until the next call.
  const Entry& Push(Out body) {
    unacked_.emplace_back(++last_out_, std::move(body));
    return unacked_.back();
  }

  // Forgets what the peer has received. False: it acknowledges messages never sent, and nothing
  // changes.
  bool OnAck(Seq ack) {
    if (ack > last_out_) return false;
    while (!unacked_.empty() && unacked_.front().first <= ack) unacked_.pop_front();
    return true;
  }

  Verdict Check(Seq seq) const {
    if (seq <= last_in_) return Verdict::kDuplicate;
    return seq == last_in_ + 1 ? Verdict::kDeliver : Verdict::kGap;
  }
  Verdict OnReceive(Seq seq) {
    const Verdict verdict = Check(seq);
    if (verdict == Verdict::kDeliver) last_in_ = seq;
    return verdict;
  }

  Seq last_in() const { return last_in_; }    // what to acknowledge
  Seq last_out() const { return last_out_; }  // what an ack can reach
  // The first message that can be sent again: the peer has received all before.
  Seq oldest() const { return last_out_ - unacked_.size() + 1; }
  const std::deque<Entry>& unacked() const { return unacked_; }

  // Two ends that differ only in what has been acknowledged hash alike.
  void Archive(StateArchive& ar) {
    ar(last_in_, last_out_);
    if (!ar.hashing()) ar(unacked_);
  }

 private:
  Seq last_in_ = 0;
  Seq last_out_ = 0;
  std::deque<Entry> unacked_;
};

}  // namespace prd

#endif  // PRD_COMMON_BASE_LINK_H_
