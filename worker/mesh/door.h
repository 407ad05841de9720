// Authentication of connections to this worker's mesh. Nothing that comes over a connection is read
// before its other end has shown that it is a worker whom the controller has announced
// (directory.h).
//
// Whoever connects (Transport::Knock) names itself by a Pass, and shows by ProofOf that it has the
// key of that worker. The transport asks here, and marks every frame of an admitted connection with
// the name that the answer gives. A connection of a worker that is not announced yet waits: the
// announcement is on its way, as a rule. Under MeshSecurity::kCurve the other end's key says who it
// is.
//
// A peer that is out (Directory::Remove) is refused, and what comes over its connections counts no
// more. Only a key does not say whether its owner comes back as another incarnation: under CURVE
// the connection waits as that of any worker that is not announced.
//
// A pass is admitted once, and its worker's numbers ascend. So what somebody on the path has seen
// of a connection opens no other one.
//
// Not thread safe.
#ifndef PRD_WORKER_MESH_DOOR_H_
#define PRD_WORKER_MESH_DOOR_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "worker/mesh/directory.h"
#include "worker/mesh/keys.h"
#include "worker/mesh/seal.h"
#include "worker/transport/transport.h"

namespace prd {

class Door {
 public:
  // Connections of workers that are not announced yet. Over that the one that has waited longest
  // goes, of the address that has most.
  static constexpr std::size_t kMaxHeld = 256;
  // Connections of one worker for one purpose that are remembered: frames of an older one, which
  // its sender has given up, may still wait here.
  static constexpr std::size_t kMaxRemembered = 4;

  // An admitted connection.
  struct Visitor {
    Incarnation from = 0;
    std::optional<Purpose> purpose;     // none: any
    std::optional<FrameOpener> opener;  // if the connection Seals
  };
  struct Counters {
    std::uint64_t admitted = 0;
    std::uint64_t refused = 0;
  };

  // Both outlive it.
  Door(Transport* transport, const Directory* directory)
      : transport_(transport), directory_(directory) {}

  // From now on connections are of the directory's run, and protected so; they wait for an
  // announcement for so long. Forgets those that were admitted.
  void Join(MeshSecurity security, DurationNs patience);

  // Forgets those that were admitted whose workers are out.
  void Forget();

  // Answers what has come, those whose worker has been announced, and those that have waited too
  // long.
  void Serve(Instant now);
  // Whom a frame of this visitor is from (Transport::Arrival). nullptr: of nobody that is admitted
  // now.
  Visitor* Find(std::uint64_t visitor);

  // Why the newest of those that were refused was, and where it came from. Once.
  std::optional<std::string> TakeRefusal() { return std::exchange(refusal_, std::nullopt); }
  const Counters& counters() const { return counters_; }
  std::optional<Instant> NextDeadline() const;

 private:
  using Knock = Transport::Knock;
  struct Held {
    Knock knock;
    Instant since;
  };
  enum class Verdict : std::uint8_t { kAdmit, kHold, kRefuse };
  struct Judgement {
    Verdict verdict = Verdict::kRefuse;
    std::uint64_t visitor = 0;  // kAdmit: its name
    std::string why = {};       // kRefuse
  };

  Judgement Judge(const Knock& knock);
  Judgement JudgePass(const Knock& knock);
  Judgement JudgeKey(const Knock& knock);
  std::uint64_t Admit(Visitor visitor);
  void Answer(const Knock& knock, const Judgement& judgement);
  void Hold(Instant now, Knock knock);

  Transport* transport_;
  const Directory* directory_;
  MeshSecurity security_ = MeshSecurity::kNone;
  DurationNs patience_ = 10 * kSecond;
  std::deque<Held> held_;  // the oldest in front
  std::uint64_t names_ = 0;
  std::map<std::uint64_t, Visitor> visitors_;
  // By sender and purpose: the newest number that was admitted, and the visitors' names.
  struct Sender {
    std::uint64_t newest = 0;
    std::deque<std::uint64_t> names;
  };
  std::map<std::pair<Incarnation, char>, Sender> senders_;
  std::optional<std::string> refusal_;
  Counters counters_;
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_DOOR_H_
