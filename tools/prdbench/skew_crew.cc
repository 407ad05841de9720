#include "tools/prdbench/skew_crew.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

namespace prd::bench {
namespace {

constexpr int kEndTimeoutMs = 5'000;
constexpr std::size_t kLogShown = 4'000;  // bytes, from the end

[[noreturn]] void Become(const std::vector<std::string>& command, const std::string& log,
                         pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
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
  _exit(127);
}

std::string HowItEnded(int status) {
  if (WIFSIGNALED(status)) {
    return std::string("was ended by signal ") + std::to_string(WTERMSIG(status)) + " (" +
           strsignal(WTERMSIG(status)) + ")";
  }
  return "has failed with exit code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

Crew::~Crew() {
  Signal(SIGTERM);
  for (int waited_ms = 0; !all_ended() && waited_ms < kEndTimeoutMs; waited_ms += 100) {
    std::vector<pollfd> items;
    AppendPollItems(&items);
    poll(items.data(), items.size(), 100);
    Reap();
  }
  Signal(SIGKILL);
  for (Member& member : members_) {
    if (member.pid > 0) waitpid(member.pid, nullptr, 0);
    Forget(&member);
  }
}

Status Crew::Start(const std::string& name, const std::vector<std::string>& command) {
  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) Become(command, log_, parent);
  if (pid < 0) return Status(Code::kUnavailable, "cannot start " + name + ": no more processes");
  members_.push_back({name, pid, static_cast<int>(syscall(SYS_pidfd_open, pid, 0))});
  return Status::Ok();
}

Status Crew::Check() {
  for (Member& member : members_) {
    int status = 0;
    if (member.pid <= 0 || waitpid(member.pid, &status, WNOHANG) != member.pid) continue;
    Forget(&member);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      return Status(Code::kUnavailable,
                    member.name + " " + HowItEnded(status) + "; what was printed:\n" + Log());
    }
  }
  return Status::Ok();
}

bool Crew::all_ended() const {
  return std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.pid <= 0; });
}

void Crew::AppendPollItems(std::vector<pollfd>* items) const {
  for (const Member& member : members_) {
    if (member.pidfd >= 0) items->push_back({member.pidfd, POLLIN, 0});
  }
}

std::string Crew::Log() const {
  std::ifstream file(log_);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.size() > kLogShown) text = "..." + text.substr(text.size() - kLogShown);
  return text.empty() ? "(nothing)" : text;
}

void Crew::Forget(Member* member) {
  member->pid = -1;
  if (member->pidfd >= 0) close(member->pidfd);
  member->pidfd = -1;
}

void Crew::Signal(int number) {
  for (const Member& member : members_) {
    if (member.pid > 0) kill(member.pid, number);
  }
}

void Crew::Reap() {
  for (Member& member : members_) {
    if (member.pid > 0 && waitpid(member.pid, nullptr, WNOHANG) == member.pid) Forget(&member);
  }
}

}  // namespace prd::bench
