// Connections to other workers' meshes: one PUSH per peer for data, and one for signals, each made
// when it is first needed.
//
// Sending never blocks. Data frames that a connection does not take yet wait in a queue here. Data
// that the peer's host does not acknowledge within the time limit breaks the connection.
//
// When a data connection to another host breaks, another one is made, and what the peer has not
// acknowledged (Acknowledged, arrivals.h) is sent again over it. Connections that follow each other
// in this way are one stream. If no new connection can be made within kReconnect, the connection is
// lost: Service reports it, and its queue is dropped. So it is where connections are made and
// nothing comes there through kVain of them, for the time limit: a path may swallow what is larger
// than a handshake. A connection that has never stood is tried for as long: the peer may be about
// to listen again, as its job asks for (Transport::ShowKeys). One over ipc that has stood is lost
// as soon as it breaks, for the peer's process has ended.
//
// Signals (pings and pongs) may be lost, and do not wait behind data. A broken signal connection is
// made anew by the next signal; attempts are at least kSignalReconnect apart.
//
// Connections are the transport's links. They go to workers that the controller has announced
// (directory.h), open with what their doors ask for (door.h), and seal their frames where the job
// says so (seal.h). Not thread safe.
#ifndef PRD_WORKER_MESH_PEERS_H_
#define PRD_WORKER_MESH_PEERS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/mesh/directory.h"
#include "worker/mesh/frame.h"
#include "worker/mesh/keys.h"
#include "worker/mesh/seal.h"
#include "worker/transport/transport.h"

namespace prd {

class Peers {
 public:
  // Connections kept at most: the one unused for longest makes room.
  static constexpr std::size_t kMaxConnections = 256;
  static constexpr std::size_t kMaxSignalConnections = 128;
  static constexpr DurationNs kSignalReconnect = 100 * kMillisecond;
  // How long attempts to replace a broken data connection go on, and how far they are apart. The
  // time starts anew when a connection breaks that stood for longer than this, or that brought
  // something that was acknowledged, and with the first frame after all were acknowledged.
  static constexpr DurationNs kReconnect = 200 * kMillisecond;
  static constexpr DurationNs kRetry = 10 * kMillisecond;
  static constexpr int kVain = 2;
  // A replacement that the peer has not accepted within this time is lost. Under CURVE a peer that
  // no longer knows this worker gives no answer.
  static constexpr DurationNs kHandshake = 500 * kMillisecond;
  // At most this much of a stream is kept to be sent again. While more is unacknowledged, a break
  // loses the connection.
  static constexpr std::size_t kMaxUnacknowledged = 16 << 20;
  // Frames that are remembered to be on their way (Sent).
  static constexpr std::size_t kMaxSent = 256;

  // `host` as in Hello: equal hosts are reached by ipc. The pointers outlive it.
  Peers(Transport* transport, std::string host, const Directory* directory)
      : transport_(transport), host_(std::move(host)), directory_(directory) {}

  // From now on connections are of the directory's run, and protected so. Closes all.
  void Join(MeshSecurity security);
  // Connections to where this member is are its own from now on. Returns that endpoint if it was
  // another incarnation's: its connections are to be given up.
  std::optional<std::string> Introduce(const GroupMember& member);

  // Gives up all connections to this member, and makes none any more. Returns the endpoint where it
  // was.
  std::optional<std::string> Forget(Incarnation member);

  // How long data may be unacknowledged on connections that are made from now on.
  void SetTimeout(DurationNs timeout) { timeout_ = timeout; }

  // Where to reach a member from here. kInvalidArgument: none of its endpoints can be used.
  Result<std::string> EndpointOf(const GroupMember& member) const;

  // Connects if there is no connection yet, and watches it from now on: Service reports its loss.
  // kUnavailable: the system has no more sockets.
  Status Use(const std::string& endpoint);
  // The same. Rest does not stop watching it until every keeper has released it.
  enum class Keeper : std::uint8_t { kExchange = 1, kCommunicators = 2 };
  Status Keep(const std::string& endpoint, Keeper keeper);
  void Release(const std::string& endpoint, Keeper keeper);
  // Stops watching all connections, except those that are kept or have frames to send.
  void Rest();

  // Queues a frame. REQUIRES: Use(endpoint) before, and no loss reported since.
  void Send(const std::string& endpoint, const FrameHeader& header, SharedBytes payload);
  // True when everything given to Send has been handed to the network (or the peer is gone).
  bool Idle(const std::string& endpoint) const;
  // Frames that wait.
  std::size_t Queued(const std::string& endpoint) const;
  // Sends a frame on the peer's signal connection. False: the frame was not sent.
  bool Signal(Instant now, const std::string& endpoint, const FrameHeader& header,
              SharedBytes payload);
  // Drops the queued frames of a group that was given up, for all peers. Not those that have a
  // number: a number that is missing is a frame that is lost.
  void DropQueued(std::uint64_t group);
  // All data frames for this are with the connection to that peer: whatever of them has not come
  // there is on its way as long as the connection stands.
  void Sent(Topic topic, Incarnation to, std::uint64_t number, const std::string& endpoint);
  // Whether they may be on their way to that endpoint.
  bool OnTheirWay(Topic topic, Incarnation to, std::uint64_t number, const std::string& endpoint);
  // Gives up the data connection, which will not be reported: the next use makes a new one. What
  // the connection has taken may still arrive.
  void Drop(const std::string& endpoint);

