#include "common/io/connection_guard.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "common/io/clock.h"
#include "common/io/heap.h"

namespace prd {
namespace {

constexpr DurationNs kLookAnyway = 500 * kMillisecond;
// Before a connection over its group's number ends.
constexpr DurationNs kHearsWhy = 500 * kMillisecond;
// Before a connection ends whose group was ended, where its own messages have yet to say that it is
// of that group.
constexpr DurationNs kHasItsSay = 10 * kSecond;
// A connection's messages may be read after its end, when another connection has its descriptor
// already. Once the socket was drained there are none left: ZeroMQ hands on what a connection has
// brought before it closes the descriptor. Twice: the first time may have begun before that.
constexpr std::uint64_t kDrains = 2;
constexpr long kIdleMs = 1000;
// Between a connection's first message and the event that tells of the connection, at most.
constexpr DurationNs kEarly = kSecond;
constexpr long kGrowth = 4 << 20;  // of the process, in bytes, after which the guard looks at once

int DescriptorOf(const zmq::message_t& part) {
  return ::zmq_msg_get(const_cast<zmq::message_t&>(part).handle(), ZMQ_SRCFD);
}

}  // namespace

ConnectionGuard::ConnectionGuard(const Options& options)
    : options_(options),
      growth_(kGrowth),
      arrivals_(options.max_new_per_s),
      max_silent_(options.max_silent),
      in_all_(options.max_unread_in_all) {}

Result<std::unique_ptr<ConnectionGuard>> ConnectionGuard::Make(zmq::context_t& context,
                                                               zmq::socket_ref socket,
                                                               const Options& options) {
  std::unique_ptr<ConnectionGuard> guard(new ConnectionGuard(options));
  if (Status status = guard->breaker_.Open(); !status.ok()) return status;
  if (Status status = guard->claims_.Open(); !status.ok()) return status;
  if (Status status = guard->monitor_.Start(context, socket); !status.ok()) return status;
  guard->thread_ = std::thread([raw = guard.get()] { raw->Run(); });
  return guard;
}

ConnectionGuard::~ConnectionGuard() {
  stopping_ = true;
  monitor_.Stop();  // its last event wakes the thread
  if (thread_.joinable()) thread_.join();
}

bool ConnectionGuard::Delivered(const zmq::message_t& part, std::uint64_t bytes, bool sense,
                                std::string_view group, std::size_t most) {
  const int fd = DescriptorOf(part);
  const std::lock_guard lock(mutex_);
  const auto it = connections_.find(fd);
  if (it == connections_.end()) {
    orphaned_ -= std::min<std::uint64_t>(bytes, orphaned_);
    if (!sense) return true;
    Early& early = early_[fd];
    early.since = MonotonicNs();
    if (early.surplus || early.group == group) return !early.surplus;
    LeaveGroup(std::exchange(early.group, {}));
    early.surplus = !EnterGroup(group, most);
    if (!early.surplus) early.group = group;
    return !early.surplus;
  }
  Connection& connection = it->second;
  connection.delivered = true;
  connection.given += bytes;
  if (!sense || connection.ended) return !connection.surplus;
  if (std::exchange(connection.silent, false)) peers_.Spoke(connection.peer, connection.serial);
  if (drains_ - connection.drains >= kDrains) {
    connection.own = true;
    connection.doomed = false;
  }
  if (connection.surplus || connection.group == group) return !connection.surplus;
  LeaveGroup(std::exchange(connection.group, {}));
  connection.surplus = !EnterGroup(group, most);
  if (connection.surplus) {
    condemned_.push_back(
        {.fd = fd, .cookie = connection.cookie, .at = MonotonicNs() + kHearsWhy, .surplus = true});
  } else {
    connection.group = group;
  }
  return !connection.surplus;
}

void ConnectionGuard::Claim(const zmq::message_t& part, std::uint64_t claim) {
  const int fd = DescriptorOf(part);
  const std::lock_guard lock(mutex_);
  // Should another connection have this descriptor by now, the claim goes to that: it ends with it,
  // or is void once that one is claimed. The message's own connection has ended in any case.
  const std::optional<std::uint64_t> cookie = CookieOf(fd);
  if (!cookie) return claims_.End(claim);
  const auto it = connections_.find(fd);
  if (it != connections_.end() && it->second.cookie == *cookie) {
    it->second.claim = claim;
  } else {
    claims_.Keep(MonotonicNs(), fd, *cookie, claim);
  }
}

std::vector<std::uint64_t> ConnectionGuard::TakeEnded() {
  const std::lock_guard lock(mutex_);
  return claims_.TakeEnded();
}

// False: it is full.
bool ConnectionGuard::EnterGroup(std::string_view group, std::size_t most) {
  if (group.empty()) return true;
  const auto known = groups_.try_emplace(std::string(group), 0).first;
  if (most > 0 && known->second >= most) return false;
  ++known->second;
  return true;
}

void ConnectionGuard::LeaveGroup(std::string_view group) {
  const auto known = groups_.find(group);
  if (known != groups_.end() && --known->second == 0) groups_.erase(known);
}

void ConnectionGuard::End(std::string_view group) {
  const std::lock_guard lock(mutex_);
  if (!groups_.contains(group)) return;
  for (auto& [fd, connection] : connections_) {
    if (connection.ended || connection.group != group) continue;
    if (connection.own) {
      End(fd, &connection);
    } else {
      LeaveGroup(std::exchange(connection.group, {}));
      Doom(fd, &connection);
    }
  }
  for (auto& [fd, early] : early_) {
    if (early.group != group) continue;
    LeaveGroup(std::exchange(early.group, {}));
    early.doomed = true;
  }
}

// Its group was ended, but what said so may have been read after its own connection had ended.
void ConnectionGuard::Doom(int fd, Connection* connection) {
  if (std::exchange(connection->doomed, true)) return;  // however many messages say so
  condemned_.push_back(
      {.fd = fd, .cookie = connection->cookie, .at = MonotonicNs() + kHasItsSay, .surplus = false});
}

ConnectionGuard::Counters ConnectionGuard::counters() const {
  const std::lock_guard lock(mutex_);
  Counters counters = counters_;
  counters.open = peers_.open();
  return counters;
}

// ---- the thread ----

void ConnectionGuard::Run() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals are for the program's threads
  try {
    while (!stopping_) {
      const bool idle = !arrivals_.dropping() && !Counts();
      monitor_.Wait(idle ? kIdleMs : static_cast<long>(options_.pace / kMillisecond));
      while (const std::optional<SocketMonitor::Event> event = monitor_.Next()) {
        if (!OnEvent(*event)) return;
      }
      LimitArrivals(nullptr);
      if (MonotonicNs() >= look_at_ || growth_.Grown()) Look();
    }
  } catch (const zmq::error_t&) {  // the context ends
  }
}

