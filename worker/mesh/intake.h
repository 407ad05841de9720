// Frames that come over the transport, before anybody acts on them: of admitted connections alone
// (door.h), opened (seal.h), of the worker that the connection is of, each once, and none whose
// stream lacks an earlier one (arrivals.h). Acknowledges them, and asks for what was lost.
//
// Not thread safe.
#ifndef PRD_WORKER_MESH_INTAKE_H_
#define PRD_WORKER_MESH_INTAKE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "worker/mesh/arrivals.h"
#include "worker/mesh/directory.h"
#include "worker/mesh/door.h"
#include "worker/mesh/frame.h"
#include "worker/mesh/peers.h"
#include "worker/transport/transport.h"

namespace prd {

class Intake {
 public:
  static constexpr DurationNs kTellOfIntruders = 10 * kSecond;
  // Connections from other hosts may bring so many bytes that are not read, beside the frames of
  // members (Transport::kUnreadFrames each); and so many may have brought no frame, beside two of
  // each member.
  static constexpr std::size_t kMaxSilent = 64;
  static constexpr std::uint64_t kMaxUnreadBytes = 16 << 20;

  struct Frame {
    FrameHeader header;
    SharedBytes payload;
  };
  struct Counters {
    std::uint64_t dropped = 0;   // damaged, of nobody that is admitted, or for another incarnation
    std::uint64_t forged = 0;    // of those: not from the connection's worker
    std::uint64_t repeated = 0;  // that had come over a connection that broke
  };

  // Parts of frames are up to `longest_part` bytes. The pointers outlive it.
  Intake(Transport* transport, const Directory* directory, Peers* peers, std::size_t longest_part);

  // Connections are of the directory's run from now on, and protected so; they wait for an
  // announcement for so long. Forgets those that were admitted, and what came over them.
  void Join(MeshSecurity security, DurationNs patience);
  // The directory has others than before: what may come unread, and who was admitted.
  void AllowMembers();
  void ForgetOut() { door_.Forget(); }

  // Answers connections.
  void Serve(Instant now) { door_.Serve(now); }
  // Takes what has come next. False: nothing has. `frame` stays empty where it is no frame for this
  // incarnation.
  bool Take(Instant now, std::optional<Frame>* frame);
  // Asks peers for what was lost, and tells them what has come.
  void AnswerPeers(Instant now);

  // That a connection was refused, or what came over one was dropped that no member sends: where
  // from, and why. Not more often than once in kTellOfIntruders.
  std::optional<std::string> TakeIntruder(Instant now);

  const Counters& counters() const { return counters_; }
  const Door::Counters& connections() const { return door_.counters(); }
  std::optional<Instant> NextDeadline() const;

 private:
  std::optional<FrameHeader> Open(Instant now, Door::Visitor* visitor, Transport::Arrival* arrival);
  void AskAgain(Instant now);
  void Acknowledge(Instant now);
  void Signal(Instant now, const FrameHeader& header);

  Transport* transport_;
  const Directory* directory_;
  Peers* peers_;
  std::size_t longest_part_;
  Door door_;
  Arrivals arrivals_;
  std::optional<std::string> intruder_;  // to be told of
  std::uint64_t told_ended_ = 0;         // connections that the transport had ended
  std::optional<Instant> told_at_;
  Counters counters_;
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_INTAKE_H_
