// Preloaded into a worker: its process is killed (SIGKILL) before the message of a number that it
// sends through ZeroMQ, counted from 1 over all its sockets: PRD_TEST_KILL_AT. So it dies between
// any two parts of what it does: joins, copies, chunks of a reduction, answers.
#include <dlfcn.h>
#include <zmq.h>

#include <atomic>
#include <csignal>
#include <cstdlib>

extern "C" int zmq_msg_send(zmq_msg_t* message, void* socket, int flags) {
  using Send = int (*)(zmq_msg_t*, void*, int);
  static const auto send = reinterpret_cast<Send>(dlsym(RTLD_NEXT, "zmq_msg_send"));
  static const char* const text = std::getenv("PRD_TEST_KILL_AT");
  static const long at = text == nullptr ? 0 : std::strtol(text, nullptr, 10);
  static std::atomic<long> sent = 0;
  if (++sent == at) std::raise(SIGKILL);
  return send(message, socket, flags);
}
