// Tells systemd the daemon's state (sd_notify(3)) without its library: one datagram per message to
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
  // From NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID. An error names the variable that is wrong.
  // If none is set, messages go nowhere.
  static Result<Notifier> FromEnvironment();

  Notifier(Notifier&& other) noexcept;
  Notifier& operator=(Notifier&& other) noexcept;
  ~Notifier();

  // "READY=1", "STATUS=...", several lines. Lost if systemd does not read; never blocks for long.
  void Send(const std::string& message) const;
  void Ready() const { Send("READY=1"); }
  void Stopping() const { Send("STOPPING=1"); }
  void Reloading() const;
  // "STATUS=...", if it is another one than before.
  void TellStatus(const std::string& status);
  // "WATCHDOG=1", if it is due at `now`; the first one is due an interval after the first call.
  void Alive(Instant now);
  std::optional<Instant> alive_at() const { return alive_at_; }

  bool enabled() const { return fd_ >= 0; }
  // How often "WATCHDOG=1" is due: half of systemd's limit. nullopt: systemd does not want it.
  std::optional<DurationNs> watchdog_interval() const { return watchdog_interval_; }

 private:
  int fd_ = -1;
  sockaddr_un address_{};
  socklen_t length_ = 0;
  std::optional<DurationNs> watchdog_interval_;
  std::optional<Instant> alive_at_;
  std::string told_status_;
};

}  // namespace prd

#endif  // PRD_SERVER_NOTIFY_H_
