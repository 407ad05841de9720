#include "tests/server/daemon_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <sstream>
#include <zmq.hpp>

#include "common/io/clock.h"
#include "common/io/codec.h"

namespace prd {
namespace {

// The child's stdout and stderr go to the file. The child allocates nothing: another thread of this
// process may have held the allocator's locks at the fork.
pid_t Spawn(const std::vector<std::string>& flags, const std::string& log,
            const std::map<std::string, std::string>& environment) {
  std::string binary = PRD_BIN_DIR "/prd";
  std::vector<std::string> words = flags;
  std::vector<char*> arguments{binary.data()};
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  std::map<std::string, std::string> all = environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) all.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "JOURNAL_STREAM"}) {
    if (!environment.contains(name)) all.erase(name);
  }
  std::vector<std::string> pairs;
  for (const auto& [name, value] : all) pairs.push_back(name + "=" + value);
  std::vector<char*> variables;
  for (std::string& pair : pairs) variables.push_back(pair.data());
  variables.push_back(nullptr);

  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(out, STDERR_FILENO);
  ::execve(binary.c_str(), arguments.data(), variables.data());
  ::_exit(127);
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Until `done`, or the timeout is over.
template <typename Done>
bool WaitUntil(Done done) {
  const std::int64_t end = MonotonicNs() + kTimeoutMs * kMillisecond;
  while (!done()) {
    if (MonotonicNs() > end) return false;
    ::poll(nullptr, 0, 5);
  }
  return true;
}

// Without taking notice of its end.
bool HasEnded(pid_t pid) {
  siginfo_t info{};
  const int result = ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT);
  return result != 0 || info.si_pid == pid;
}

// -1: has not ended in time, or was killed.
int WaitFor(pid_t pid) {
  int status = 0;
  const bool ended = WaitUntil([&] { return ::waitpid(pid, &status, WNOHANG) == pid; });
  if (!ended) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

Ended RunDaemon(const std::vector<std::string>& flags) {
  const ScratchDir dir;
  const pid_t pid = Spawn(flags, dir / "log", {});
  const int code = WaitFor(pid);
  return {.code = code, .output = ReadFile(dir / "log")};
}

DaemonProcess::DaemonProcess(const std::string& jobs, const std::string& daemon) {
  WriteConfig(jobs, daemon);
}

DaemonProcess::~DaemonProcess() {
  if (pid_ > 0) Kill();
  if (notices_ >= 0) ::close(notices_);
}

void DaemonProcess::WriteConfig(const std::string& jobs, const std::string& daemon) {
  std::ofstream out(config());
  out << "[daemon]\nstate_dir = \"" << state_dir() << "\"\n";
  if (daemon.find("admin =") == std::string::npos) {
    out << "admin = \"ipc://" << (dir_ / "admin.sock") << "\"\n";
  }
  if (daemon.find("listen") == std::string::npos) {
    out << "listen = \"ipc://" << (dir_ / "workers.sock") << "\"\n";
  }
  out << daemon << "\n" << jobs << "\n";
}

bool DaemonProcess::Launch(const std::map<std::string, std::string>& environment) {
  if (notices_ >= 0) ::close(notices_);
  const std::string path = dir_ / "notify.sock";
  ::unlink(path.c_str());
  notices_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  if (::bind(notices_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return false;
  }
  log_start_ = ReadFile(dir_ / "log").size();
  std::map<std::string, std::string> all = environment;
  all["NOTIFY_SOCKET"] = path;
  pid_ = Spawn({"--config", config()}, dir_ / "log", all);
  return pid_ > 0;
}

bool DaemonProcess::Start(const std::map<std::string, std::string>& environment) {
  return Launch(environment) && WaitForNotice("READY=1");
}

void DaemonProcess::Signal(int number) { ::kill(pid_, number); }

void DaemonProcess::Kill() {
  Signal(SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

int DaemonProcess::WaitForEnd() {
  const int code = WaitFor(pid_);
  pid_ = -1;
  return code;
}

std::string DaemonProcess::NextNotice() {
  pollfd item{.fd = notices_, .events = POLLIN, .revents = 0};
  const std::int64_t end = MonotonicNs() + kTimeoutMs * kMillisecond;
  while (::poll(&item, 1, 50) == 0) {
    // Gone without a word: nothing more will come.
    if (MonotonicNs() > end || HasEnded(pid_)) return "";
  }
  char buffer[4096];
  const ssize_t size = ::recv(notices_, buffer, sizeof buffer, 0);
  return size > 0 ? std::string(buffer, static_cast<std::size_t>(size)) : "";
}

bool DaemonProcess::WaitForNotice(const std::string& text) {
  for (;;) {
    const std::string notice = NextNotice();
    if (notice.empty()) return false;
    if (notice.find(text) != std::string::npos) return true;
  }
}

bool DaemonProcess::WaitForLog(const std::string& text) {
  return WaitUntil([&] { return log().find(text) != std::string::npos; });
}

AdminReply DaemonProcess::Ask(const AdminRequest& request,
                              const std::optional<std::pair<CurveKeys, std::string>>& keys) {
  zmq::context_t context;
  zmq::socket_t socket(context, zmq::socket_type::req);
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::rcvtimeo, kTimeoutMs);
  if (keys) {
    socket.set(zmq::sockopt::curve_publickey, keys->first.public_key);
    socket.set(zmq::sockopt::curve_secretkey, keys->first.secret_key);
    socket.set(zmq::sockopt::curve_serverkey, keys->second);
  }
  socket.connect(admin());
  socket.send(zmq::buffer(Encode(request)), zmq::send_flags::none);
  zmq::message_t reply;
  if (!socket.recv(reply)) return AdminError{.code = Code::kDeadlineExceeded, .message = "none"};
  const auto decoded = DecodeAdminReply({static_cast<const char*>(reply.data()), reply.size()});
  if (!decoded.ok()) return AdminError{.code = Code::kDataLoss, .message = "malformed"};
  return *decoded;
}

std::uint64_t DaemonProcess::Counter(const std::string& name) {
  const AdminReply reply = Ask(GetStatus{});
  const auto* status = std::get_if<DaemonStatus>(&reply);
  if (status == nullptr) return ~0ull;
  for (const auto& [counter, value] : status->counters) {
    if (counter == name) return value;
  }
  return ~0ull;
}

std::string DaemonProcess::Logged(const std::string& before) const {
  const std::string text = log();
  const std::size_t at = text.rfind(before);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + before.size();
  return text.substr(begin, text.find(',', begin) - begin);
}

std::string DaemonProcess::endpoint() const { return Logged(" listens on "); }

std::string DaemonProcess::admin() const { return Logged(", admin "); }

std::string DaemonProcess::log() const { return ReadFile(dir_ / "log").substr(log_start_); }

}  // namespace prd
