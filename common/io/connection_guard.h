// Bounds what the connections to a listening ZeroMQ socket cost, whoever made them.
//
// ZeroMQ bounds the size of a part alone. It bounds neither the parts of a message nor how often a
// peer connects. It would bound the messages that wait to be read (ZMQ_RCVHWM), but libzmq 4.3.4
// may abort the process where it does (server/README.md, "What ends no daemon"). The guard learns
// of every connection from the socket's monitor, in a thread of its own, and ends:
//
// - connections over a number, in all and per peer (address of the host, or user of a local socket;
//   this process's own user may do as it likes). The oldest of them that has not brought a message
//   yet goes first, so idle connections do not keep out who has something to say;
// - connections that have brought no message, over a number in all: the oldest of the peer that has
//   most of them goes;
// - connections over the number of a group, which whoever reads their messages tells (Delivered).
//   These end within two seconds, so that the other side can be told why;
// - connections of a group that whoever reads their messages wants ended (End);
// - a connection of which ZeroMQ has taken too many bytes since its last whole message, or too many
//   that are not read yet. The kernel counts what was taken, over TCP and over local sockets, so
//   nothing depends on the peer. The guard looks often, and at once when the process grows. Bytes
//   of this process's own user over a local socket are not counted.
//
// TCP connections that come too fast are not accepted (arrival_limit.h).
//
// It also tells whose handshake was refused (Options::denied), and when a connection has ended that
// somebody claims (Claim). What it is made of:
// socket_monitor.h, connection_facts.h, connection_claims.h, peer_connections.h, process_growth.h.
//
// Delivered, Claim, TakeEnded, End, Drained and Allow may be called in any thread, the rest in the
// socket's.
#ifndef PRD_COMMON_IO_CONNECTION_GUARD_H_
#define PRD_COMMON_IO_CONNECTION_GUARD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "common/base/time.h"
#include "common/io/arrival_limit.h"
#include "common/io/connection_claims.h"
#include "common/io/connection_facts.h"
#include "common/io/peer_connections.h"
#include "common/io/process_growth.h"
#include "common/io/socket_monitor.h"
#include "prd/status.h"

namespace prd {

class ConnectionGuard {
 public:
  struct Options {  // 0: no bound
    std::size_t max_connections = 0;
    std::size_t max_per_peer = 0;
    std::size_t max_new_per_s = 0;        // of TCP, on average (ArrivalLimit)
    std::size_t max_silent = 0;           // that have brought nothing; not of this process's user
                                          // (Allow)
    std::uint64_t max_unread = 0;         // bytes taken from a connection since its last message
    std::uint64_t max_unread_silent = 0;  // the same, of one that has brought none
    std::uint64_t max_unread_silent_in_all = 0;  // the same, of all that have brought none
    std::uint64_t max_unread_in_all = 0;         // the same, of all connections (Allow)
    std::uint64_t max_backlog = 0;               // bytes taken from a connection, and not read yet
    DurationNs pace = 10 * kMillisecond;         // between two looks at whether the process grows
    // Hears, in the guard's thread, of each connection whose handshake ZeroMQ refused: where from
    // (TextOf), and why (ZMQ_PROTOCOL_ERROR_*).
    std::function<void(const std::string& from, int why)> denied;
  };
  struct Counters {
    std::uint64_t refused = 0;  // connections over a number, and those that ZeroMQ refused
    std::uint64_t cut = 0;      // connections that brought too many bytes
    std::uint64_t denied = 0;   // connections whose handshake ZeroMQ refused
    std::uint64_t rushes = 0;   // times that TCP connections came too fast
    std::size_t open = 0;
  };

  // Call before the socket is bound. Both must outlive the guard.
  static Result<std::unique_ptr<ConnectionGuard>> Make(zmq::context_t& context,
                                                       zmq::socket_ref socket,
                                                       const Options& options);
  ~ConnectionGuard();

