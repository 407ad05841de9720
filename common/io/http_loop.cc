#include "common/io/http_loop.h"

#include <microhttpd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <map>
#include <utility>
#include <vector>

namespace prd {
namespace {

constexpr std::size_t kMemory = 2 * HttpLoop::kMaxHead;  // of a connection
constexpr DurationNs kAgain = 20 * kMillisecond;         // a request that waits is given again

// What it has sent and has not been read is dropped, and so is what it was sent and has not taken.
// After shutdown(2) alone a TCP peer could send on.
void Break(int fd) {
  sockaddr nobody{};
  nobody.sa_family = AF_UNSPEC;
  (void)::connect(fd, &nobody, sizeof nobody);
  (void)::shutdown(fd, SHUT_RDWR);
}

MHD_Result AddField(void* fields, MHD_ValueKind /*kind*/, const char* name, std::size_t name_size,
                    const char* value, std::size_t value_size) {
  static_cast<HttpRequest::Fields*>(fields)->emplace_back(
      std::string(name, name_size),
      value == nullptr ? std::string() : std::string(value, value_size));
  return MHD_YES;
}

HttpRequest::Fields FieldsOf(MHD_Connection* connection, MHD_ValueKind kind) {
  HttpRequest::Fields fields;
  MHD_get_connection_values_n(connection, kind, AddField, &fields);
  return fields;
}

bool HasBody(const HttpRequest& request) {
  for (const std::string& length : request.Headers("Content-Length")) {
    if (length != "0") return true;
  }
  return !request.Headers("Transfer-Encoding").empty();
}

std::size_t HeadSize(MHD_Connection* connection) {
  const MHD_ConnectionInfo* info =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
  return info == nullptr ? 0 : info->header_size;
}

HttpAnswer Refusal(int code, std::string text) { return {.code = code, .body = std::move(text)}; }

}  // namespace

struct HttpLoop::Impl {
  struct Connection {
    int fd = -1;
    bool asks = false;   // its request is with the handler, or its answer is being sent
    bool waits = false;  // for the handler
    bool ended = false;  // by the server; the library closes it
    Instant asked;
  };

  Impl(HttpHandler what, Options how)
      : handler(std::move(what)), options(std::move(how)), places(options.places) {}

  // ---- libmicrohttpd's callbacks ----

  static Connection* ContextOf(MHD_Connection* connection) {
    const MHD_ConnectionInfo* info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info == nullptr ? nullptr : static_cast<Connection*>(info->socket_context);
  }

  static void OnConnection(void* self, MHD_Connection* connection, void** context,
                           MHD_ConnectionNotificationCode what) {
    auto* impl = static_cast<Impl*>(self);
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
      const int fd =
          MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
      Connection& added = impl->connections[connection];
      added.fd = fd;
      *context = &added;
    } else {
      const auto closed = impl->connections.find(connection);
      impl->places.Leave(closed->second.fd);
      impl->connections.erase(closed);
    }
  }

  static MHD_Result OnRequest(void* self, MHD_Connection* connection, const char* path,
                              const char* method, const char* /*version*/, const char* /*data*/,
                              std::size_t* /*size*/, void** /*context*/) {
    try {
      return static_cast<Impl*>(self)->Ask(connection, path, method);
    } catch (const std::exception&) {
      return MHD_NO;  // ends the connection
    }
  }

  static void OnAnswered(void* self, MHD_Connection* connection, void** /*context*/,
                         MHD_RequestTerminationCode /*why*/) {
    auto* impl = static_cast<Impl*>(self);
    Connection* of = ContextOf(connection);
    if (of == nullptr) return;
    of->asks = of->waits = false;
    impl->places.Answered(of->fd, impl->now);
  }

  // ---- requests ----

  MHD_Result Ask(MHD_Connection* connection, const char* path, const std::string& method) {
    Connection* of = ContextOf(connection);
    if (of->ended) return MHD_NO;
    const bool first = !std::exchange(of->asks, true);
    if (first) {
      of->asked = now;
      places.Asked(of->fd, now);
    }
    of->waits = false;
    HttpRequest request{.head = method == MHD_HTTP_METHOD_HEAD,
                        .path = path,
                        .headers = FieldsOf(connection, MHD_HEADER_KIND),
                        .parameters = FieldsOf(connection, MHD_GET_ARGUMENT_KIND),
                        .waited = now - of->asked};
    // The library asks again where nothing more is to come. It ends the connection after an answer
    // to its first question, so that is where more may come that nobody will read.
    const bool body = HasBody(request);
    const bool expects = !request.Headers("Expect").empty();
    if (first && !body && !expects) return MHD_YES;
    if (!request.head && method != MHD_HTTP_METHOD_GET) {
      return Send(connection, Refusal(MHD_HTTP_METHOD_NOT_ALLOWED, "GET and HEAD are allowed\n"));
    }
    if (body) {
      return Send(connection, Refusal(MHD_HTTP_CONTENT_TOO_LARGE, "a body is not allowed\n"));
    }
    if (expects) {
      return Send(connection, Refusal(MHD_HTTP_EXPECTATION_FAILED, "Expect is not allowed\n"));
    }
    if (HeadSize(connection) > kMaxHead) {
      return Send(connection,
                  Refusal(MHD_HTTP_REQUEST_HEADER_FIELDS_TOO_LARGE, "the head is too large\n"));
    }
    std::optional<HttpAnswer> answer;
    try {
      answer = handler(request);
    } catch (const std::exception&) {
      answer = Refusal(MHD_HTTP_INTERNAL_SERVER_ERROR, "the request failed\n");
    }
    if (answer) return Send(connection, *answer);
    of->waits = true;
    again_at = again_at ? std::min(*again_at, now + kAgain) : now + kAgain;
    MHD_suspend_connection(connection);
    return MHD_YES;
  }

