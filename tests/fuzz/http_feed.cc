#include "tests/fuzz/http_feed.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/prng.h"
#include "common/io/http_loop.h"
#include "tests/io/http_peer.h"

namespace prd {
namespace {

constexpr std::size_t kMost = 64 << 10;  // of an input that is fed
constexpr Instant kStart{100 * kSecond};
constexpr DurationNs kAnswerWaits = 50 * kMillisecond;

std::string Printed(const HttpRequest& request) {
  std::string text = (request.head ? "HEAD " : "GET ") + request.path + "\n";
  for (const auto& [name, value] : request.headers) text += name + ": " + value + "\n";
  for (const auto& [name, value] : request.parameters) text += name + "=" + value + "\n";
  return text;
}

// One connection to a server of its own.
class HttpFeed {
 public:
  HttpFeed() {
    HttpLoop::Options options;
    options.headers = {{"Cache-Control", "no-store"}};
    auto loop = HttpLoop::Make([this](const HttpRequest& request) { return Answer(request); },
                               std::move(options));
    PRD_CHECK(loop.ok());
    loop_ = std::move(*loop);
    peer_ = std::make_unique<HttpPeer>(*loop_, "peer", now_);
  }

  void Send(std::string_view piece) {
    (void)peer_->Write(piece);
    Turn();
  }
  // No more bytes come.
  void End() {
    while (now_ < kStart + 2 * kSecond) {
      now_ = now_ + 100 * kMillisecond;
      Turn();
    }
    now_ = now_ + 40 * kSecond;
    Turn();
    if (loop_->open() != 0 || !peer_->Ended()) fault_ = "a connection outlives its deadlines";
    if (!answers_.empty() && !answers_.starts_with("HTTP/1.")) fault_ = "no answer: " + answers_;
  }

  const std::string& fault() const { return fault_; }
  const std::vector<std::string>& requests() const { return requests_; }
  // The last answer's, if its head came in one piece.
  const std::string& answers() const { return answers_; }

 private:
  void Turn() {
    TurnAll(*loop_, now_);
    answers_ += peer_->Read();
  }

  std::optional<HttpAnswer> Answer(const HttpRequest& request) {
    const std::string printed = Printed(request);
    if (printed.size() > 2 * HttpLoop::kMaxHead) fault_ = "a head over its bound";
    if (request.path.size() % 4 == 3 && request.waited < kAnswerWaits) return std::nullopt;
    requests_.push_back(printed);
    return HttpAnswer{.code = request.path.size() > 20 ? 404 : 200,
                      .body = std::string(100 * (request.path.size() % 7), 'x')};
  }

  Instant now_ = kStart;
  std::string fault_;
  std::string answers_;
  std::vector<std::string> requests_;
  std::unique_ptr<HttpLoop> loop_;
  std::unique_ptr<HttpPeer> peer_;
};

}  // namespace

std::string FeedHttp(std::string_view bytes, HttpTally* tally) {
  bytes = bytes.substr(0, kMost);
  HttpFeed whole;
  whole.Send(bytes);
  whole.End();
  if (!whole.fault().empty()) return whole.fault();
  tally->asked += whole.requests().size();
  tally->silent += whole.answers().empty() ? 1 : 0;
  tally->refused += whole.answers().find("HTTP/1.1 4") != std::string::npos ? 1 : 0;

  HttpFeed pieces;
  Prng prng(bytes.size());
  for (std::string_view rest = bytes; !rest.empty();) {
    // Few enough for a long input.
    const std::size_t size = 1 + prng.Below(1 + prng.Below(16 + bytes.size() / 16));
    pieces.Send(rest.substr(0, size));
    rest.remove_prefix(std::min(size, rest.size()));
  }
  pieces.End();
  if (!pieces.fault().empty()) return pieces.fault();
  if (pieces.requests() == whole.requests()) return "";
  std::string text = "in pieces other requests:\n";
  for (const std::string& request : whole.requests()) text += "<" + request + ">\n";
  text += "and\n";
  for (const std::string& request : pieces.requests()) text += "<" + request + ">\n";
  return text;
}

}  // namespace prd
