#include "common/io/connection_guard.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "common/io/clock.h"
#include "common/io/heap.h"
#include "common/io/system_error.h"

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
constexpr std::string_view kGone = "gone";  // a peer that is not known any more
constexpr long kGrowth = 4 << 20;  // of the process, in bytes, after which the guard looks at once

std::optional<std::uint64_t> CookieOf(int fd) {
  std::uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  if (::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) != 0) return std::nullopt;
  return cookie;
}

// Bytes that were taken from a local socket since its peek offset was set to this. Nobody peeks
// there. The kernel takes from the offset, down to 0, what a read consumes (unix(7), SO_PEEK_OFF).
constexpr int kPeekFrom = 1 << 30;

bool CountFromHere(int fd) {
  return ::setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &kPeekFrom, sizeof kPeekFrom) == 0;
}

std::uint64_t TakenFromLocal(int fd) {
  int offset = kPeekFrom;
  socklen_t size = sizeof offset;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &offset, &size) != 0) return 0;
  return static_cast<std::uint64_t>(kPeekFrom - std::clamp(offset, 0, kPeekFrom));
}

// Bytes that were received on a TCP connection and taken from the kernel.
std::optional<std::uint64_t> TakenFrom(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  if (size < offsetof(tcp_info, tcpi_bytes_received) + sizeof info.tcpi_bytes_received) {
    return std::nullopt;
  }
  int waiting = 0;
  if (::ioctl(fd, FIONREAD, &waiting) != 0) return std::nullopt;
  const auto queued = static_cast<std::uint64_t>(std::max(waiting, 0));
  return info.tcpi_bytes_received - std::min<std::uint64_t>(queued, info.tcpi_bytes_received);
}

// What has come and is not read is dropped, too: shutdown(2) would let a TCP peer send on, and
// ZeroMQ would read it.
void Break(int fd, bool tcp) {
  sockaddr nobody{};
  nobody.sa_family = AF_UNSPEC;
  if (!tcp || ::connect(fd, &nobody, sizeof nobody) != 0) ::shutdown(fd, SHUT_RDWR);
}

// The other side has closed it, or it is broken.
bool HungUp(int fd) {
  pollfd item{.fd = fd, .events = POLLRDHUP, .revents = 0};
  return ::poll(&item, 1, 0) > 0 && (item.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

struct PeerName {
  std::string name;
  bool tcp = false;
};

PeerName PeerOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return {std::string(kGone)};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address).sin_addr;
    return {"4" + std::string(reinterpret_cast<const char*>(&v4), sizeof v4), true};
  }
  if (address.ss_family == AF_INET6) {
    // A host may choose the lower half of its address.
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    const bool mapped = IN6_IS_ADDR_V4MAPPED(&v6);
    const char* bytes = reinterpret_cast<const char*>(&v6);
    return {mapped ? "4" + std::string(bytes + 12, 4) : "6" + std::string(bytes, 8), true};
  }
  ucred user{};
  socklen_t user_size = sizeof user;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &user_size) != 0) return {"unknown"};
  return {user.uid == ::geteuid() ? std::string() : "u" + std::to_string(user.uid)};
}

}  // namespace

ConnectionGuard::ConnectionGuard(zmq::socket_ref socket, const Options& options)
    : socket_(socket),
      options_(options),
      arrivals_(options.max_new_per_s),
      max_silent_(options.max_silent),
      in_all_(options.max_unread_in_all) {}

Result<std::unique_ptr<ConnectionGuard>> ConnectionGuard::Make(zmq::context_t& context,
                                                               zmq::socket_ref socket,
                                                               const Options& options) {
  std::unique_ptr<ConnectionGuard> guard(new ConnectionGuard(socket, options));
  guard->nothing_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  guard->copy_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  guard->memory_ = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (guard->nothing_ < 0 || guard->copy_ < 0) {
    return SystemError(Code::kUnavailable, "/dev/null cannot be opened", errno);
  }
  guard->told_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (guard->told_ < 0) {
    return SystemError(Code::kUnavailable, "no eventfd", errno);
  }
  static std::atomic<std::uint64_t> number{0};
  const std::string name = "inproc://prd-guard-" + std::to_string(++number);
  constexpr int kEvents = ZMQ_EVENT_LISTENING | ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_ACCEPT_FAILED |
                          ZMQ_EVENT_CLOSED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_MONITOR_STOPPED;
  try {
    // First: the destructor waits for a monitor's last event to be read.
    guard->events_ = zmq::socket_t(context, zmq::socket_type::pair);
    guard->events_.set(zmq::sockopt::linger, 0);
    if (::zmq_socket_monitor(socket.handle(), name.c_str(), kEvents) != 0) throw zmq::error_t();
    guard->events_.connect(name);
  } catch (const zmq::error_t& error) {
    return SystemError(Code::kInternal, "connections cannot be watched", error.num());
  }
  guard->thread_ = std::thread([raw = guard.get()] { raw->Run(); });
  return guard;
}