// Whether there is a connection whose bytes are counted, or one that is claimed and not known.
bool ConnectionGuard::Counts() const {
  const std::lock_guard lock(mutex_);
  return claims_.keeps() || std::any_of(connections_.begin(), connections_.end(),
                                        [](const auto& entry) { return entry.second.counted; });
}

// False: it was the last one.
bool ConnectionGuard::OnEvent(const SocketMonitor::Event& event) {
  const int kind = event.kind;
  if (kind == ZMQ_EVENT_LISTENING) arrivals_.Watch(event.value);
  if (kind == ZMQ_EVENT_ACCEPTED) OnAccepted(event.value);
  if (kind == ZMQ_EVENT_ACCEPT_FAILED) {  // ZMQ_IPC_FILTER_UID, above all
    const std::lock_guard lock(mutex_);
    ++counters_.refused;
  }
  if (kind == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) refused_ = event.value;
  // ZeroMQ's one I/O thread tells both in a row.
  if (kind == ZMQ_EVENT_DISCONNECTED && refused_) {
    OnDenied(event.value, *std::exchange(refused_, std::nullopt));
  }
  if (kind == ZMQ_EVENT_CLOSED || kind == ZMQ_EVENT_DISCONNECTED) OnClosed(event.value);
  return kind != ZMQ_EVENT_MONITOR_STOPPED;
}

