#include "tools/prdbench/processes.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

#include "tools/prdbench/interrupts.h"

namespace prd::bench {
namespace {

constexpr int kEndTimeoutMs = 5'000;
constexpr int kLookMs = 200;              // for an interruption, while nothing comes
constexpr std::size_t kLogShown = 4'000;  // bytes, from the end

int Become(const std::vector<std::string>& command, const std::string& log) {
  const int in = open("/dev/null", O_RDONLY);
  const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(out, STDERR_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  std::fprintf(stderr, "cannot run %s: %s\n", arguments[0], std::strerror(errno));
  return 127;
}

std::string HowItEnded(int status) {
  if (WIFSIGNALED(status)) {
    return std::string("was ended by signal ") + std::to_string(WTERMSIG(status)) + " (" +
           strsignal(WTERMSIG(status)) + ")";
  }
  return "has failed with exit code " + std::to_string(WEXITSTATUS(status));
}

void Close(int* fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

}  // namespace

Result<Process> Process::Start(std::string name, bool pipes, const Body& body) {
  Process process;
  process.name_ = std::move(name);
  int down[2] = {-1, -1};
  int up[2] = {-1, -1};
  if (pipes && pipe2(down, O_CLOEXEC) != 0) return Status(Code::kUnavailable, "no more pipes");
  process.to_ = down[1];
  if (pipes && pipe2(up, O_CLOEXEC) != 0) {
    close(down[0]);
    return Status(Code::kUnavailable, "no more pipes");
  }
  process.from_ = up[0];
  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    LeaveInterrupts();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) std::_Exit(1);
    Close(&process.to_);
    Close(&process.from_);
    std::_Exit(body(down[0], up[1]));
  }
  Close(&down[0]);
  Close(&up[1]);
  if (pid < 0) {
    return Status(Code::kUnavailable, "cannot start " + process.name_ + ": no more processes");
  }
  process.pid_ = pid;
  process.pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  return process;
}

Result<Process> Process::Fork(std::string name, const Body& body) {
  return Start(std::move(name), false, body);
}

Result<Process> Process::ForkWithPipes(std::string name, const Body& body) {
  return Start(std::move(name), true, body);
}

Result<Process> Process::Run(std::string name, const std::vector<std::string>& command,
                             const std::string& log) {
  return Start(std::move(name), false, [&](int, int) { return Become(command, log); });
}

Process& Process::operator=(Process&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(pid_, other.pid_);
  std::swap(pidfd_, other.pidfd_);
  std::swap(to_, other.to_);
  std::swap(from_, other.from_);
  std::swap(status_, other.status_);
  std::swap(pending_, other.pending_);
  return *this;
}

Process::~Process() {
  Close(&to_);
  Close(&from_);
  Terminate();
  if (running()) {
    pollfd item{pidfd_, POLLIN, 0};
    poll(&item, 1, kEndTimeoutMs);
  }
  Kill();
}

void Process::Terminate() const {
  if (pid_ > 0) kill(pid_, SIGTERM);
}

void Process::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  int status = 0;
  waitpid(pid_, &status, 0);
  Ended(status);
}

void Process::Ended(int status) {
  status_ = status;
  pid_ = -1;
  Close(&pidfd_);
}

bool Process::running() {
  int status = 0;
  if (pid_ > 0 && waitpid(pid_, &status, WNOHANG) == pid_) Ended(status);
  return pid_ > 0;
}

Status Process::Check() {
  if (running() || (WIFEXITED(status_) && WEXITSTATUS(status_) == 0)) return Status::Ok();
  return Status(Code::kUnavailable, name_ + " " + HowItEnded(status_));
}

double Process::CpuUs() const {
  std::ifstream stat("/proc/" + std::to_string(pid_) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(stat), {}};
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  double user = 0;
  double system = 0;
  fields >> user >> system;
  return (user + system) * 1e6 / static_cast<double>(sysconf(_SC_CLK_TCK));
}

Status Process::WriteLine(const std::string& line) {
  const std::string text = line + "\n";
  if (write(to_, text.data(), text.size()) == static_cast<ssize_t>(text.size())) {
    return Status::Ok();
  }
  return Status(Code::kUnavailable, name_ + " is gone");
}

Result<std::string> Process::ReadLine(int timeout_ms) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    const std::size_t end = pending_.find('\n');
    if (end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return line;
    }
    if (InterruptedBy() != 0) return Status(Code::kCancelled, "interrupted");
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return Status(Code::kDeadlineExceeded, name_ + " does not answer");
    pollfd item{from_, POLLIN, 0};
    const auto wait = std::min<std::int64_t>(left.count(), kLookMs);
    if (poll(&item, 1, static_cast<int>(wait)) <= 0) continue;
    char buffer[4096];
    const ssize_t got = read(from_, buffer, sizeof buffer);
    if (got <= 0) return Status(Code::kUnavailable, name_ + " is gone");
    pending_.append(buffer, static_cast<std::size_t>(got));
  }
}

Crew::~Crew() {
  for (const Process& member : members_) member.Terminate();
}

Status Crew::Start(const std::string& name, const std::vector<std::string>& command) {
  Result<Process> member = Process::Run(name, command, log_);
  if (!member.ok()) return member.status();
  members_.push_back(std::move(*member));
  return Status::Ok();
}

Status Crew::Check() {
  for (Process& member : members_) {
    const Status status = member.Check();
    if (status.ok()) continue;
    return Status(status.code(), status.message() + "; what was printed:\n" + Log());
  }
  return Status::Ok();
}

bool Crew::all_ended() const {
  return std::all_of(members_.begin(), members_.end(),
                     [](const Process& member) { return member.pidfd() < 0; });
}

void Crew::AppendPollItems(std::vector<pollfd>* items) const {
  for (const Process& member : members_) {
    if (member.pidfd() >= 0) items->push_back({member.pidfd(), POLLIN, 0});
  }
}

std::string Crew::Log() const {
  std::ifstream file(log_);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.size() > kLogShown) text = "..." + text.substr(text.size() - kLogShown);
  return text.empty() ? "(nothing)" : text;
}

}  // namespace prd::bench
