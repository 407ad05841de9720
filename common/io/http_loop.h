// The connections of an HTTP server, driven by whoever owns this: it has no thread and no clock.
// GNU libmicrohttpd reads requests and writes answers; who stays is decided here (http_places.h).
//
// - GET and HEAD are answered; other methods get 405, a body 413, Expect 417.
// - A head of more than 16 KiB gets 431. Beyond 32 KiB for the head, what it is parsed into and the
//   answer's head, a connection has no memory: such heads get 431 (or 414) and the connection ends.
// - An answer's text is not copied. A connection that does not take it ends at its deadline.
#ifndef PRD_COMMON_IO_HTTP_LOOP_H_
#define PRD_COMMON_IO_HTTP_LOOP_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "common/base/time.h"
#include "common/io/http.h"
#include "common/io/http_places.h"
#include "prd/status.h"

namespace prd {

class HttpLoop {
 public:
  static constexpr std::size_t kMaxHead = 16 << 10;

  struct Options {
    HttpPlaces::Options places;
    HttpRequest::Fields headers;  // of every answer
  };

  static Result<std::unique_ptr<HttpLoop>> Make(HttpHandler handler, Options options);
  ~HttpLoop();

  // Takes the descriptor of a connection, which may end another one.
  void Add(int fd, std::string peer, Instant now);
  // Ends the oldest connection that has never brought a whole request, if there is one, so that its
  // descriptor is free after the next Turn.
  void EndSilent();
  // Reads, answers and ends connections, as far as that goes without waiting.
  void Turn(Instant now);

  // Readable: Turn has something to do.
  int fd() const;
  // Turn is to be called then, if not earlier.
  std::optional<Instant> next_turn() const;
  std::size_t open() const;

 private:
  struct Impl;
  explicit HttpLoop(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace prd

#endif  // PRD_COMMON_IO_HTTP_LOOP_H_
