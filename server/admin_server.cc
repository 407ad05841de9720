#include "server/admin_server.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <string_view>
#include <utility>

#include "common/io/clock.h"
#include "common/io/codec.h"
#include "common/io/log.h"
#include "common/io/poll.h"
#include "server/operate.h"

namespace prd {
namespace {

constexpr int kRequestsATime = 64;
constexpr std::size_t kErrandsATime = 4;
// Requests that wait, in all and of one user or key. Those of clients that have gone count, too,
// until their time is up.
constexpr std::size_t kMaxClients = 4096;
constexpr std::ptrdiff_t kMaxClientsOfOne = 256;
constexpr std::uint32_t kMaxWaitMs = 10'000;
constexpr std::int64_t kMaxRequestBytes = 4096;
// While clients wait for records, the history is asked so often.
constexpr DurationNs kLookForRecords = 20 * kMillisecond;
constexpr DurationNs kAtMostIdle = 10 * kSecond;
// What a request counts in bytes, however short its answer.
constexpr std::size_t kLeastBytes = 1024;
constexpr int kNice = 10;

// Whether the daemon's own thread answers it.
bool IsErrand(const AdminRequest& request) {
  return std::holds_alternative<Act>(request) || std::holds_alternative<GetStatus>(request) ||
         std::holds_alternative<Prune>(request);
}

// What an operator wants, for the audit log.
std::string WordsOf(const AdminRequest& request) {
  if (const auto* act = std::get_if<Act>(&request)) return Words(*act);
  if (const auto* prune = std::get_if<Prune>(&request)) {
    return "remove " + std::to_string(prune->runs.size()) + " runs from the history";
  }
  return "ask with prdctl";
}

}  // namespace

Result<std::unique_ptr<AdminServer>> AdminServer::Make(const Options& options,
                                                       const RocksHistory* history, Access access,
                                                       AuditLog* audit) {
  std::unique_ptr<AdminServer> made(new AdminServer(history, std::move(access), audit));
  if (made->asked_.fd() < 0 || made->woken_.fd() < 0) {
    return Status(Code::kResourceExhausted, "admin: no descriptors are left");
  }
  std::promise<Status> listening;
  made->thread_ =
      std::thread([raw = made.get(), options, &listening] { raw->Run(options, &listening); });
  const Status status = listening.get_future().get();
  if (!status.ok()) return status;
  return made;
}

AdminServer::~AdminServer() { Stop(); }

void AdminServer::Stop() {
  stopping_ = true;
  woken_.Ring();
  if (thread_.joinable()) thread_.join();
}

// ---- the daemon's thread ----

void AdminServer::Serve(const AnswerHere& answer) {
  for (std::size_t i = 0; i < kErrandsATime; ++i) {
    std::optional<Errand> errand;
    {
      const std::lock_guard lock(mutex_);
      asked_.Quiet();
      if (errands_.empty()) return;
      errand = std::move(errands_.front());
      errands_.pop_front();
      if (!errands_.empty()) asked_.Ring();
    }
    Done done{.client = std::move(errand->client),
              .reply = answer(errand->rights, errand->request)};
    {
      const std::lock_guard lock(mutex_);
      done_.push_back(std::move(done));
    }
    woken_.Ring();
  }
}

void AdminServer::SetAccess(Access access) {
  {
    const std::lock_guard lock(mutex_);
    wanted_ = std::move(access);
  }
  woken_.Ring();
}

// ---- its own thread ----

Status AdminServer::Listen(const Options& options) {
  const bool tcp = options.endpoint.starts_with("tcp://");
  // A request is one part of a few hundred bytes.
  const ConnectionGuard::Options guard{
      .max_connections = options.max_connections,
      .max_per_peer = options.max_per_peer,
      .max_new_per_s = 100,
      .max_silent = options.max_connections / 2,
      .max_unread = 64 << 10,
      .max_unread_silent = 16 << 10,
      .max_unread_in_all = 1 << 20,
      .max_backlog = 64 << 10,
  };
  Result<std::unique_ptr<ZapHandler>> zap = ZapHandler::Make(context_, &access_, audit_);
  if (!zap.ok()) return zap.status();
  zap_ = std::move(*zap);
  Result<std::unique_ptr<Listener>> listener =
      Listener::Make(context_, {.key = "admin",
                                .endpoint = options.endpoint,
                                .zap_domain = std::string(kAdminDomain),
                                .keys = tcp ? options.keys : std::nullopt,
                                .users = access_.local_users(),
                                .guard = guard,
                                .audit = audit_,
                                .max_part_bytes = kMaxRequestBytes,
                                .send_queue = 1,
                                .handshake_ms = 5000,
                                .linger_ms = 200});
  if (!listener.ok()) return listener.status();
  listener_ = std::move(*listener);
  endpoint_ = listener_->endpoint();
  return Status::Ok();
}

void AdminServer::Run(const Options& options, std::promise<Status>* listening) {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  // For this thread, and for those that ZeroMQ makes from it.
  (void)::setpriority(PRIO_PROCESS, 0, kNice);
  const Status status = Listen(options);
  const bool ok = status.ok();
  listening->set_value(status);  // *listening is gone now
  while (ok && !stopping_) {
    Turn();
    Wait();
  }
  if (ok) TakeDone();
}

void AdminServer::Turn() {
  TakeAccess();
  zap_->Serve();
  TakeRequests();
  TakeDone();
  (void)AnswerOne();
}

void AdminServer::TakeAccess() {
  Access wanted;
  {
    const std::lock_guard lock(mutex_);
    wanted = wanted_;
  }
  if (wanted.number() == access_.number()) return;
  access_ = std::move(wanted);
  const Status status = listener_->LetIn(access_.local_users());
  if (!status.ok()) spdlog::error("{}", status.message());
}

void AdminServer::TakeRequests() {
  zmq::socket_t& socket = listener_->socket();
  zmq::message_t part;
  for (int i = 0; i < kRequestsATime; ++i) {
    if (!socket.recv(part, zmq::recv_flags::dontwait)) return listener_->guard().Drained();
    // A REQ socket's message: where it came from, an empty part, the request.
    std::vector<std::string> parts{part.to_string()};
    std::uint64_t bytes = 0;
    while (part.more()) {
      (void)socket.recv(part, zmq::recv_flags::none);
      bytes += listener_->OnWire(part);
      if (parts.size() < 8) parts.push_back(part.to_string());
    }
    const std::string request = std::move(parts.back());
    parts.pop_back();
    const Peer peer = PeerOf(part);
    const Rights* rights = access_.Find(peer.who);
    const bool room = listener_->guard().Delivered(
        part, bytes, rights != nullptr, rights != nullptr ? rights->name : std::string_view(),
        rights != nullptr ? rights->max_connections : 0);
    if (rights == nullptr || !room) {
      const Status status(Code::kFailedPrecondition,
                          rights == nullptr
                              ? "permission denied: the daemon's config does not let " +
                                    Called(rights, peer.who) + " in (any more)"
                              : Called(rights, peer.who) + " has as many connections as it may");
      audit_->Refused(peer, rights, "ask with prdctl", status.message());
      (void)Reply(parts, ToReply(status));
      continue;
    }
    Result<AdminRequest> decoded = DecodeAdminRequest(request);
    const std::string& name = parts.empty() ? request : parts.front();
    const Status status = decoded.ok() ? Room(name, peer.who) : decoded.status();
    if (!status.ok()) {
      (void)Reply(parts, ToReply(status));
      continue;
    }
    Client client{.route = parts,
                  .who = std::string(peer.who),
                  .address = std::string(peer.address),
                  .request = std::move(*decoded)};
    if (const auto* read = std::get_if<ReadRecords>(&client.request); read && read->wait_ms > 0) {
      client.until_ns = MonotonicNs() + std::min(read->wait_ms, kMaxWaitMs) * kMillisecond;
    }
    order_.push_back(name);
    clients_.emplace(name, std::move(client));
  }
}

Status AdminServer::Room(const std::string& name, std::string_view who) const {
  if (clients_.contains(name)) {
    return Status(Code::kResourceExhausted, "a client has one request at a time");
  }
  const auto of_one = std::count_if(clients_.begin(), clients_.end(),
                                    [&](const auto& entry) { return entry.second.who == who; });
  if (clients_.size() < kMaxClients && of_one < kMaxClientsOfOne) return Status::Ok();
  return Status(Code::kResourceExhausted, "too many requests wait for an answer");
}

void AdminServer::TakeDone() {
  std::deque<Done> done;
  {
    const std::lock_guard lock(mutex_);
    done.swap(done_);
  }
  for (Done& one : done) {
    const auto client = clients_.find(one.client);
    if (client == clients_.end()) continue;
    const Client& of = client->second;
    const Peer peer{.who = of.who, .address = of.address};
    const Rights* rights = access_.Find(of.who);
    if (auto* status = std::get_if<DaemonStatus>(&one.reply)) {
      if (rights != nullptr) *status = answers_.StatusFor(*rights, std::move(*status));
    } else if (const auto* error = std::get_if<AdminError>(&one.reply)) {
      audit_->Refused(peer, rights, WordsOf(of.request), error->message);
    } else {
      audit_->Acted(peer, rights, WordsOf(of.request));
    }
    (void)Reply(of.route, one.reply);
    std::erase(order_, one.client);
    clients_.erase(client);
  }
}

// Serves the request that has waited longest among those that need not wait. False: there is none.
bool AdminServer::AnswerOne() {
  const std::int64_t now_ns = MonotonicNs();
  for (auto name = order_.begin(); name != order_.end(); ++name) {
    Client& client = clients_.at(*name);
    if (!Ready(client, now_ns)) continue;
    const std::string of = *name;
    if (!IsErrand(client.request)) order_.erase(name);
    Answer(of, &client);
    return true;
  }
  return false;
}

bool AdminServer::Ready(const Client& client, std::int64_t now_ns) {
  if (client.asked) return false;
  const Rights* rights = access_.Find(client.who);
  if (rights == nullptr) return true;  // to be told so
  if (BucketOf(*rights, now_ns).left < 0) return false;
  const auto* read = std::get_if<ReadRecords>(&client.request);
  return read == nullptr || now_ns >= client.until_ns || !answers_.Waits(*read);
}

void AdminServer::Answer(const std::string& name, Client* client) {
  const Rights* rights = access_.Find(client->who);
  const Peer peer{.who = client->who, .address = client->address};
  if (rights == nullptr) {
    const Status status(Code::kFailedPrecondition,
                        "permission denied: the daemon's config does not let " +
                            Called(rights, client->who) + " in any more");
    audit_->Refused(peer, rights, WordsOf(client->request), status.message());
    (void)Reply(client->route, ToReply(status));
    std::erase(order_, name);
    clients_.erase(name);
    return;
  }
  if (IsErrand(client->request)) {
    if (auto* act = std::get_if<Act>(&client->request)) act->what.by = Called(rights, client->who);
    client->asked = true;
    BucketOf(*rights, MonotonicNs()).left -= kLeastBytes;
    const std::lock_guard lock(mutex_);
    errands_.push_back({.client = name, .rights = *rights, .request = client->request});
    return asked_.Ring();
  }
  const auto* read = std::get_if<ReadRecords>(&client->request);
  const auto* snapshot = std::get_if<ReadSnapshot>(&client->request);
  const RunId run = read != nullptr ? read->run : snapshot != nullptr ? snapshot->run : kNoRun;
  if (run != kNoRun && !answers_.MaySee(*rights, run).ok()) {
    audit_->Refused(peer, rights, "look at run " + std::to_string(run), "its job is not its own");
  }
  const std::size_t bytes = Reply(client->route, answers_.Answer(*rights, client->request));
  BucketOf(*rights, MonotonicNs()).left -= static_cast<double>(std::max(bytes, kLeastBytes));
  clients_.erase(name);
}

// Below 0 the identity waits.
AdminServer::Bucket& AdminServer::BucketOf(const Rights& rights, std::int64_t now_ns) {
  Bucket& bucket = buckets_[rights.name];
  const auto per_s = static_cast<double>(rights.max_read_bytes_per_s);
  const double passed = static_cast<double>(now_ns - bucket.at_ns) / kSecond;
  const bool fresh = bucket.at_ns == 0 || per_s == 0;
  bucket.left = fresh ? per_s : std::min(per_s, bucket.left + passed * per_s);
  bucket.at_ns = now_ns;
  return bucket;
}

void AdminServer::Wait() {
  std::int64_t wait = kAtMostIdle;
  const std::int64_t now_ns = MonotonicNs();
  for (const auto& [name, client] : clients_) {
    if (client.asked) continue;
    wait = Ready(client, now_ns) ? 0 : std::min<std::int64_t>(wait, kLookForRecords);
    if (wait == 0) break;
  }
  std::array<zmq::pollitem_t, 3> items = {{{listener_->socket().handle(), 0, ZMQ_POLLIN, 0},
                                           {zap_->socket().handle(), 0, ZMQ_POLLIN, 0},
                                           {nullptr, woken_.fd(), ZMQ_POLLIN, 0}}};
  Poll(items, static_cast<long>(wait / kMillisecond));
  woken_.Quiet();
}

std::size_t AdminServer::Reply(const std::vector<std::string>& route, const AdminReply& reply) {
  const std::string bytes = Encode(reply);
  zmq::socket_t& socket = listener_->socket();
  try {
    for (const std::string& part : route) {
      // Never blocks: a client that does not read its answers gets none.
      if (!socket.send(zmq::buffer(part), zmq::send_flags::sndmore | zmq::send_flags::dontwait)) {
        return bytes.size();
      }
    }
    (void)socket.send(zmq::buffer(bytes), zmq::send_flags::dontwait);
  } catch (const zmq::error_t&) {
    // It has gone.
  }
  return bytes.size();
}

}  // namespace prd