ConnectionGuard::~ConnectionGuard() {
  stopping_ = true;
  (void)::zmq_socket_monitor(socket_.handle(), nullptr, 0);  // its last event wakes the thread
  if (thread_.joinable()) thread_.join();
  for (const int fd : {nothing_, copy_, told_, memory_}) {
    if (fd >= 0) ::close(fd);
  }
}

bool ConnectionGuard::Delivered(const zmq::message_t& part, std::uint64_t bytes, bool sense,
                                std::string_view group, std::size_t most) {
  const int fd = ::zmq_msg_get(const_cast<zmq::message_t&>(part).handle(), ZMQ_SRCFD);
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
  if (std::exchange(connection.silent, false)) SetSilent(connection, fd, false);
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
  const int fd = ::zmq_msg_get(const_cast<zmq::message_t&>(part).handle(), ZMQ_SRCFD);
  const std::lock_guard lock(mutex_);
  // Should another connection have this descriptor by now, the claim goes to that: it ends with it,
  // or is void once that one is claimed. The message's own connection has ended in any case.
  const std::optional<std::uint64_t> cookie = CookieOf(fd);
  if (!cookie) return TellEnd(claim);
  const auto it = connections_.find(fd);
  if (it != connections_.end() && it->second.cookie == *cookie) {
    it->second.claim = claim;
    return;
  }
  Claimed& claimed = claimed_[fd];
  if (claimed.claim > 0 && claimed.cookie != *cookie) TellEnd(claimed.claim);
  claimed = {.claim = claim, .cookie = *cookie, .since = MonotonicNs()};
}

std::vector<std::uint64_t> ConnectionGuard::TakeEnded() {
  const std::lock_guard lock(mutex_);
  if (ended_.empty()) return {};
  eventfd_t count = 0;
  (void)::eventfd_read(told_, &count);
  return std::exchange(ended_, {});
}

void ConnectionGuard::TellEnd(std::uint64_t claim) {
  ended_.push_back(claim);
  if (ended_.size() == 1) (void)::eventfd_write(told_, 1);
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
  return counters_;
}

// ---- the thread ----

void ConnectionGuard::Run() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals are for the program's threads
  try {
    while (!stopping_) {
      const bool idle = !arrivals_.dropping() && !Counts();
      zmq_pollitem_t item{.socket = events_.handle(), .fd = 0, .events = ZMQ_POLLIN, .revents = 0};
      (void)::zmq_poll(&item, 1, idle ? kIdleMs : static_cast<long>(options_.pace / kMillisecond));
      while (events_.get(zmq::sockopt::events) & ZMQ_POLLIN) {
        if (!OnEvent()) return;
      }
      LimitArrivals(nullptr);
      if (MonotonicNs() >= look_at_ || Grown()) Look();
    }
  } catch (const zmq::error_t&) {  // the context ends
  }
}

// Whether there is a connection whose bytes are counted, or one that is claimed and not known.
bool ConnectionGuard::Counts() const {
  const std::lock_guard lock(mutex_);
  return !claimed_.empty() || std::any_of(connections_.begin(), connections_.end(),
                                          [](const auto& entry) { return entry.second.counted; });
}

