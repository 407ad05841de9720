// What a handler of HTTP requests sees and gives. Heads are small, and no request has a body.
#ifndef PRD_COMMON_IO_HTTP_H_
#define PRD_COMMON_IO_HTTP_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/time.h"

namespace prd {

struct HttpRequest {
  using Fields = std::vector<std::pair<std::string, std::string>>;

  bool head = false;  // HEAD: the answer's body is not sent
  std::string path;   // "/metrics"; decoded, without the parameters
  Fields headers;     // in turn; names as they came
  Fields parameters;  // behind the "?", decoded
  // How long the request has waited since it was first given to the handler.
  DurationNs waited = 0;

  // All values of this header. Case does not matter.
  std::vector<std::string> Headers(std::string_view name) const;
  // The first value of this parameter.
  std::optional<std::string> Parameter(std::string_view name) const;
};

// A text that connections share while they send it.
class HttpBody {
 public:
  HttpBody() = default;
  HttpBody(std::string text)  // NOLINT: implicit on purpose
      : HttpBody(std::make_shared<const std::string>(std::move(text))) {}
  HttpBody(std::shared_ptr<const std::string> text)  // NOLINT: implicit on purpose
      : text_(*text), owner_(std::move(text)) {}
  // `text` lives for ever.
  static HttpBody OfConstant(std::string_view text) {
    HttpBody body;
    body.text_ = text;
    return body;
  }

  std::string_view text() const { return text_; }

 private:
  std::string_view text_;
  std::shared_ptr<const void> owner_;
};

struct HttpAnswer {
  int code = 200;
  std::string type = "text/plain; charset=utf-8";
  HttpBody body;
};

// Is called in the server's thread, and does not block. Without an answer the request waits, and is
// given again after a moment.
using HttpHandler = std::function<std::optional<HttpAnswer>(const HttpRequest&)>;

}  // namespace prd

#endif  // PRD_COMMON_IO_HTTP_H_