  MHD_Result Send(MHD_Connection* connection, const HttpAnswer& answer) {
    auto shared = std::make_unique<HttpBody>(answer.body);
    const std::string_view text = shared->text();
    MHD_Response* response = MHD_create_response_from_buffer_with_free_callback_cls(
        text.size(), const_cast<char*>(text.data()),
        [](void* body) { delete static_cast<HttpBody*>(body); }, shared.get());
    if (response == nullptr) return MHD_NO;
    (void)shared.release();
    const auto add = [response](const std::string& name, const std::string& value) {
      (void)MHD_add_response_header(response, name.c_str(), value.c_str());
    };
    add(MHD_HTTP_HEADER_CONTENT_TYPE, answer.type);
    if (answer.code == MHD_HTTP_METHOD_NOT_ALLOWED) add(MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    for (const auto& [name, value] : options.headers) add(name, value);
    const MHD_Result queued =
        MHD_queue_response(connection, static_cast<unsigned>(answer.code), response);
    MHD_destroy_response(response);
    return queued;
  }

  void End(int fd) {
    for (auto& [connection, of] : connections) of.ended = of.ended || of.fd == fd;
    Break(fd);
  }

  void ResumeWaiting() {
    again_at.reset();
    for (auto& [connection, of] : connections) {
      if (of.waits) MHD_resume_connection(connection);
    }
  }

  const HttpHandler handler;
  const Options options;
  HttpPlaces places;
  std::map<MHD_Connection*, Connection> connections;
  std::optional<Instant> again_at;  // requests that wait are given again
  Instant now;
  MHD_Daemon* daemon = nullptr;
};

HttpLoop::HttpLoop(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<HttpLoop>> HttpLoop::Make(HttpHandler handler, Options options) {
  // Those that end count until the next turn.
  const auto most = static_cast<unsigned>(2 * options.places.in_all + 64);
  auto impl = std::make_unique<Impl>(std::move(handler), std::move(options));
  impl->daemon = MHD_start_daemon(
      MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME, 0, nullptr, nullptr,
      &Impl::OnRequest, impl.get(), MHD_OPTION_CONNECTION_MEMORY_LIMIT, kMemory,
      MHD_OPTION_CONNECTION_LIMIT, most, MHD_OPTION_STRICT_FOR_CLIENT, 1,
      MHD_OPTION_NOTIFY_CONNECTION, &Impl::OnConnection, impl.get(), MHD_OPTION_NOTIFY_COMPLETED,
      &Impl::OnAnswered, impl.get(), MHD_OPTION_END);
  if (impl->daemon == nullptr) {
    return Status(Code::kUnavailable,
                  "the HTTP library does not start: no memory, or no "
                  "descriptor");
  }
  return std::unique_ptr<HttpLoop>(new HttpLoop(std::move(impl)));
}

HttpLoop::~HttpLoop() {
  impl_->ResumeWaiting();  // the library ends the process if one is suspended
  MHD_stop_daemon(impl_->daemon);
}

void HttpLoop::Add(int fd, std::string peer, Instant now) {
  impl_->now = now;
  // The library keeps the address, and nobody asks for it.
  const sockaddr unspecified{};
  const std::size_t before = impl_->connections.size();
  // Closes the descriptor where it fails.
  if (MHD_add_connection(impl_->daemon, fd, &unspecified, sizeof unspecified) != MHD_YES) return;
  if (impl_->connections.size() == before) return;
  if (const auto ends = impl_->places.Enter(fd, std::move(peer), now)) impl_->End(*ends);
}

void HttpLoop::EndSilent() {
  if (const auto ends = impl_->places.TakeSilent()) impl_->End(*ends);
}

void HttpLoop::Turn(Instant now) {
  impl_->now = now;
  for (const int late : impl_->places.TakeLate(now)) impl_->End(late);
  if (impl_->again_at && *impl_->again_at <= now) impl_->ResumeWaiting();
  (void)MHD_run(impl_->daemon);
}

int HttpLoop::fd() const {
  return MHD_get_daemon_info(impl_->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
}

std::optional<Instant> HttpLoop::next_turn() const {
  MHD_UNSIGNED_LONG_LONG wait_ms = 0;
  if (MHD_get_timeout(impl_->daemon, &wait_ms) == MHD_YES && wait_ms == 0) return impl_->now;
  const std::optional<Instant> deadline = impl_->places.next_deadline();
  if (!deadline || !impl_->again_at) return deadline ? deadline : impl_->again_at;
  return std::min(*deadline, *impl_->again_at);
}

std::size_t HttpLoop::open() const { return impl_->connections.size(); }

}  // namespace prd
