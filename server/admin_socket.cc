#include "server/admin_socket.h"

#include <algorithm>
#include <utility>

#include "common/io/codec.h"
#include "server/bind.h"
#include "server/operate.h"
#include "server/zap.h"

namespace prd {
namespace {

constexpr int kRequestsATime = 16;
constexpr std::size_t kMaxWaiting = 256;
constexpr std::uint32_t kMaxWaitMs = 10'000;
constexpr std::uint32_t kMaxReplyBytes = 8 << 20;
constexpr std::int64_t kMaxRequestBytes = 4096;

AdminReply ToReply(const Status& status) {
  return AdminError{.code = status.code(), .message = status.message()};
}

}  // namespace

Result<std::unique_ptr<AdminSocket>> AdminSocket::Make(zmq::context_t& context,
                                                       const Options& options,
                                                       const RocksHistory* history,
                                                       const Access* access, AuditLog* audit,
                                                       StatusOf status, ActOn act) {
  try {
    zmq::socket_t socket(context, zmq::socket_type::router);
    socket.set(zmq::sockopt::maxmsgsize, kMaxRequestBytes);
    socket.set(zmq::sockopt::linger, 200);
    socket.set(zmq::sockopt::ipv6, options.endpoint.find('[') != std::string::npos);
    socket.set(zmq::sockopt::zap_domain, std::string(kAdminDomain));
    const bool tcp = options.endpoint.starts_with("tcp://");
    if (tcp && options.keys) {
      socket.set(zmq::sockopt::curve_server, true);
      socket.set(zmq::sockopt::curve_secretkey, options.keys->secret_key);
    }
    const Result<std::string> bound = Bind(socket, options.endpoint, "admin");
    if (!bound.ok()) return bound.status();
    PRD_RETURN_IF_ERROR(OpenToUsers(*bound, options.open_to_users));
    std::unique_ptr<AdminSocket> made(new AdminSocket(std::move(socket), history, access, audit,
                                                      std::move(status), std::move(act)));
    made->endpoint_ = *bound;
    return made;
  } catch (const zmq::error_t& error) {
    return Status(Code::kInternal, "admin = \"" + options.endpoint + "\": " + error.what());
  }
}

void AdminSocket::Serve(Instant now) {
  zmq::message_t part;
  for (int i = 0; i < kRequestsATime && socket_.recv(part, zmq::recv_flags::dontwait); ++i) {
    // A REQ socket's message: where it came from, an empty part, the request.
    std::vector<std::string> parts{part.to_string()};
    while (socket_.get(zmq::sockopt::rcvmore)) {
      (void)socket_.recv(part, zmq::recv_flags::none);
      if (parts.size() < 8) parts.push_back(part.to_string());
    }
    const std::string request = std::move(parts.back());
    parts.pop_back();
    Handle(now, std::move(parts), PeerOf(part), request);
  }
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    const std::optional<std::uint64_t> next = history_->NextIndex(waiting.read.run);
    if (next && *next <= waiting.read.from && now < waiting.until) return false;
    Reply(waiting.route, Read(waiting.who, waiting.read));
    return true;
  });
}