// False: it was the last one.
bool ConnectionGuard::OnEvent() {
  zmq::message_t frame;
  if (!events_.recv(frame, zmq::recv_flags::dontwait)) return true;
  std::uint16_t event = 0;
  std::int32_t value = 0;
  if (frame.size() >= sizeof event + sizeof value) {
    std::memcpy(&event, frame.data(), sizeof event);
    std::memcpy(&value, frame.data<char>() + sizeof event, sizeof value);
  }
  while (frame.more()) (void)events_.recv(frame, zmq::recv_flags::none);
  if (event == ZMQ_EVENT_LISTENING) arrivals_.Watch(value);
  if (event == ZMQ_EVENT_ACCEPTED) OnAccepted(value);
  if (event == ZMQ_EVENT_ACCEPT_FAILED) {  // ZMQ_IPC_FILTER_UID, above all
    const std::lock_guard lock(mutex_);
    ++counters_.refused;
  }
  if (event == ZMQ_EVENT_CLOSED || event == ZMQ_EVENT_DISCONNECTED) OnClosed(value);
  return event != ZMQ_EVENT_MONITOR_STOPPED;
}

void ConnectionGuard::OnAccepted(int fd) {
  OnClosed(fd);  // ZeroMQ closes some without an event
  PeerName peer = PeerOf(fd);
  if (peer.tcp || peer.name == kGone) LimitArrivals(&peer.name);
  const std::lock_guard lock(mutex_);
  Early early;
  if (const auto found = early_.find(fd); found != early_.end()) {
    early = std::move(found->second);
    early_.erase(found);
  }
  const bool spoke = early.since > 0;
  const std::optional<std::uint64_t> cookie = CookieOf(fd);
  const Claimed claimed = std::exchange(claimed_[fd], {});
  claimed_.erase(fd);
  if (claimed.claim > 0 && claimed.cookie != cookie) TellEnd(claimed.claim);
  if (!cookie) return LeaveGroup(early.group);  // closed already
  Connection& connection = connections_[fd];
  connection.cookie = *cookie;
  if (claimed.cookie == *cookie) connection.claim = claimed.claim;
  connection.serial = ++next_serial_;
  connection.drains = drains_;
  connection.peer = std::move(peer.name);
  connection.tcp = peer.tcp;
  connection.counted = peer.tcp || (!connection.peer.empty() && CountFromHere(fd));
  Peer& of = peers_[connection.peer];
  ++of.open;
  SetSilent(connection, fd, true);
  if (spoke) {
    connection.silent = false;
    connection.delivered = true;
    SetSilent(connection, fd, false);
    connection.group = std::move(early.group);
    connection.surplus = early.surplus;
    if (early.surplus) {
      condemned_.push_back(
          {.fd = fd, .cookie = *cookie, .at = early.since + kHearsWhy, .surplus = true});
    }
    if (early.doomed) Doom(fd, &connection);
  }
  ++counters_.open;
  const auto oldest = [fd](const std::map<std::uint64_t, int>& silent) {
    return silent.empty() ? fd : silent.begin()->second;
  };
  const auto end = [this](int victim) {
    ++counters_.refused;
    End(victim, &connections_.at(victim));
  };
  if (in_all_ > 0 && orphaned_ > in_all_) {
    end(fd);
  } else if (options_.max_per_peer > 0 && !connection.peer.empty() &&
             of.open > options_.max_per_peer) {
    end(oldest(of.silent));
  } else if (options_.max_connections > 0 && counters_.open > options_.max_connections) {
    end(oldest(silent_));
  } else if (max_silent_ > 0 && others_silent_ > max_silent_) {
    end(peers_.at(most_silent_.rbegin()->second).silent.begin()->second);
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

void ConnectionGuard::SetSilent(const Connection& connection, int fd, bool silent) {
  std::map<std::uint64_t, int>& of = peers_.at(connection.peer).silent;
  const bool counts = !connection.peer.empty();
  if (counts) {
    most_silent_.erase({of.size(), connection.peer});
    others_silent_ -= of.size();
  }
  if (silent) {
    of[connection.serial] = fd;
    silent_[connection.serial] = fd;
  } else {
    of.erase(connection.serial);
    silent_.erase(connection.serial);
  }
  if (!counts || of.empty()) return;
  most_silent_.emplace(of.size(), connection.peer);
  others_silent_ += of.size();
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
      TellEnd(claim);
    } else {
      claimed_[fd] = {.claim = claim, .cookie = cookie, .since = MonotonicNs()};
      look_at_ = std::min(look_at_, MonotonicNs() + options_.pace);
    }
  }
  connections_.erase(it);
}

