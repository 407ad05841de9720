// The other members of a group, as one member reaches them: connections, what is sent over them,
// whether they are silent, and who could not be reached.
//
// Part of GroupReduction.
#ifndef PRD_WORKER_MESH_GROUP_LINKS_H_
#define PRD_WORKER_MESH_GROUP_LINKS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/mesh/frame.h"
#include "worker/mesh/peers.h"
#include "worker/mesh/silence.h"

namespace prd {

class GroupLinks {
 public:
  // Members are named by their positions in the group. `self` is one of them.
  GroupLinks(Peers* peers, Instant now, const Group& group, Incarnation self, RunId run,
             DurationNs timeout);

  const Group& group() const { return group_; }
  const GroupMember& member(std::size_t position) const { return group_.members[position]; }
  std::size_t position() const { return position_; }  // this member's
  std::optional<std::size_t> PositionOf(Incarnation incarnation) const;

  using Which = std::function<bool(std::size_t position)>;
  // Connects to the members that are needed; it must be possible to reach all others, too. An error
  // says who could not be reached; all that can be are told of it by TellOthers.
  Status Connect(const Which& needed);
  // No connection to the others is needed; those that can be reached are told of a failure.
  void Resolve();

  // `header` says what is in the payload; the rest is set here.
  void Send(std::size_t position, FrameHeader header, SharedBytes payload);
  bool Idle(std::size_t position) const { return peers_->Idle(endpoints_[position]); }
  // Whether a kRing, kDirect or kTree is a part of this group, and not of another of its number.
  bool IsPart(const FrameHeader& header) const { return header.members == mark_; }
  std::uint64_t sent_bytes() const { return sent_; }
  // Tells the other members, as if they had asked, that something is to come from here.
  void SayToCome(Instant now);
  // Members that ask whether more is to come are told as long as it is on its way.
  void RememberSent(const Which& needed);
  // Drops what has not been sent.
  void DropQueued() { peers_->DropQueued(group_.id); }
  // kFail. Those that wait for what will not come any more need not wait for a time limit.
  void TellOthers();

  // The connection there is lost: an error, if it was to a member that is to be reached.
  Status OnLost(const std::string& endpoint);
  // A frame came, or was sent.
  void Progress(Instant now) { silence_.Progress(now); }
  // A kPong about this group. False: it was not asked for.
  bool OnPong(Instant now, const FrameHeader& header);
  // Asks those awaited, of whom nothing was heard for long; an error: that was too long.
  Status Watch(Instant now, const Which& awaited);
  Instant NextDeadline() const { return silence_.At(); }
  // Those that could not be reached.
  const std::vector<std::size_t>& unreachable() const { return unreachable_; }

 private:
  bool IsOther(std::size_t position) const;
  bool IsNeighbour(std::size_t position) const;
  Status Ask(Instant now, const Which& awaited);

  Peers* peers_;
  const Group group_;
  const std::uint64_t mark_;
  const Incarnation self_;
  const RunId run_;
  std::size_t position_ = 0;
  std::vector<std::string> endpoints_;  // by position; empty: nothing to be told there
  Silence silence_;
  std::vector<std::size_t> unreachable_;
  std::uint64_t sent_ = 0;
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_GROUP_LINKS_H_