  // What came from this peer over this connection (a Door's name for it, which ascend) may not be
  // all that it has sent there. So it is to be asked to send again: soon, and from time to time
  // until it does, or answers that there is nothing.
  void SetSpoiled(Instant now, Incarnation peer, std::uint64_t connection);
  // All has come that it had sent before, over this connection or one before it.
  void ClearSpoiled(Incarnation peer, std::uint64_t connection);
  // The answer to the question of this number.
  void NothingLost(Incarnation peer, std::uint64_t question);
  // Whom to ask now, and the numbers of the questions.
  std::vector<std::pair<Incarnation, std::uint64_t>> TakeSpoiled(Instant now);
  // The peer asks for that: the data connection is made anew, as if it had broken, if it has stood
  // for longer than kReconnect.
  void SendAgain(Instant now, const std::string& endpoint);
  // Whether there is anything that the peer at that endpoint has not acknowledged.
  bool Owes(const std::string& endpoint) const;
  // The peer waits for something from here, and asks whether it is to come. If all that was sent
  // has come to the peer's host, and it has acknowledged nothing by a later question (a second
  // later at least), what it waits for may have come there as something else, and is sent again.
  void Asked(Instant now, const std::string& endpoint);

  // The peer has got all frames of the stream up to this number.
  void Acknowledged(const std::string& endpoint, std::uint64_t stream, std::uint64_t number);

  // Sends as much as connections take. Returns the endpoints that are lost, and drops them.
  std::vector<std::string> Service(Instant now);
  // Closes signal connections that were not used for long.
  void CloseUnused(Instant now);
  // The time of the next CloseUnused or Service that has something to do.
  std::optional<Instant> NextDeadline() const;

  // The connections to wait for: whether they break, and have room for what waits for it.
  void AppendWatched(std::vector<Watched>* watched) const;

  std::size_t connections() const { return peers_.size(); }
  std::size_t signal_connections() const { return signals_.size(); }
  // Broken data connections that were replaced.
  std::uint64_t resumed() const { return resumed_; }

 private:
  struct Frame {
    FrameHeader header;
    SharedBytes payload;
    bool sealed = false;
    std::vector<std::byte> first = {};  // then: the first part
  };
  static std::size_t BytesOf(const Frame& frame) { return frame.header.length + sizeof(Frame); }
  using Sealer = std::optional<FrameSealer>;  // if the connection Seals
  struct Connection {
    std::unique_ptr<Link> link;
    Sealer sealer;
    std::optional<SealKey> key;  // the sealer's
  };
  struct Peer : Connection {
    bool tcp = false;
    std::deque<Frame> queue;
    bool used = false;
    std::uint8_t kept = 0;  // Keepers
    bool broken = false;    // in use; to be reported
    bool cut = false;       // the link is to be replaced: a send found it broken, or SendAgain
    std::uint64_t last_use = 0;
    std::uint64_t stream = 0;  // the number of its first connection made here, from 1

    // Over tcp.
    std::deque<Frame> unacknowledged;  // handed to the connection, oldest first
    std::size_t unacknowledged_bytes = 0;
    std::uint64_t number = 0;     // of the newest frame
    std::uint64_t forgotten = 0;  // the newest that is neither kept nor acknowledged; 0: none
    bool stood = false;           // the peer has accepted a connection of this stream
    bool refused = false;         // the peer has refused one
    std::optional<Instant> stands_since;  // this connection
    std::optional<Instant> broke_at;
    std::optional<Instant> again_at;    // broken: the next attempt
    std::optional<Instant> asked_at;    // first, since anything was on its way or acknowledged
    std::optional<Instant> owes_since;  // nothing was acknowledged since, though something was sent
    int vain = 0;                       // connections since then that stood, and broke
  };
  struct SentTo {
    Topic topic = Topic::kGroup;
    Incarnation to = 0;
    std::uint64_t number = 0;
    std::uint64_t stream = 0;
  };

  struct SignalConnection : Connection {
    Instant made_at;
    Instant last_use;
  };

  Status Open(Opening opening, Connection* connection);
  Status OpenData(const std::string& endpoint, bool again, Peer* peer);
  static void Seal(Sealer* sealer, Frame* frame);
  Link::Sent HandNext(Peer* peer);
  Result<Peer*> Connect(const std::string& endpoint);
  SignalConnection* ConnectSignals(Instant now, const std::string& endpoint);
  void Flush(Peer* peer);
  bool Broken(Peer* peer);
  bool Lost(const std::string& endpoint, Peer* peer);
  bool MayResume(Peer* peer);
  bool Resume(const std::string& endpoint, Peer* peer);
  void Evict();

  Transport* transport_;
  std::string host_;
  const Directory* directory_;
  MeshSecurity security_ = MeshSecurity::kNone;
  std::map<std::string, Incarnation> at_;  // who is there
  DurationNs timeout_ = 10 * kSecond;
  std::map<std::string, Peer> peers_;
  std::map<std::string, SignalConnection> signals_;
  std::uint64_t uses_ = 0;
  std::uint64_t made_ = 0;
  std::uint64_t resumed_ = 0;
  Instant now_;              // of the last Service
  std::deque<SentTo> sent_;  // the newest kMaxSent
  struct Spoiled {
    Instant ask_at;
    std::uint64_t question = 0;
    std::uint64_t connection = 0;
  };
  std::uint64_t questions_ = 0;
  std::map<Incarnation, Spoiled> spoiled_;
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_PEERS_H_
