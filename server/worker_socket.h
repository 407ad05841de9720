// The ROUTER socket that workers connect to: the controller's messenger, and the source of its
// messages. An incarnation belongs to the first token that it comes with. Its messages are answered
// on its newest connection, whose end is told; messages in its name with another token are dropped
// and move nothing. Not thread safe.
#ifndef PRD_SERVER_WORKER_SOCKET_H_
#define PRD_SERVER_WORKER_SOCKET_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>
#include <zmq.hpp>

#include "common/base/messages.h"
#include "common/io/log.h"
#include "engines/ports.h"
#include "prd/status.h"
#include "server/access.h"
#include "server/gate.h"
#include "server/listener.h"

namespace prd {

class WorkerSocket final : public Messenger {
 public:
  struct Counters {
    std::uint64_t malformed = 0;   // messages that did not decode; answered with Refused
    std::uint64_t foreign = 0;     // messages in the name of another worker
    std::uint64_t forbidden = 0;   // messages that the gate refused
    std::uint64_t unroutable = 0;  // envelopes whose worker is not connected; the link sends again
    std::uint64_t blocked = 0;     // envelopes to a worker that does not read; the link sends again
  };

  explicit WorkerSocket(std::unique_ptr<Listener> listener)
      : listener_(std::move(listener)), socket_(listener_->socket()) {}

  // What one turn of the daemon takes: so many messages, but none after so many of one connection.
  // Whoever sends without pause so makes turns short, which others wait for. Connections whose
  // numbers are alike (modulo kSlots) count as one.
  struct Turn {
    static constexpr std::size_t kMessages = 512;
    static constexpr std::uint8_t kOfOne = 8;
    static constexpr std::size_t kSlots = 1024;
    std::size_t taken = 0;
    bool over = false;
    std::array<std::uint8_t, kSlots> of{};
  };

  // The next well-formed message that waits and that `gate` lets pass; it stands until the next
  // call. Others before it are refused. Its token is a hash of the one that came. Null: none waits,
  // or the turn is over.
  const WorkerEnvelope* Receive(Instant now, Gate* gate, Turn* turn);

  // Tells the senders of the messages that wait, as many as fit a turn, why they have no answer
  // yet: a Hello is refused, to come again after retry_ms. No message counts; all are sent again.
  void PutOff(const Access& access, const std::string& why, std::uint32_t retry_ms);

  // Whether the message that Receive gave is the first over its connection, and the incarnation's
  // from now on.
  bool fresh() const { return fresh_; }
  // Incarnations whose connection has ended since the last call; again those from which something
  // was read over it since then.
  std::vector<Incarnation> TakeEnded();

  // A worker of a run that was restored: the incarnation is taken, by the token with this hash.
  void Know(Incarnation incarnation, const LinkToken& token);
  // What its newest message came over (Peer::who); empty: none has come.
  std::string_view WhoIs(Incarnation incarnation) const;

  void Send(const ControllerEnvelope& envelope) override;

  // Forgets the routes to all other incarnations: those refused, and those that are gone.
  void Prune(const std::unordered_set<Incarnation>& keep);

  Listener& listener() { return *listener_; }
  const Listener& listener() const { return *listener_; }
  const Counters& counters() const { return counters_; }
  std::size_t routes() const { return routes_.size(); }

 private:
  // What was asked of a connection, and counts while the numbers of Access and of the guard are
  // these. Without rights: nothing that counts.
  struct Checked {
    const Rights* rights = nullptr;
    std::uint64_t access_number = 0;
    std::uint64_t looks = 0;
  };
  struct Route {
    std::string connection;                         // a routing id; empty: not connected yet
    std::uint64_t claim = 0;                        // of that connection (ConnectionGuard)
    bool ended = false;                             // that connection
    std::string who = {};                           // its other end
    LinkToken token;                                // hashed
    std::optional<LinkToken> shown = std::nullopt;  // as it came: hashing it again would cost much
    Checked checked;
    std::uint64_t bytes = 0;  // of its messages, of which the guard has not been told
  };

  bool Take(Turn* turn, std::uint64_t* bytes);
  std::uint64_t Untold(Incarnation incarnation);
  bool Delivered(const zmq::message_t& part, std::uint64_t bytes, const Rights* rights);
  std::string_view Sender() const;
  Route* Known(const Gate& gate);
  bool Own(const LinkToken& shown, const Checked& checked);
  void Refuse(const Status& why);
  void SendTo(const std::string& route, const ControllerEnvelope& envelope);

  std::unique_ptr<Listener> listener_;
  zmq::socket_t& socket_;  // its
  std::unordered_map<Incarnation, Route> routes_;
  std::unordered_map<std::uint64_t, Incarnation> claims_;
  std::uint64_t next_claim_ = 1;
  std::vector<Incarnation> late_;  // have said something over a connection that has ended
  bool fresh_ = false;
  Counters counters_;
  LogLimit malformed_log_{10 * kSecond};
  LogLimit foreign_log_{10 * kSecond};
  zmq::message_t route_;  // these four are kept for their memory
  zmq::message_t body_;
  WorkerEnvelope envelope_;
  std::string bytes_;
};

}  // namespace prd

#endif  // PRD_SERVER_WORKER_SOCKET_H_
