#include "tools/prdctl/admin_source.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "common/io/codec.h"
#include "common/io/dial.h"

namespace prd::ctl {
namespace {

class AdminSource : public HistorySource {
 public:
  explicit AdminSource(AdminOptions options) : options_(std::move(options)) {}
  ~AdminSource() override { Close(); }

  Result<std::vector<RunInfo>> Runs() override {
    std::vector<RunInfo> runs;
    const Status status = AllPages(false, &runs);
    if (!status.ok()) return status;
    std::reverse(runs.begin(), runs.end());
    return runs;
  }

  Result<RecentRuns> Recent(std::size_t most) override {
    Result<RunList> page = Ask<RunList>(ListRuns{}, 0);
    if (!page.ok()) return page.status();
    if (page->next != kNoRun && page->runs.size() < most) return HistorySource::Recent(most);
    std::vector<RunInfo> live;
    if (page->next != kNoRun) {
      const Status status = AllPages(true, &live);
      if (!status.ok()) return status;
    }
    return Newest(std::move(page->runs), page->next != kNoRun, live, most);
  }

  Result<std::vector<Record>> Read(RunId run, std::uint64_t from, std::uint32_t max_bytes,
                                   std::uint32_t wait_ms) override {
    Result<RecordBatch> batch = Ask<RecordBatch>(
        ReadRecords{.run = run, .from = from, .max_bytes = max_bytes, .wait_ms = wait_ms}, wait_ms);
    if (!batch.ok()) return batch.status();
    return std::move(batch->records);
  }

  Result<Snapshot> NewestSnapshot(RunId run) override {
    Snapshot whole;
    while (true) {
      Result<Snapshot> part = Ask<Snapshot>(ReadSnapshot{run, whole.state.size()}, 0);
      if (!part.ok()) return part;
      const bool newer = part->index != whole.index && !whole.state.empty();
      if (newer) {  // it has taken the other's place: from its beginning
        whole = {};
        continue;
      }
      whole.index = part->index;
      whole.bytes = part->bytes;
      whole.state += part->state;
      if (part->state.empty() || whole.state.size() >= whole.bytes) return whole;
    }
  }

  Result<DaemonStatus> Daemon() override { return Ask<DaemonStatus>(GetStatus{}, 0); }

  Result<std::string> Act(const prd::Act& act) override {
    Result<Acted> acted = Ask<Acted>(act, 0);
    if (!acted.ok()) return acted.status();
    return std::move(acted->text);
  }

  // A few at a time: the daemon takes short requests, and has others to answer.
  Result<std::string> Prune(const std::vector<RunId>& runs) override {
    constexpr std::size_t kAtOnce = 200;
    std::string text;
    for (std::size_t i = 0; i < runs.size(); i += kAtOnce) {
      const auto begin = runs.begin() + static_cast<std::ptrdiff_t>(i);
      const auto count = static_cast<std::ptrdiff_t>(std::min(kAtOnce, runs.size() - i));
      Result<Acted> acted = Ask<Acted>(prd::Prune{{begin, begin + count}}, 0);
      if (!acted.ok()) return acted.status();
      text = std::move(acted->text);
    }
    return text;
  }

 private:
  // The newest first.
  Status AllPages(bool live, std::vector<RunInfo>* runs) {
    for (RunId before = kNoRun;;) {
      Result<RunList> page = Ask<RunList>(ListRuns{.before = before, .live = live}, 0);
      if (!page.ok()) return page.status();
      std::move(page->runs.begin(), page->runs.end(), std::back_inserter(*runs));
      if (page->next == kNoRun || (before != kNoRun && page->next >= before)) return Status::Ok();
      before = page->next;
    }
  }

