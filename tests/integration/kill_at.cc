// Preloaded into a worker: its process is killed (SIGKILL) before the message of a number that it
// sends through ZeroMQ, counted from 1 over all its sockets: PRD_TEST_KILL_AT. So it dies between
// any two parts of what it does: joins, copies, chunks of a reduction, answers.
// PRD_TEST_KILL_LONG counts those alone that have a chunk's length. PRD_TEST_KILL_SIGNAL is the
// signal, if not SIGKILL.
#include <dlfcn.h>
#include <zmq.h>

#include <atomic>
#include <csignal>
#include <cstdlib>

constexpr std::size_t kLong = 256 << 10;

static long NumberOf(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? 0 : std::strtol(text, nullptr, 10);
}

extern "C" int zmq_msg_send(zmq_msg_t* message, void* socket, int flags) {
  using Send = int (*)(zmq_msg_t*, void*, int);
  static const auto send = reinterpret_cast<Send>(dlsym(RTLD_NEXT, "zmq_msg_send"));
  static const long at = NumberOf("PRD_TEST_KILL_AT");
  static const long at_long = NumberOf("PRD_TEST_KILL_LONG");
  static const long named = NumberOf("PRD_TEST_KILL_SIGNAL");
  static const int signal = named == 0 ? SIGKILL : static_cast<int>(named);
  static std::atomic<long> sent = 0;
  static std::atomic<long> sent_long = 0;
  if (++sent == at) std::raise(signal);
  if (zmq_msg_size(message) >= kLong && ++sent_long == at_long) std::raise(signal);
  return send(message, socket, flags);
}
