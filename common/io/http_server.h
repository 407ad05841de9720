// An HTTP server: a listening TCP socket, and a thread that serves its connections (http_loop.h).
// Many connections of one peer, slow ones too, keep no other peer from an answer.
//
// A peer is the host that a connection comes from, or the user, where it comes from this host and
// the kernel tells (socket_peer.h).
#ifndef PRD_COMMON_IO_HTTP_SERVER_H_
#define PRD_COMMON_IO_HTTP_SERVER_H_

#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/base/time.h"
#include "common/io/http_loop.h"
#include "common/io/socket_peer.h"
#include "prd/status.h"

namespace prd {

class HttpServer {
 public:
  struct Options {
    HttpLoop::Options loop;
    // Connections but of root and of this process's user end before anything of them is read, where
    // the kernel tells users. For a loopback address.
    bool own_user_only = false;
  };

  // "127.0.0.1:9464", "[::]:9464" (IPv4 too), "localhost:0", "*:9464" (IPv4); port 0: any free one.
  // Connections wait until Start.
  static Result<std::unique_ptr<HttpServer>> Listen(const std::string& address);
  // The handler is called in the server's thread, which has all signals blocked.
  // REQUIRES: it has not been started.
  Status Start(HttpHandler handler, const Options& options);
  // Ends all connections.
  ~HttpServer();

  int port() const { return port_; }

 private:
  explicit HttpServer(int listening);
  void Run();
  int TimeoutMs() const;
  void Accept(Instant now);
  void Admit(int fd, Instant now);

  const int listening_;
  const int stop_;  // readable: the thread is to end
  const int port_;
  const PeerLookup peers_;
  bool own_user_only_ = false;
  std::unique_ptr<HttpLoop> loop_;
  std::optional<Instant> accept_at_;  // none are accepted before, for want of descriptors
  std::thread thread_;
};

}  // namespace prd

#endif  // PRD_COMMON_IO_HTTP_SERVER_H_
