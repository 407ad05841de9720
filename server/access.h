// Rights: the identities of the config, by what is known of a connection's other end.
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
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "config/config.h"
#include "prd/status.h"
#include "server/listener.h"

namespace prd {

// The other end of a connection. The views are valid as long as the message that they are of.
struct Peer {
  // "key:KEY", "uid:NUMBER", or "tcp": over tcp and without keys. Empty: its handshake failed.
  std::string_view who;
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
  std::int64_t max_jobs = 0;  // these six as in Identity
  std::int64_t max_workers = 0;
  std::int64_t max_connections = 0;
  std::int64_t max_messages_per_s = 0;
  std::int64_t max_read_bytes_per_s = 0;
  std::int64_t max_runs_per_minute = 0;
  bool Covers(const std::string& job) const;
};

// For messages: "identity alice", or "user 1000" where there is no identity.
std::string Called(const Rights* rights, std::string_view who);

// A copy shares what it was loaded with. Thread safe while nobody assigns to it.
class Access {
 public:
  // Nobody may do anything.
  Access() : tables_(std::make_shared<Tables>()) {}
  // Reads the list of authorized keys, and looks up the users. A config with identities is refused
  // while others may write its file. Errors name what is wrong.
  static Result<Access> Load(const Config& config);

  // nullptr: nobody who may do anything. Valid as long as this or a copy is as it is.
  const Rights* Find(std::string_view who) const;

  // The identity of this name; nullptr: there is none (any more).
  const Rights* Named(std::string_view name) const;

  // Changes with every Load: rights of another number are not those that are in force.
  std::uint64_t number() const { return tables_->number; }

  // Users of this host whom an identity names, so that they may connect over ipc.
  const LocalUsers& local_users() const { return tables_->local_users; }

 private:
  struct Tables {
    std::deque<Rights> rights;  // these keep their places
    std::map<std::string, const Rights*, std::less<>> by_who;
    const Rights* every_user = nullptr;
    LocalUsers local_users = std::set<std::uint32_t>();
    std::uint64_t number = 0;
  };
  explicit Access(std::shared_ptr<const Tables> tables) : tables_(std::move(tables)) {}

  std::shared_ptr<const Tables> tables_;
};

}  // namespace prd

#endif  // PRD_SERVER_ACCESS_H_
