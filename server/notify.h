// The service manager's side channel (sd_notify(3)), spoken directly: one datagram per message to
// the socket that NOTIFY_SOCKET names.
#ifndef PRD_SERVER_NOTIFY_H_
#define PRD_SERVER_NOTIFY_H_

#include <sys/socket.h>
#include <sys/un.h>

#include <optional>
#include <string>

#include "common/base/time.h"
#include "prd/status.h"

namespace prd {

class Notifier {
 public:
  Notifier() = default;  // tells nobody
  // By NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID. What cannot be right is an error that names
  // the variable; none set means that nobody listens.
  static Result<Notifier> FromEnvironment();

  Notifier(Notifier&& other) noexcept;
  Notifier& operator=(Notifier&& other) noexcept;
  ~Notifier();

  // "READY=1", "STATUS=...", several lines. Lost if nobody reads; never blocks for long.
  void Send(const std::string& message) const;
  void Ready() const { Send("READY=1"); }
  void Stopping() const { Send("STOPPING=1"); }
  void Reloading() const;

  bool enabled() const { return fd_ >= 0; }
  // How often "WATCHDOG=1" is due: half of what the service manager waits. nullopt: not wanted.
  std::optional<DurationNs> watchdog_interval() const { return watchdog_interval_; }

 private:
  int fd_ = -1;
  sockaddr_un address_{};
  socklen_t length_ = 0;
  std::optional<DurationNs> watchdog_interval_;
};

}  // namespace prd

#endif  // PRD_SERVER_NOTIFY_H_
