#include "common/io/connection_claims.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/base/time.h"
#include "common/io/connection_facts.h"
#include "common/io/system_error.h"

namespace prd {
namespace {

// Until the guard knows the connection, at most.
constexpr DurationNs kKeepFor = kSecond;

}  // namespace

ConnectionClaims::~ConnectionClaims() {
  if (told_ >= 0) ::close(told_);
}

Status ConnectionClaims::Open() {
  told_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  return told_ < 0 ? SystemError(Code::kUnavailable, "no eventfd", errno) : Status::Ok();
}

void ConnectionClaims::Keep(std::int64_t now_ns, int fd, std::uint64_t cookie,
                            std::uint64_t claim) {
  (void)Take(fd, cookie);
  kept_[fd] = {.claim = claim, .cookie = cookie, .since_ns = now_ns};
}

std::uint64_t ConnectionClaims::Take(int fd, std::optional<std::uint64_t> cookie) {
  const auto it = kept_.find(fd);
  if (it == kept_.end()) return 0;
  const Kept kept = it->second;
  kept_.erase(it);
  if (kept.cookie == cookie) return kept.claim;
  End(kept.claim);
  return 0;
}

void ConnectionClaims::Expire(std::int64_t now_ns) {
  std::erase_if(kept_, [&](const auto& entry) {
    const auto& [fd, kept] = entry;
    const bool same = CookieOf(fd) == kept.cookie;
    if (!same) End(kept.claim);
    return !same || now_ns - kept.since_ns > kKeepFor;
  });
}

void ConnectionClaims::End(std::uint64_t claim) {
  ended_.push_back(claim);
  if (ended_.size() == 1) (void)::eventfd_write(told_, 1);
}

std::vector<std::uint64_t> ConnectionClaims::TakeEnded() {
  if (ended_.empty()) return {};
  eventfd_t count = 0;
  (void)::eventfd_read(told_, &count);
  return std::exchange(ended_, {});
}

}  // namespace prd
