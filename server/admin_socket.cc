#include "server/admin_socket.h"

#include <algorithm>
#include <utility>

#include "common/io/codec.h"
#include "server/bind.h"

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
                                                       const std::string& endpoint,
                                                       const RocksHistory* history,
                                                       StatusOf status) {
  try {
    zmq::socket_t socket(context, zmq::socket_type::router);
    socket.set(zmq::sockopt::maxmsgsize, kMaxRequestBytes);
    socket.set(zmq::sockopt::linger, 200);
    const Result<std::string> bound = Bind(socket, endpoint, "admin", Access::kOwner);
    if (!bound.ok()) return bound.status();
    return std::unique_ptr<AdminSocket>(
        new AdminSocket(std::move(socket), history, std::move(status)));
  } catch (const zmq::error_t& error) {
    return Status(Code::kInternal, "admin = \"" + endpoint + "\": " + error.what());
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
    Handle(now, std::move(parts), request);
  }
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    const std::optional<std::uint64_t> next = history_->NextIndex(waiting.read.run);
    if (next && *next <= waiting.read.from && now < waiting.until) return false;
    Reply(waiting.route, Read(waiting.read));
    return true;
  });
}

void AdminSocket::Handle(Instant now, std::vector<std::string> route, std::string_view bytes) {
  const Result<AdminRequest> request = DecodeAdminRequest(bytes);
  if (!request.ok()) {
    Reply(route, ToReply(request.status()));
    return;
  }
  if (const auto* read = std::get_if<ReadRecords>(&*request)) {
    const std::optional<std::uint64_t> next = history_->NextIndex(read->run);
    if (next && *next <= read->from && read->wait_ms > 0 && waiting_.size() < kMaxWaiting) {
      const DurationNs wait = std::min(read->wait_ms, kMaxWaitMs) * kMillisecond;
      waiting_.push_back({.route = std::move(route), .read = *read, .until = now + wait});
      return;
    }
    Reply(route, Read(*read));
  } else if (const auto* snapshot = std::get_if<ReadSnapshot>(&*request)) {
    const Result<Snapshot> found = history_->ReadSnapshot(snapshot->run);
    Reply(route, found.ok() ? AdminReply(*found) : ToReply(found.status()));
  } else if (std::holds_alternative<ListRuns>(*request)) {
    Result<std::vector<RunInfo>> runs = history_->ListRuns();
    Reply(route, runs.ok() ? AdminReply(RunList{std::move(*runs)}) : ToReply(runs.status()));
  } else {
    Reply(route, status_(now));
  }
}

AdminReply AdminSocket::Read(const ReadRecords& read) const {
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