  // Bytes of a part of a message on the wire (ZMTP 3), also under CURVE.
  static std::uint64_t OnWire(std::size_t part, bool curve) {
    return part + (part > 255 ? 9 : 2) + (curve ? 33 : 0);
  }
  // This was a part of a whole message that the socket gave. With it so many bytes (OnWire) of its
  // connection were read since the last call. One that makes no `sense` bounds the connection's
  // bytes anew, but it has said nothing by it. The connection is of this group, which may have
  // `most`; 0: no bound. False: this one is over that.
  bool Delivered(const zmq::message_t& part, std::uint64_t bytes, bool sense = true,
                 std::string_view group = {}, std::size_t most = 0);
  // This message's connection has this number from now on, above 0, which no other has; one that
  // it had is void. The end of the connection is told by that number, once, however late the
  // message was read: descriptors that ZeroMQ uses again are told apart by the kernel's number.
  void Claim(const zmq::message_t& part, std::uint64_t claim);
  // Numbers of connections that have ended since the last call. When there are some, the descriptor
  // ended() is readable.
  std::vector<std::uint64_t> TakeEnded();
  int ended() const { return claims_.descriptor(); }
  // Ends all connections of this group. A message may be read when its connection has ended and
  // another has its descriptor: a connection that only such messages may have put into the group
  // ends ten seconds later, unless its own say otherwise.
  void End(std::string_view group);
  // Ascends. A connection's messages after the first need to be told of no more than once for each
  // of these numbers.
  std::uint64_t looks() const { return looks_; }
  // The socket has no more whole messages.
  void Drained() {
    orphaned_ = 0;
    drained_ = true;
    ++drains_;
  }
  // From now on these are max_silent and max_unread_in_all.
  void Allow(std::size_t max_silent, std::uint64_t max_unread_in_all) {
    max_silent_ = max_silent;
    in_all_ = max_unread_in_all;
  }

  Counters counters() const;

 private:
  struct Connection {
    std::uint64_t cookie = 0;  // the kernel's number of it, never used twice
    std::uint64_t serial = 0;  // ascends with age
    std::string peer;          // empty: this process's own user
    std::string group;         // empty: none that counts
    std::uint64_t claim = 0;   // 0: none
    bool tcp = false;
    bool counted = false;       // its bytes are
    bool silent = true;         // has not brought a message
    bool delivered = false;     // has brought one since the last look
    bool ended = false;         // by the guard; waits for ZeroMQ to close it
    bool surplus = false;       // over the number of its group
    bool own = false;           // its group is what its own messages say
    bool doomed = false;        // its group was ended, and may not have been its own
    std::uint64_t drains = 0;   // when the monitor told of it
    std::uint64_t taken = 0;    // bytes that ZeroMQ took before the kernel's count began anew
    std::uint64_t read = 0;     // taken at the last message
    std::uint64_t unread = 0;   // taken since
    std::uint64_t given = 0;    // of whole messages that the socket gave
    std::uint64_t backlog = 0;  // of those that it has yet to give
  };
  // A connection that has brought a message, and that the monitor has not told of yet.
  struct Early {
    std::int64_t since = 0;
    std::string group;
    bool surplus = false;
    bool doomed = false;
  };
  struct Condemned {
    int fd = -1;
    std::uint64_t cookie = 0;
    std::int64_t at = 0;
    bool surplus = false;  // else: doomed
  };
  struct Sample {
    int fd = -1;
    bool tcp = false;
    bool counted = false;
    std::uint64_t taken = 0;
  };

  explicit ConnectionGuard(const Options& options);
  void Run();
  bool OnEvent(const SocketMonitor::Event& event);
  void OnAccepted(int fd);
  void LimitArrivals(const std::string* source);
  void OnClosed(int fd);
  void OnDenied(int fd, int why);
  void Uncount(const Connection& connection);
  bool EnterGroup(std::string_view group, std::size_t most);
  void LeaveGroup(std::string_view group);
  void End(int fd, Connection* connection);
  bool Counts() const;
  void Look();
  std::vector<Sample> TakeSamples() const;
  void Measure(const std::vector<Sample>& samples, bool drained);
  void Cut();
  void EndCondemned();
  void Doom(int fd, Connection* connection);

  const Options options_;
  SocketMonitor monitor_;
  ProcessGrowth growth_;
  ArrivalLimit arrivals_;
  std::int64_t look_at_ = 0;
  std::optional<int> refused_;  // a handshake was, why, and the next end of a connection is its
  bool trim_ = false;           // give memory back at the next look

  mutable std::mutex mutex_;  // guards what follows
  ConnectionBreaker breaker_;
  ConnectionClaims claims_;                // on those that are claimed and not known
  PeerConnections peers_;                  // those that are not ended
  std::map<int, Connection> connections_;  // by descriptor
  std::map<int, Early> early_;             // by descriptor
  std::map<std::string, std::size_t, std::less<>> groups_;  // connections that count, by group
  std::vector<Condemned> condemned_;
  std::uint64_t next_serial_ = 0;
  Counters counters_;

  // Bytes that ended connections have left, maybe as whole messages that nobody has read yet.
  std::atomic<std::uint64_t> orphaned_ = 0;
  std::atomic<std::size_t> max_silent_ = 0;
  std::atomic<std::uint64_t> in_all_ = 0;
  std::atomic<std::uint64_t> looks_ = 0;
  std::atomic<bool> drained_ = false;  // since the last look
  std::atomic<std::uint64_t> drains_ = 0;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;  // the last: it uses the others
};

}  // namespace prd

#endif  // PRD_COMMON_IO_CONNECTION_GUARD_H_
