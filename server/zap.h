// Admits known CURVE keys (ZeroMQ RFC 27): answers libzmq's request for every new connection.
// Without this handler every key would be admitted.
#ifndef PRD_SERVER_ZAP_H_
#define PRD_SERVER_ZAP_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>
#include <zmq.hpp>

#include "common/io/log.h"
#include "prd/status.h"

namespace prd {

inline constexpr std::string_view kZapDomain = "prd";

class ZapHandler {
 public:
  // One per context, before any socket that it is to guard. `keys` are Z85.
  static Result<std::unique_ptr<ZapHandler>> Make(zmq::context_t& context,
                                                  const std::vector<std::string>& keys);

  // From now on these keys are admitted. Existing connections stay.
  void SetKeys(const std::vector<std::string>& keys);

  // Answers the waiting requests.
  void Serve();

  zmq::socket_ref socket() { return socket_; }
  std::uint64_t denied() const { return denied_; }

 private:
  explicit ZapHandler(zmq::socket_t socket) : socket_(std::move(socket)) {}
  bool Answer(const std::vector<std::string>& question);

  zmq::socket_t socket_;
  std::set<std::string> keys_;  // 32 bytes each
  std::uint64_t denied_ = 0;
  LogLimit denied_log_{10 * kSecond};
};

}  // namespace prd

#endif  // PRD_SERVER_ZAP_H_