void AdminSocket::Handle(Instant now, std::vector<std::string> route, const Peer& peer,
                         std::string_view bytes) {
  const Rights* rights = access_->Find(peer.who);
  if (rights == nullptr) {
    const Status status = MaySee(peer.who, kNoRun);
    audit_->Refused(peer, rights, "ask with prdctl", status.message());
    return Reply(route, ToReply(status));
  }
  const Result<AdminRequest> request = DecodeAdminRequest(bytes);
  if (!request.ok()) {
    Reply(route, ToReply(request.status()));
    return;
  }
  const auto* read = std::get_if<ReadRecords>(&*request);
  const auto* snapshot = std::get_if<ReadSnapshot>(&*request);
  if (read != nullptr || snapshot != nullptr) {
    const RunId run = read != nullptr ? read->run : snapshot->run;
    const Status may = MaySee(peer.who, run);
    if (!may.ok()) {
      audit_->Refused(peer, rights, "look at job " + *history_->JobOf(run), "it is not its own");
      return Reply(route, ToReply(may));
    }
  }
  if (read != nullptr) {
    const std::optional<std::uint64_t> next = history_->NextIndex(read->run);
    if (next && *next <= read->from && read->wait_ms > 0 && waiting_.size() < kMaxWaiting) {
      const DurationNs wait = std::min(read->wait_ms, kMaxWaitMs) * kMillisecond;
      waiting_.push_back({.route = std::move(route),
                          .who = std::string(peer.who),
                          .read = *read,
                          .until = now + wait});
      return;
    }
    Reply(route, Read(peer.who, *read));
  } else if (snapshot != nullptr) {
    const Result<Snapshot> found = history_->ReadSnapshot(snapshot->run);
    Reply(route, found.ok() ? AdminReply(*found) : ToReply(found.status()));
  } else if (const auto* act = std::get_if<Act>(&*request)) {
    Reply(route, ActAs(now, peer, *rights, *act));
  } else if (std::holds_alternative<ListRuns>(*request)) {
    Reply(route, Runs(*rights));
  } else {
    Reply(route, StatusFor(*rights, now));
  }
}

AdminReply AdminSocket::ActAs(Instant now, const Peer& peer, const Rights& rights, Act act) {
  act.what.by = Called(&rights, peer.who);
  const Result<std::string> done = act_(now, rights, act);
  if (!done.ok()) {
    audit_->Refused(peer, &rights, Words(act), done.status().message());
    return ToReply(done.status());
  }
  audit_->Acted(peer, &rights, Words(act));
  return Acted{*done};
}

// A run of a job that is not its own is to it as if there were none.
Status AdminSocket::MaySee(std::string_view who, RunId run) const {
  const Rights* rights = access_->Find(who);
  if (rights == nullptr) {
    return Status(Code::kFailedPrecondition,
                  "permission denied: the daemon's config does not let " + Called(rights, who) +
                      " in (any more)");
  }
  const std::optional<std::string> job = history_->JobOf(run);
  if (!job || rights->Covers(*job)) return Status::Ok();
  return Status(Code::kNotFound, "run " + std::to_string(run) + " is not in the history");
}

AdminReply AdminSocket::Runs(const Rights& rights) const {
  Result<std::vector<RunInfo>> runs = history_->ListRuns();
  if (!runs.ok()) return ToReply(runs.status());
  std::erase_if(*runs, [&](const RunInfo& run) { return !rights.Covers(run.job); });
  return RunList{std::move(*runs)};
}

// What is of all jobs together is for operators.
AdminReply AdminSocket::StatusFor(const Rights& rights, Instant now) const {
  DaemonStatus status = status_(now);
  if (!rights.operates) status.counters.clear();
  std::erase_if(status.silences, [&](const WorkerSilence& silence) {
    const std::optional<std::string> job = history_->JobOf(silence.run);
    return !job || !rights.Covers(*job);
  });
  return status;
}

AdminReply AdminSocket::Read(std::string_view who, const ReadRecords& read) const {
  const Status may = MaySee(who, read.run);
  if (!may.ok()) return ToReply(may);
  Result<std::vector<Record>> records =
      history_->Read(read.run, read.from, std::min(read.max_bytes, kMaxReplyBytes));
  if (!records.ok()) return ToReply(records.status());
  return RecordBatch{std::move(*records)};
}

std::optional<Instant> AdminSocket::NextDeadline() const {
  std::optional<Instant> next;
  for (const Waiting& waiting : waiting_) {
    if (!next || waiting.until < *next) next = waiting.until;
  }
  return next;
}

void AdminSocket::Reply(const std::vector<std::string>& route, const AdminReply& reply) {
  const std::string bytes = Encode(reply);
  try {
    for (const std::string& part : route) {
      // Never blocks: a client that does not read its answers gets none.
      if (!socket_.send(zmq::buffer(part), zmq::send_flags::sndmore | zmq::send_flags::dontwait)) {
        return;
      }
    }
    (void)socket_.send(zmq::buffer(bytes), zmq::send_flags::dontwait);
  } catch (const zmq::error_t&) {
    // It has gone.
  }
}

}  // namespace prd