void ConnectionGuard::Uncount(const Connection& connection) {
  --counters_.open;
  SetSilent(connection, -1, false);
  const auto peer = peers_.find(connection.peer);
  if (--peer->second.open == 0) peers_.erase(peer);
  LeaveGroup(connection.group);
}

void ConnectionGuard::End(int fd, Connection* connection) {
  if (::dup3(fd, copy_, O_CLOEXEC) >= 0) {
    if (CookieOf(copy_) == connection->cookie) Break(copy_, connection->tcp);
    (void)::dup3(nothing_, copy_, O_CLOEXEC);
  }
  connection->ended = true;
  Uncount(*connection);
}

// Whether the process has grown by much since the last look.
bool ConnectionGuard::Grown() {
  char text[128] = {};
  if (memory_ < 0 || ::pread(memory_, text, sizeof text - 1, 0) <= 0) return true;
  char* rest = nullptr;
  (void)std::strtol(text, &rest, 10);
  const long pages = std::strtol(rest, nullptr, 10);
  const bool grown = pages - pages_ > kGrowth / ::sysconf(_SC_PAGESIZE);
  if (grown || pages < pages_) pages_ = pages;
  return grown;
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
  struct Sample {
    int fd = -1;
    bool tcp = false;
    bool counted = false;
    std::uint64_t taken = 0;
  };
  std::vector<Sample> samples;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [fd, connection] : connections_) {
      if (connection.ended) continue;
      samples.push_back({.fd = fd, .tcp = connection.tcp, .counted = connection.counted});
    }
  }
  const bool drained = drained_.exchange(false);
  for (Sample& sample : samples) {
    if (!sample.counted) continue;
    sample.taken = sample.tcp ? TakenFrom(sample.fd).value_or(0) : TakenFromLocal(sample.fd);
  }

  const std::lock_guard lock(mutex_);
  std::erase_if(early_, [this](const auto& entry) {
    const Early& early = entry.second;
    const bool over = MonotonicNs() - early.since > kEarly;
    if (over) LeaveGroup(early.group);
    return over;
  });
  std::erase_if(claimed_, [this](const auto& entry) {
    const auto& [fd, claimed] = entry;
    if (MonotonicNs() - claimed.since <= kEarly && CookieOf(fd) == claimed.cookie) return false;
    if (CookieOf(fd) != claimed.cookie) TellEnd(claimed.claim);
    return true;
  });
  std::uint64_t unread = 0;
  std::uint64_t silent_unread = 0;
  std::vector<std::pair<std::uint64_t, int>> most;
  for (const Sample& sample : samples) {
    const auto it = connections_.find(sample.fd);
    if (it == connections_.end() || it->second.ended) continue;
    Connection& connection = it->second;
    if (CookieOf(sample.fd) != connection.cookie) {  // closed without an event
      Uncount(connection);
      if (connection.claim > 0) TellEnd(connection.claim);
      connections_.erase(it);
      continue;
    }
    if (!connection.counted) continue;
    const std::uint64_t taken = connection.taken + sample.taken;
    if (!sample.tcp && sample.taken > kPeekFrom / 2 && CountFromHere(sample.fd)) {
      connection.taken = taken;
    }
    if (std::exchange(connection.delivered, false)) connection.read = taken;
    connection.unread = taken - std::min(taken, connection.read);
    // What was taken besides messages (signs of life) and what was read of a closed connection with
    // this number makes the two differ. They begin anew whenever all has been read.
    if (drained || connection.given > taken) connection.given = taken;
    if (options_.max_backlog > 0) connection.backlog = taken - connection.given;
    unread += connection.unread;
    if (connection.silent) silent_unread += connection.unread;
    most.emplace_back(connection.unread, sample.fd);
  }
  ++looks_;
  std::sort(most.rbegin(), most.rend());
  // Those that have too much together are cut until they have half as much.
  const std::uint64_t in_all = in_all_;
  const std::uint64_t of_silent = options_.max_unread_silent_in_all;
  const bool too_much = in_all > 0 && unread > in_all;
  const bool too_much_silent = of_silent > 0 && silent_unread > of_silent;
  for (const auto& [bytes, fd] : most) {
    const Connection& connection = connections_.at(fd);
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
    End(fd, &connections_.at(fd));
  }
  if (trim_) look_at_ = MonotonicNs() + options_.pace;
}

}  // namespace prd