void ConnectionGuard::OnAccepted(int fd) {
  OnClosed(fd);  // ZeroMQ closes some without an event
  ConnectionPeer peer = PeerOf(fd);
  if (peer.tcp || peer.gone) LimitArrivals(&peer.name);
  const std::lock_guard lock(mutex_);
  Early early;
  if (const auto found = early_.find(fd); found != early_.end()) {
    early = std::move(found->second);
    early_.erase(found);
  }
  const bool spoke = early.since > 0;
  const std::optional<std::uint64_t> cookie = CookieOf(fd);
  const std::uint64_t claim = claims_.Take(fd, cookie);
  if (!cookie) return LeaveGroup(early.group);  // closed already
  Connection& connection = connections_[fd];
  connection.cookie = *cookie;
  connection.claim = claim;
  connection.serial = ++next_serial_;
  connection.drains = drains_;
  connection.peer = std::move(peer.name);
  connection.tcp = peer.tcp;
  connection.counted = peer.tcp || (!connection.peer.empty() && CountFromHere(fd));
  peers_.Open(connection.peer, connection.serial, fd);
  if (spoke) {
    connection.silent = false;
    connection.delivered = true;
    peers_.Spoke(connection.peer, connection.serial);
    connection.group = std::move(early.group);
    connection.surplus = early.surplus;
    if (early.surplus) {
      condemned_.push_back(
          {.fd = fd, .cookie = *cookie, .at = early.since + kHearsWhy, .surplus = true});
    }
    if (early.doomed) Doom(fd, &connection);
  }
  const auto end = [this](int victim) {
    ++counters_.refused;
    End(victim, &connections_.at(victim));
  };
  const std::string& name = connection.peer;
  if (in_all_ > 0 && orphaned_ > in_all_) {
    end(fd);
  } else if (options_.max_per_peer > 0 && !name.empty() &&
             peers_.OpenOf(name) > options_.max_per_peer) {
    end(peers_.OldestOf(name).value_or(fd));
  } else if (options_.max_connections > 0 && peers_.open() > options_.max_connections) {
    end(peers_.Oldest().value_or(fd));
  } else if (max_silent_ > 0 && peers_.others_silent() > max_silent_) {
    end(*peers_.OldestOfMost());
  }
}

// After a connection of this source was accepted, or null.
void ConnectionGuard::LimitArrivals(const std::string* source) {
  const bool before = arrivals_.dropping();
  if (source != nullptr) {
    arrivals_.Arrived(MonotonicNs(), *source);
  } else {
    arrivals_.Tick(MonotonicNs());
  }
  if (before || !arrivals_.dropping()) return;
  const std::lock_guard lock(mutex_);
  ++counters_.rushes;
}

void ConnectionGuard::OnClosed(int fd) {
  const std::lock_guard lock(mutex_);
  const auto it = connections_.find(fd);
  if (it == connections_.end()) return;
  orphaned_ += std::max(it->second.unread, it->second.backlog);
  if (!it->second.ended) Uncount(it->second);
  if (const std::uint64_t claim = it->second.claim; claim > 0) {
    // The event may be older than the connection that has this descriptor now.
    const std::uint64_t cookie = it->second.cookie;
    if (CookieOf(fd) != cookie || HungUp(fd)) {
      claims_.End(claim);
    } else {
      claims_.Keep(MonotonicNs(), fd, cookie, claim);
      look_at_ = std::min(look_at_, MonotonicNs() + options_.pace);
    }
  }
  connections_.erase(it);
}

void ConnectionGuard::OnDenied(int fd, int why) {
  std::string from = "unknown";
  {
    const std::lock_guard lock(mutex_);
    ++counters_.denied;
    if (const auto it = connections_.find(fd); it != connections_.end()) {
      from = TextOf({.name = it->second.peer, .tcp = it->second.tcp});
    }
  }
  if (options_.denied) options_.denied(from, why);
}

void ConnectionGuard::Uncount(const Connection& connection) {
  peers_.Close(connection.peer, connection.serial);
  LeaveGroup(connection.group);
}

void ConnectionGuard::End(int fd, Connection* connection) {
  breaker_.Break(fd, connection->cookie, connection->tcp);
  connection->ended = true;
  Uncount(*connection);
}

void ConnectionGuard::EndCondemned() {
  const std::lock_guard lock(mutex_);
  std::erase_if(condemned_, [this, now = MonotonicNs()](const Condemned& condemned) {
    if (now < condemned.at) return false;
    const auto it = connections_.find(condemned.fd);
    if (it == connections_.end() || it->second.cookie != condemned.cookie) return true;
    const Connection& connection = it->second;
    if (connection.ended || !(condemned.surplus || connection.doomed)) return true;
    if (condemned.surplus) ++counters_.refused;
    End(it->first, &it->second);
    return true;
  });
}

