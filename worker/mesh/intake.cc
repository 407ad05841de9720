#include "worker/mesh/intake.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

namespace prd {

Intake::Intake(Transport* transport, const Directory* directory, Peers* peers,
               std::size_t longest_part)
    : transport_(transport),
      directory_(directory),
      peers_(peers),
      longest_part_(longest_part),
      door_(transport, directory) {
  AllowMembers();
}

void Intake::Join(MeshSecurity security, DurationNs patience) {
  arrivals_.Clear();
  door_.Join(security, patience);
}

void Intake::AllowMembers() {
  transport_->Allow(
      kMaxSilent + 2 * directory_->size(),
      kMaxUnreadBytes + directory_->size() * Transport::kUnreadFrames * longest_part_);
}

bool Intake::Take(Instant now, std::optional<Frame>* frame) {
  Transport::Arrival arrival;
  if (!transport_->Receive(&arrival)) return false;
  Door::Visitor* const visitor = door_.Find(arrival.visitor);
  const std::optional<FrameHeader> header =
      visitor != nullptr ? Open(now, visitor, &arrival) : std::optional<FrameHeader>();
  transport_->Attribute(visitor == nullptr ? 0 : visitor->from);
  // One for the incarnation before this one is void. It has come all the same: those of its stream
  // after it are not to wait for it.
  const bool mine = header && header->to == directory_->self();
  if (!header) {
    ++counters_.dropped;
  } else if (header->stream != 0 && arrivals_.Misses(*header)) {
    // What was sent before is lost, and not to be acknowledged with this one: both are asked for
    // again.
    if (mine) peers_->SetSpoiled(now, header->from, arrival.visitor);
    ++counters_.dropped;
  } else if (header->stream != 0 && !arrivals_.Take(now, *header)) {
    ++counters_.repeated;
  } else {
    if (header->stream != 0) peers_->ClearSpoiled(header->from, arrival.visitor);
    if (mine) {
      *frame = {.header = *header, .payload = std::move(arrival.payload)};
    } else {
      ++counters_.dropped;
    }
  }
  return true;
}

// The header, if the frame is from the worker that the connection is of. A frame that cannot be
// read may be a good one that was damaged on its way: the peer is asked to send again.
std::optional<FrameHeader> Intake::Open(Instant now, Door::Visitor* visitor,
                                        Transport::Arrival* arrival) {
  std::span<const std::byte> bytes = arrival->first;
  SharedBytes& payload = arrival->payload;
  std::optional<std::array<std::byte, kFrameHeaderBytes>> opened;
  if (!arrival->whole) bytes = {};
  if (arrival->whole && visitor->opener) {
    opened = visitor->opener->Open(bytes, {payload.data(), payload.size()});
    bytes = opened ? std::span<const std::byte>(*opened) : std::span<const std::byte>();
  }
  const std::optional<FrameHeader> header = DecodeHeader(bytes, payload.size());
  const bool sealed = !arrival->whole || !visitor->opener || opened;
  if (sealed && header && header->from == visitor->from &&
      (!visitor->purpose || (*visitor->purpose == Purpose::kSignals) == IsSignal(header->kind))) {
    return header;
  }
  if (!header && visitor->purpose == Purpose::kData) {
    peers_->SetSpoiled(now, visitor->from, arrival->visitor);
  }
  if (sealed && !header) return std::nullopt;  // noise of a member
  ++counters_.forged;
  intruder_ = "a frame was dropped that came over the connection of rank " +
              std::to_string(directory_->Find(visitor->from)->rank) +
              (sealed ? ": the frame is of another worker, or not for this connection"
                      : ": the frame was changed or forged, or has come before");
  return std::nullopt;
}

std::optional<std::string> Intake::TakeIntruder(Instant now) {
  if (auto refused = door_.TakeRefusal()) intruder_ = *std::move(refused);
  const Transport::Counters guarded = transport_->counters();
  const std::uint64_t ended = guarded.refused + guarded.cut;
  if (std::exchange(told_ended_, ended) != ended) {
    intruder_ = "connections were ended: " + std::to_string(guarded.refused) +
                " so far were too many, in all or from one address, and " +
                std::to_string(guarded.cut) + " brought too much without a whole frame";
  }
  if (!intruder_ || (told_at_ && now - *told_at_ < kTellOfIntruders)) return std::nullopt;
  told_at_ = now;
  return *std::exchange(intruder_, std::nullopt) + " (" + std::to_string(connections().refused) +
         " connections and " + std::to_string(counters_.forged) + " frames so far)";
}

void Intake::AnswerPeers(Instant now) {
  AskAgain(now);
  Acknowledge(now);
}

// Whether somebody waits for what was lost is not known here: a note is waited for by nobody.
void Intake::AskAgain(Instant now) {
  for (const auto& [peer, question] : peers_->TakeSpoiled(now)) {
    Signal(now, PingOf(Topic::kLife, question, directory_->run(), directory_->self(), peer));
  }
}

// An acknowledgement may be lost: a later one says the same and more.
void Intake::Acknowledge(Instant now) {
  for (const Arrivals::Acknowledgement& due : arrivals_.TakeDue(now)) {
    Signal(now, {.kind = FrameKind::kAck,
                 .run = directory_->run(),
                 .group = due.stream,
                 .from = directory_->self(),
                 .to = due.to,
                 .offset = due.number});
  }
}

void Intake::Signal(Instant now, const FrameHeader& header) {
  const GroupMember* member = directory_->Find(header.to);
  if (member == nullptr) return;
  const Result<std::string> endpoint = peers_->EndpointOf(*member);
  if (endpoint.ok()) (void)peers_->Signal(now, *endpoint, header, SharedBytes());
}

std::optional<Instant> Intake::NextDeadline() const {
  const std::optional<Instant> arrivals = arrivals_.NextDeadline();
  const std::optional<Instant> door = door_.NextDeadline();
  return arrivals && door ? std::min(arrivals, door) : arrivals ? arrivals : door;
}

}  // namespace prd
