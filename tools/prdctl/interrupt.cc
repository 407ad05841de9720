#include "tools/prdctl/interrupt.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>

namespace prd::ctl {
namespace {

// Written to by the signal handler: what waits in poll sees it, whenever the signal comes.
int stop_pipe[2] = {-1, -1};

}  // namespace

Status OpenInterrupts() {
  if (pipe2(stop_pipe, O_CLOEXEC | O_NONBLOCK) == 0) return Status::Ok();
  return Status(Code::kResourceExhausted, std::string("no pipe: ") + std::strerror(errno));
}

int InterruptFd() { return stop_pipe[0]; }

bool Interrupted() {
  pollfd item{.fd = stop_pipe[0], .events = POLLIN, .revents = 0};
  return poll(&item, 1, 0) > 0;
}

void EndOnSignals() {
  struct sigaction action {};
  action.sa_handler = [](int) {
    const int before = errno;
    (void)!write(stop_pipe[1], "", 1);
    errno = before;
  };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace prd::ctl