  template <typename Reply>
  Result<Reply> Ask(const AdminRequest& request, std::uint32_t wait_ms) {
    std::string bytes;
    try {
      Result<std::string> answer = Exchange(Encode(request), wait_ms);
      if (!answer.ok()) return answer.status();
      bytes = std::move(answer).value();
    } catch (const zmq::error_t& error) {
      Close();
      const bool wrong = error.num() == EINVAL || error.num() == EPROTONOSUPPORT;
      return Status(wrong ? Code::kInvalidArgument : Code::kUnavailable,
                    "admin endpoint: found \"" + options_.endpoint + "\" (" + error.what() +
                        "), allowed is ipc:///PATH or tcp://HOST:PORT, as in the daemon's config");
    }
    Result<AdminReply> reply = DecodeAdminReply(bytes);
    if (!reply.ok()) {
      return Status(Code::kDataLoss, "the daemon at " + options_.endpoint +
                                         " answers what this prdctl cannot read (of another "
                                         "version?): " +
                                         reply.status().message());
    }
    if (auto* error = std::get_if<AdminError>(&*reply)) {
      // It answers, so it is not away, whatever else is.
      const bool other = error->code == Code::kOk || error->code == Code::kUnavailable ||
                         error->code == Code::kDeadlineExceeded;
      return Status(other ? Code::kInternal : error->code, error->message);
    }
    if (auto* wanted = std::get_if<Reply>(&*reply)) return std::move(*wanted);
    return Status(Code::kDataLoss, "the daemon at " + options_.endpoint +
                                       " answered another question than the one asked");
  }

  Result<std::string> Exchange(const std::string& request, std::uint32_t wait_ms) {
    if (!socket_) {
      constexpr std::string_view kIpc = "ipc://";
      const bool ipc = options_.endpoint.starts_with(kIpc);
      // Connecting needs the right to write; so does finding the file, of its folder.
      if (ipc && access(options_.endpoint.c_str() + kIpc.size(), W_OK) != 0) {
        if (errno == EACCES) return Denied();
        return Away(std::strerror(errno));
      }
      if (options_.endpoint.starts_with("tcp://")) {
        Result<std::vector<TcpWay>> ways = WaysTo(options_.endpoint);
        if (!ways.ok()) return Status(ways.status().code(), "admin: " + ways.status().message());
        ways_ = *std::move(ways);
      }
      Connect();
    }
    socket_->send(zmq::buffer(request), zmq::send_flags::none);
    using Clock = std::chrono::steady_clock;
    const std::chrono::nanoseconds timeout(options_.timeout_ns);
    const auto deadline = Clock::now() + timeout + std::chrono::milliseconds(wait_ms);
    auto turn = ways_.size() > 1 ? Clock::now() + timeout / 3 : deadline;
    while (true) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(turn - Clock::now());
      if (left.count() <= 0) {
        if (turn == deadline) break;
        turn = deadline;
        if (connected_) continue;
        // The daemon may listen to the other kind of address that its name has.
        std::swap(ways_.front(), ways_.back());
        Close();
        Connect();
        socket_->send(zmq::buffer(request), zmq::send_flags::none);
        continue;
      }
      zmq_pollitem_t items[] = {
          {.socket = socket_->handle(), .fd = 0, .events = ZMQ_POLLIN, .revents = 0},
          {.socket = refusals_->handle(), .fd = 0, .events = ZMQ_POLLIN, .revents = 0},
          {.socket = nullptr, .fd = options_.stop_fd, .events = ZMQ_POLLIN, .revents = 0}};
      const int ready =
          zmq_poll(items, options_.stop_fd >= 0 ? 3 : 2, static_cast<long>(left.count()));
      if (ready < 0 && errno != EINTR) throw zmq::error_t();
      if (ready > 0 && items[2].revents != 0) {
        Close();
        return Status(Code::kCancelled, "interrupted");
      }
      if (ready > 0 && items[0].revents == 0 && items[1].revents != 0) {
        if (std::optional<Status> refused = Refused()) {
          Close();
          return *std::move(refused);
        }
      }
      if (ready <= 0 || items[0].revents == 0) continue;
      zmq::message_t answer;
      (void)socket_->recv(answer, zmq::recv_flags::none);
      return answer.to_string();
    }
    Close();  // a REQ socket takes no second question before the answer
    const std::string within =
        "within " + std::to_string(options_.timeout_ns / kMillisecond) + " ms";
    return connected_ ? Late(within) : Away(within);
  }

