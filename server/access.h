// Who may do what: the identities of the config, by what is known of a connection's other end.
//
// libzmq's security handler (zap.h) names the other end once, as the connection is made: by its
// CURVE key, by its user where it comes over ipc without keys, or not at all. Every message of the
// connection carries that name. What it may do is looked up for each message, so that a reload
// counts for the connections that there are.
#ifndef PRD_SERVER_ACCESS_H_
#define PRD_SERVER_ACCESS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>
#include <zmq.hpp>

#include "config/config.h"
#include "prd/status.h"

namespace prd {

// The other end of a connection. The views are valid as long as the message that they are of.
struct Peer {
  std::string_view who;      // "key:KEY", "uid:NUMBER", or "tcp": over tcp and without keys
  std::string_view address;  // "10.1.2.3"; over ipc "localhost:UID:GID:PID"
};
Peer PeerOf(zmq::message_t& message);
std::string_view WhoSent(zmq::message_t& message);  // Peer::who alone

// The name of a connection's other end, from a request to the security handler (ZeroMQ RFC 27).
// Empty: it has none that counts.
std::string NameOf(std::string_view mechanism, std::string_view credentials,
                   std::string_view address);

struct Rights {
  std::string name;  // of the identity; empty: of the user that prd runs as, or tcp without keys
  std::vector<std::string> jobs = {"*"};  // patterns
  bool trains = true;
  bool operates = true;
  std::int64_t max_jobs = 0;  // these four as in Identity
  std::int64_t max_workers = 0;
  std::int64_t max_connections = 0;
  std::int64_t max_messages_per_s = 0;
  bool Covers(const std::string& job) const;
};

// For messages: "identity alice", or "user 1000" where there is no identity.
std::string Called(const Rights* rights, std::string_view who);

class Access {
 public:
  // Reads the list of authorized keys, and looks up the users. A config with identities is refused
  // while others may write its file. Errors name what is wrong.
  static Result<Access> Load(const Config& config);
  Access(Access&&) = default;
  Access& operator=(Access&&) = default;

  // nullptr: nobody who may do anything.
  const Rights* Find(std::string_view who) const;

  // Of this name; nullptr: there is none (any more).
  const Rights* Named(std::string_view name) const;

  // Changes with every Load: rights of another number are not those that are in force.
  std::uint64_t number() const { return number_; }

  // Users other than prd's own may connect over ipc, so that their number decides and not the
  // socket file.
  bool knows_users() const { return knows_users_; }

 private:
  Access() = default;

  std::deque<Rights> rights_;  // these keep their places
  std::map<std::string, const Rights*, std::less<>> by_who_;
  const Rights* every_user_ = nullptr;
  bool knows_users_ = false;
  std::uint64_t number_ = 0;
};

}  // namespace prd

#endif  // PRD_SERVER_ACCESS_H_
