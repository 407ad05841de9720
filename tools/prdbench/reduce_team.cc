#include "tools/prdbench/reduce_team.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <utility>

namespace prd::bench {

Child& Child::operator=(Child&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(to_, other.to_);
  std::swap(from_, other.from_);
  std::swap(pending_, other.pending_);
  return *this;
}

Child::~Child() {
  if (to_ >= 0) close(to_);
  if (from_ >= 0) close(from_);
  Kill();
}

void Child::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

Status Child::WriteLine(const std::string& line) {
  const std::string text = line + "\n";
  if (write(to_, text.data(), text.size()) == static_cast<ssize_t>(text.size())) {
    return Status::Ok();
  }
  return Status(Code::kUnavailable, "a benchmark process is gone");
}

Result<std::string> Child::ReadLine(int timeout_ms) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    const std::size_t end = pending_.find('\n');
    if (end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return line;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd item{from_, POLLIN, 0};
    if (left.count() <= 0 || poll(&item, 1, static_cast<int>(left.count())) == 0) {
      return Status(Code::kDeadlineExceeded, "a benchmark process does not answer");
    }
    char buffer[4096];
    const ssize_t got = read(from_, buffer, sizeof buffer);
    if (got <= 0) return Status(Code::kUnavailable, "a benchmark process is gone");
    pending_.append(buffer, static_cast<std::size_t>(got));
  }
}

Result<double> Span(std::vector<Child>* children, const std::vector<int>& members) {
  long long first = std::numeric_limits<long long>::max();
  long long last = 0;
  for (const int rank : members) {
    Result<std::string> line = (*children)[static_cast<std::size_t>(rank)].ReadLine(60'000);
    if (!line.ok()) return line.status();
    long long start = 0;
    long long end = 0;
    if (std::sscanf(line->c_str(), "%lld %lld", &start, &end) != 2) {
      return Status(Code::kAborted, *line);
    }
    first = std::min(first, start);
    last = std::max(last, end);
  }
  return static_cast<double>(last - first) * 1e-9;
}

}  // namespace prd::bench
