// What carries frames between the meshes of two workers. A mesh speaks to one Transport and knows
// nothing of sockets: real ones have ZeroMQ below (zmq_transport.h), the simulator a network of its
// own (tools/sim/network.h).
//
// A link goes one way: it is opened by the worker that sends over it. A frame arrives whole, once,
// and in the order of its link, or not at all. Frames are lost with their link, which both ends
// learn, sooner or later; or, rarely, while it stands, by damage that the network does not notice.
// Links of the same worker are in no order among each other.
//
// Whoever listens reads nothing of a link before it has admitted it: a link that knocks shows a
// name and a proof, or a key (Knock), and waits for an answer. The name that the answer gives
// (visitor) comes with each of the link's frames.
//
// No call blocks. All calls are made by one thread, which goes on to call TakeKnock and Receive,
// and Look of its links: a transport may do its work there. README.md says what a new transport
// costs; all pass tests/worker/transport_test.cc.
#ifndef PRD_WORKER_TRANSPORT_TRANSPORT_H_
#define PRD_WORKER_TRANSPORT_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/memory/shared_bytes.h"
#include "worker/mesh/keys.h"

namespace prd {

// A link to another worker, at the end that sends. The link ends with this object. What it had
// taken by then is sent for two seconds more, but for a link that is broken or carries signals.
class Link {
 public:
  virtual ~Link() = default;

  enum class Sent : std::uint8_t { kTaken, kFull, kBroken };
  // Sends a frame of two parts, whose payload nobody changes any more. kFull: not now; the link
  // takes some frames (Transport::kFrames) on their way. Nothing is taken before it is known that
  // the other end may have it. kBroken: the link is broken; a send may find that before Look does.
  virtual Sent Send(std::span<const std::byte> first, const SharedBytes& payload) = 0;

  struct State {
    bool stands = false;   // the other end has admitted it
    bool broken = false;   // for ever
    bool refused = false;  // so it is broken: the other end did not admit it
  };
  virtual State Look() = 0;

  // Whether all that it has taken has come to the other end's host, as far as is known here.
  virtual bool Delivered() = 0;
};

// A link that its owner waits for: to break; and `room`, to take a frame.
struct Watched {
  Link* link = nullptr;
  bool room = false;
};

struct Opening {
  std::string endpoint;
  Purpose purpose = Purpose::kData;
  // What is shown at the door: a name and its proof; or, with a server's key, this worker's pair.
  std::string name;
  std::string proof;
  std::optional<MeshKey> server;
  const MeshKeyPair* own = nullptr;
  // The link is broken if it cannot be made, is not admitted, or what it sent is not acknowledged
  // by the other host within these times. 0: the transport's own.
  DurationNs connects = 0;
  DurationNs admits = 0;
  DurationNs delivers = 0;
};

class Transport {
 public:
  // Frames on their way, of a link for data: with as many at the receiver both ends stay busy. Of a
  // link for signals: a peer of an exchange may have 256 requests.
  static constexpr int kFrames = 8;
  static constexpr int kSignals = 512;
  // Frames of a link of others that may be there and not be read yet: some that wait, one that
  // comes and one that is being read.
  static constexpr std::uint64_t kUnreadFrames = 11;

  virtual ~Transport() = default;

  // Where others reach this one: "ipc://..", by processes of this user on this host alone;
  // "tcp://..".
  virtual const std::vector<std::string>& endpoints() const = 0;

  // kUnavailable: there cannot be a link (the system has no more sockets). One that does not come
  // about is broken later.
  virtual Result<std::unique_ptr<Link>> Open(const Opening& opening) = 0;

  // ---- links of others ----

  // From now on links show keys, or else names; `own` is this worker's pair. Links of the other
  // kind end.
  virtual void ShowKeys(bool keys, const MeshKeyPair& own) = 0;

  struct Knock {
    std::uint64_t id = 0;
    std::string address;  // of the other end, for people
    bool local = false;   // over ipc
    bool key = false;     // it shows a key
    std::vector<std::string> shown;
  };
  // The next one, once.
  virtual std::optional<Knock> TakeKnock() = 0;
  // Answers it: its frames are this visitor's, from 1; or nullopt: it is refused. Of a link that is
  // gone it means nothing.
  virtual void Answer(std::uint64_t knock, std::optional<std::uint64_t> visitor) = 0;

  struct Arrival {
    std::uint64_t visitor = 0;         // as in Answer; 0: of nobody
    std::span<const std::byte> first;  // until the next Receive
    SharedBytes payload;
    bool whole = false;  // it has two parts
  };
  // False: there is nothing now.
  virtual bool Receive(Arrival* arrival) = 0;
  // The frame that came last is from this member, as all of its link will be. 0: from nobody that
  // counts; its link ends. To be called after each Receive that was true.
  virtual void Attribute(Incarnation member) = 0;
  // All links that are from this member end.
  virtual void End(Incarnation member) = 0;
  // How many links that have brought no frame yet there may be, and how many bytes on all of them
  // that nobody has read.
  virtual void Allow(std::size_t silent, std::uint64_t unread) = 0;

  struct Counters {
    std::size_t open = 0;       // links of others
    std::uint64_t refused = 0;  // that were too many, in all or from one address
    std::uint64_t cut = 0;      // that brought too much without a whole frame
  };
  virtual Counters counters() const = 0;
};

}  // namespace prd

#endif  // PRD_WORKER_TRANSPORT_TRANSPORT_H_
