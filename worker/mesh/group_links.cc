#include "worker/mesh/group_links.h"

#include <utility>

namespace prd {

GroupLinks::GroupLinks(Peers* peers, Instant now, const Group& group, Incarnation self, RunId run,
                       DurationNs timeout)
    : peers_(peers),
      group_(group),
      mark_(MarkOf(group)),
      self_(self),
      run_(run),
      position_(PositionOf(self).value_or(0)),
      endpoints_(group.members.size()),
      silence_(now, timeout) {}

std::optional<std::size_t> GroupLinks::PositionOf(Incarnation incarnation) const {
  for (std::size_t i = 0; i < group_.members.size(); ++i) {
    if (member(i).incarnation == incarnation) return i;
  }
  return std::nullopt;
}

// Another member that can be told something.
bool GroupLinks::IsOther(std::size_t position) const {
  return position != position_ && !endpoints_[position].empty();
}

// Whether there is to be a connection to that member: in any group, unless Group::ring_only.
bool GroupLinks::IsNeighbour(std::size_t position) const {
  const std::size_t members = endpoints_.size();
  return !group_.ring_only || (position + 1) % members == position_ ||
         (position_ + 1) % members == position;
}

Status GroupLinks::Connect(const Which& needed) {
  Resolve();
  for (std::size_t i = 0; i < endpoints_.size(); ++i) {
    if (i == position_) continue;
    if (endpoints_[i].empty()) {
      unreachable_ = {i};
      return peers_->EndpointOf(member(i)).status();
    }
    if (!needed(i)) continue;
    Status used = peers_->Use(endpoints_[i]);
    // The next group would fail as this one, until there is one again: the two are to be probed.
    if (used.code() == Code::kResourceExhausted) unreachable_ = {i};
    if (!used.ok()) return used;
  }
  return Status::Ok();
}

void GroupLinks::Resolve() {
  for (std::size_t i = 0; i < endpoints_.size(); ++i) {
    if (i == position_) continue;
    Result<std::string> endpoint = peers_->EndpointOf(member(i));
    if (endpoint.ok()) endpoints_[i] = *std::move(endpoint);
  }
}

void GroupLinks::Send(std::size_t position, FrameHeader header, SharedBytes payload) {
  header.run = run_;
  header.group = group_.id;
  header.from = self_;
  header.to = member(position).incarnation;
  header.length = payload.size();
  header.members = mark_;
  sent_ += payload.size();
  peers_->Send(endpoints_[position], header, std::move(payload));
}

void GroupLinks::SayToCome(Instant now) {
  for (std::size_t i = 0; i < endpoints_.size(); ++i) {
    if (!IsOther(i) || !IsNeighbour(i)) continue;
    const FrameHeader pong{.kind = FrameKind::kPong,
                           .run = run_,
                           .group = group_.id,
                           .from = self_,
                           .to = member(i).incarnation,
                           .stage = static_cast<std::uint32_t>(Topic::kGroup),
                           .chunk = static_cast<std::uint32_t>(Answer::kToCome)};
    (void)peers_->Signal(now, endpoints_[i], pong, SharedBytes());
  }
}

void GroupLinks::RememberSent(const Which& needed) {
  for (std::size_t i = 0; i < endpoints_.size(); ++i) {
    if (needed(i)) {
      peers_->Sent(Topic::kGroup, member(i).incarnation, group_.id, endpoints_[i]);
    }
  }
}

// Where only neighbours reach each other, the word goes around the ring.
void GroupLinks::TellOthers() {
  for (std::size_t i = 0; i < endpoints_.size(); ++i) {
    if (!IsOther(i) || !IsNeighbour(i) || !peers_->Use(endpoints_[i]).ok()) continue;
    Send(i, {.kind = FrameKind::kFail}, SharedBytes());
  }
}

Status GroupLinks::OnLost(const std::string& endpoint) {
  Status lost;
  for (std::size_t i = 0; i < endpoints_.size(); ++i) {
    if (endpoints_[i] != endpoint || !IsNeighbour(i)) continue;
    endpoints_[i].clear();
    unreachable_.push_back(i);
    lost = Status(Code::kUnavailable,
                  "the connection to rank " + std::to_string(member(i).rank) + " was lost");
  }
  return lost;
}

bool GroupLinks::OnPong(Instant now, const FrameHeader& header) {
  const std::optional<std::size_t> position = PositionOf(header.from);
  const bool over = header.chunk == static_cast<std::uint32_t>(Answer::kOver);
  return position && silence_.Answered(now, *position, over);
}

Status GroupLinks::Watch(Instant now, const Which& awaited) {
  switch (silence_.Next(now)) {
    case Silence::Step::kWait:
      break;
    case Silence::Step::kAsk:
      return Ask(now, awaited);
    case Silence::Step::kGiveUp: {
      std::string who;
      for (const std::size_t position : silence_.silent()) {
        who += (who.empty() ? ", nor do these answer: rank " : ", ") +
               std::to_string(member(position).rank);
      }
      unreachable_ = silence_.silent();
      return Status(Code::kDeadlineExceeded, "nothing was received for too long" + who);
    }
  }
  return Status::Ok();
}

// The data connection tells at once if the member's process is gone.
Status GroupLinks::Ask(Instant now, const Which& awaited) {
  std::vector<std::size_t> ask;
  for (std::size_t i = 0; i < endpoints_.size(); ++i) {
    if (IsOther(i) && awaited(i)) ask.push_back(i);
  }
  for (const std::size_t position : silence_.Ask(now, std::move(ask))) {
    if (Status used = peers_->Use(endpoints_[position]); !used.ok()) return used;
    const FrameHeader ping =
        PingOf(Topic::kGroup, group_.id, run_, self_, member(position).incarnation);
    (void)peers_->Signal(now, endpoints_[position], ping, SharedBytes());
  }
  return Status::Ok();
}

}  // namespace prd