void ConnectionGuard::Look() {
  look_at_ = MonotonicNs() + kLookAnyway;
  EndCondemned();
  if (std::exchange(trim_, false)) TrimHeap();
  std::vector<Sample> samples = TakeSamples();
  const bool drained = drained_.exchange(false);
  for (Sample& sample : samples) {
    if (!sample.counted) continue;
    sample.taken = sample.tcp ? TakenFromTcp(sample.fd).value_or(0) : TakenFromLocal(sample.fd);
  }

  const std::lock_guard lock(mutex_);
  std::erase_if(early_, [this](const auto& entry) {
    const Early& early = entry.second;
    const bool over = MonotonicNs() - early.since > kEarly;
    if (over) LeaveGroup(early.group);
    return over;
  });
  claims_.Expire(MonotonicNs());
  Measure(samples, drained);
  ++looks_;
  Cut();
  if (trim_) look_at_ = MonotonicNs() + options_.pace;
}

std::vector<ConnectionGuard::Sample> ConnectionGuard::TakeSamples() const {
  const std::lock_guard lock(mutex_);
  std::vector<Sample> samples;
  for (const auto& [fd, connection] : connections_) {
    if (connection.ended) continue;
    samples.push_back({.fd = fd, .tcp = connection.tcp, .counted = connection.counted});
  }
  return samples;
}

// What connections have brought, of which there are these samples. `drained`: all messages have
// been read meanwhile.
void ConnectionGuard::Measure(const std::vector<Sample>& samples, bool drained) {
  for (const Sample& sample : samples) {
    const auto it = connections_.find(sample.fd);
    if (it == connections_.end() || it->second.ended) continue;
    Connection& connection = it->second;
    if (CookieOf(sample.fd) != connection.cookie) {  // closed without an event
      Uncount(connection);
      if (connection.claim > 0) claims_.End(connection.claim);
      connections_.erase(it);
      continue;
    }
    if (!connection.counted) continue;
    const std::uint64_t taken = connection.taken + sample.taken;
    if (!sample.tcp && sample.taken > kMaxLocalCount / 2 && CountFromHere(sample.fd)) {
      connection.taken = taken;
    }
    if (std::exchange(connection.delivered, false)) connection.read = taken;
    connection.unread = taken - std::min(taken, connection.read);
    // What was taken besides messages (signs of life) and what was read of a closed connection with
    // this number makes the two differ. They begin anew whenever all has been read.
    if (drained || connection.given > taken) connection.given = taken;
    if (options_.max_backlog > 0) connection.backlog = taken - connection.given;
  }
}

// Ends connections that have brought too much. Those that have too much together are cut until they
// have half as much.
void ConnectionGuard::Cut() {
  std::uint64_t unread = 0;
  std::uint64_t silent_unread = 0;
  std::vector<std::pair<std::uint64_t, int>> most;
  for (const auto& [fd, connection] : connections_) {
    if (connection.ended || !connection.counted) continue;
    unread += connection.unread;
    if (connection.silent) silent_unread += connection.unread;
    most.emplace_back(connection.unread, fd);
  }
  std::sort(most.rbegin(), most.rend());
  const std::uint64_t in_all = in_all_;
  const std::uint64_t of_silent = options_.max_unread_silent_in_all;
  const bool too_much = in_all > 0 && unread > in_all;
  const bool too_much_silent = of_silent > 0 && silent_unread > of_silent;
  for (const auto& [bytes, fd] : most) {
    Connection& connection = connections_.at(fd);
    const bool silent = connection.silent;
    const bool own_limit = silent && options_.max_unread_silent > 0;
    const std::uint64_t limit = own_limit ? options_.max_unread_silent : options_.max_unread;
    const bool alone = limit > 0 && bytes > limit;
    const bool together = (too_much && unread > in_all / 2) ||
                          (silent && too_much_silent && silent_unread > of_silent / 2);
    const bool behind = connection.backlog > options_.max_backlog;
    if (!alone && !together && !behind) continue;
    ++counters_.cut;
    unread -= bytes;
    if (silent) silent_unread -= bytes;
    trim_ = true;
    End(fd, &connection);
  }
}

}  // namespace prd
