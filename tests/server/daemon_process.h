// The real daemon as a child process with a state directory of its own.
#ifndef PRD_TESTS_SERVER_DAEMON_PROCESS_H_
#define PRD_TESTS_SERVER_DAEMON_PROCESS_H_

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/admin.h"
#include "common/io/curve.h"
#include "tests/server/scratch_dir.h"

namespace prd {

// For whatever a test waits for; none depends on being quicker.
inline constexpr int kTimeoutMs = 60'000;

struct Ended {
  int code = -1;  // exit code, or -1 when it did not exit by itself
  std::string output;
};
// bin/prd with these flags, until it ends.
Ended RunDaemon(const std::vector<std::string>& flags);

class DaemonProcess {
 public:
  // `jobs` and `daemon` are TOML: [[job]] and [[identity]] tables, and keys of [daemon] besides
  // state_dir and, unless they are there, admin and listen (ipc endpoints).
  explicit DaemonProcess(const std::string& jobs, const std::string& daemon = "");
  ~DaemonProcess();

  void WriteConfig(const std::string& jobs, const std::string& daemon = "");
  // Does not wait. False: it cannot be started.
  bool Launch(const std::map<std::string, std::string>& environment = {});
  // Waits until it is ready. False: it ended, or never was; see log().
  bool Start(const std::map<std::string, std::string>& environment = {});
  void Signal(int number);
  void Kill();       // SIGKILL, and waits
  int WaitForEnd();  // the exit code; -1 when it was killed, or does not end

  // The next message to the service manager; empty when none comes.
  std::string NextNotice();
  // Waits until a notice, or the log, contains the text.
  bool WaitForNotice(const std::string& text);
  bool WaitForLog(const std::string& text);

  // One request, over a connection of its own, with keys and the daemon's public key if any;
  // kDeadlineExceeded when there is no answer.
  AdminReply Ask(const AdminRequest& request,
                 const std::optional<std::pair<CurveKeys, std::string>>& keys = {});
  std::uint64_t Counter(const std::string& name);

  // Where it listens: the real port where the config says *. Known once it has started.
  std::string endpoint() const;
  std::string admin() const;
  std::string log() const;
  std::string state_dir() const { return dir_ / "state"; }
  std::string config() const { return dir_ / "prd.toml"; }
  const ScratchDir& dir() const { return dir_; }
  pid_t pid() const { return pid_; }

 private:
  std::string Logged(const std::string& before) const;

  ScratchDir dir_;
  pid_t pid_ = -1;
  int notices_ = -1;
  std::size_t log_start_ = 0;  // of the last Start
};

}  // namespace prd

#endif  // PRD_TESTS_SERVER_DAEMON_PROCESS_H_