  void Connect() {
    socket_.emplace(context_, zmq::socket_type::req);
    socket_->set(zmq::sockopt::linger, 0);
    if (!ways_.empty()) socket_->set(zmq::sockopt::ipv6, ways_.front().ipv6);
    if (options_.keys) {
      socket_->set(zmq::sockopt::curve_publickey, options_.keys->public_key);
      socket_->set(zmq::sockopt::curve_secretkey, options_.keys->secret_key);
      socket_->set(zmq::sockopt::curve_serverkey, options_.server_key);
    }
    // libzmq tells there what becomes of the connection.
    const std::string refusals = "inproc://refusals-" + std::to_string(++connects_);
    constexpr int kEvents = ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                            ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
    if (zmq_socket_monitor(socket_->handle(), refusals.c_str(), kEvents) != 0) throw zmq::error_t();
    ended_ = 0;
    connected_ = false;
    refusals_.emplace(context_, zmq::socket_type::pair);
    refusals_->connect(refusals);
    socket_->connect(options_.endpoint);
  }

  // Why the daemon does not let this process in, once that is known. It ends connections without a
  // word: over ipc of users whom it does not know, over tcp of those that have another server key.
  // A daemon that just stops ends one.
  std::optional<Status> Refused() {
    constexpr int kOfStranger = 3;
    zmq::message_t frame;
    std::uint16_t event = 0;
    if (!refusals_->recv(frame, zmq::recv_flags::dontwait)) return std::nullopt;
    std::memcpy(&event, frame.data(), std::min(frame.size(), sizeof event));
    while (frame.more()) (void)refusals_->recv(frame, zmq::recv_flags::none);
    connected_ = event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) return Denied();
    if (connected_ || ++ended_ != kOfStranger) return std::nullopt;
    return options_.keys ? EndsConnections() : Denied();
  }

  void Close() {
    if (socket_) zmq_socket_monitor(socket_->handle(), nullptr, 0);
    refusals_.reset();
    socket_.reset();
  }

  Status Denied() const {
    const std::string who =
        options_.keys ? "key " + options_.keys->public_key : "user " + std::to_string(geteuid());
    return Status(Code::kFailedPrecondition,
                  "permission denied: the daemon at " + options_.endpoint + " does not let " + who +
                      " in. Whom it lets in stands in its config: the user that prd runs as, root, "
                      "and each [[identity]]");
  }

  Status EndsConnections() const {
    return Status(Code::kUnavailable, "the daemon at " + options_.endpoint +
                                          " ends connections before they are made; --server-key (" +
                                          options_.server_key +
                                          ") is not its public key, or it has all its connections");
  }

  Status Late(const std::string& how) const {
    return Status(Code::kUnavailable,
                  "the daemon at " + options_.endpoint + " does not answer " + how +
                      ": it is busy, or whoever asks has read more than their identity's "
                      "max_read_bytes_per_s, and has to wait. --timeout-ms says for how long");
  }

  Status Away(const std::string& how) const {
    return Status(Code::kUnavailable,
                  "no daemon answers at " + options_.endpoint + " (" + how +
                      "): is prd running there (systemctl status prd), with this `admin` "
                      "endpoint? Give --admin ENDPOINT, or --state-dir DIR to read the files of a "
                      "stopped daemon");
  }

  AdminOptions options_;
  std::vector<TcpWay> ways_;  // over tcp; the first one is tried
  zmq::context_t context_;
  std::optional<zmq::socket_t> socket_;
  std::optional<zmq::socket_t> refusals_;  // of socket_'s connection
  int connects_ = 0;                       // for its name: that of one before may be in use still
  int ended_ = 0;                          // connections, before they were made
  bool connected_ = false;
};

}  // namespace

std::unique_ptr<HistorySource> MakeAdminSource(AdminOptions options) {
  return std::make_unique<AdminSource>(std::move(options));
}

}  // namespace prd::ctl
