// Claims on connections that the guard does not know (yet, or any more), and those whose
// connections have ended. Not thread safe.
#ifndef PRD_COMMON_IO_CONNECTION_CLAIMS_H_
#define PRD_COMMON_IO_CONNECTION_CLAIMS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "prd/status.h"

namespace prd {

class ConnectionClaims {
 public:
  ConnectionClaims() = default;
  ~ConnectionClaims();
  ConnectionClaims(const ConnectionClaims&) = delete;
  ConnectionClaims& operator=(const ConnectionClaims&) = delete;

  // Before all else.
  Status Open();

  // The connection of this descriptor and cookie is claimed. A claim on another one of this
  // descriptor has ended.
  void Keep(std::int64_t now_ns, int fd, std::uint64_t cookie, std::uint64_t claim);
  // The claim that was kept on it; 0: none is. The same.
  std::uint64_t Take(int fd, std::optional<std::uint64_t> cookie);
  bool keeps() const { return !kept_.empty(); }
  // Drops claims that were kept for long, and those whose connections have ended.
  void Expire(std::int64_t now_ns);

  // The claim's connection has ended.
  void End(std::uint64_t claim);
  // All since the last call. While there are some, the descriptor is readable.
  std::vector<std::uint64_t> TakeEnded();
  int descriptor() const { return told_; }

 private:
  struct Kept {
    std::uint64_t claim = 0;
    std::uint64_t cookie = 0;
    std::int64_t since_ns = 0;
  };

  int told_ = -1;             // an eventfd
  std::map<int, Kept> kept_;  // by descriptor
  std::vector<std::uint64_t> ended_;
};

}  // namespace prd

#endif  // PRD_COMMON_IO_CONNECTION_CLAIMS_H_
