// Preloaded into a worker: of so many pieces (PRD_TEST_DAMAGE) that it sends over TCP, one has a
// bit changed, wherever they go but to PRD_TEST_DAMAGE_NOT, the daemon's port. Says at the end how
// many there were. Handshakes stay whole: one that does not end has the time of a lease.
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

static long NumberOf(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? 0 : std::strtol(text, nullptr, 10);
}

static struct Damaged {
  ~Damaged() { std::fprintf(stderr, "damaged: %ld\n", count.load()); }
  std::atomic<long> count = 0;
} damaged;

static bool IsMesh(int socket) {
  static const long daemon = NumberOf("PRD_TEST_DAMAGE_NOT");
  sockaddr_in peer{};
  socklen_t size = sizeof peer;
  return getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) == 0 &&
         peer.sin_family == AF_INET && ntohs(peer.sin_port) != daemon;
}

// Whether it belongs to a handshake, or begins like one by chance.
static bool Shakes(std::size_t socket, unsigned char first) {
  static std::array<std::atomic<int>, 1024> sent;
  if (socket >= sent.size()) return true;
  if (first == 0xff) sent[socket] = 0;
  return sent[socket]++ < 4;
}

extern "C" ssize_t send(int socket, const void* bytes, size_t size, int flags) {
  using Send = ssize_t (*)(int, const void*, size_t, int);
  static const auto send_whole = reinterpret_cast<Send>(dlsym(RTLD_NEXT, "send"));
  static const long every = NumberOf("PRD_TEST_DAMAGE");
  static thread_local std::mt19937_64 random{std::random_device()()};
  const auto* const first = static_cast<const unsigned char*>(bytes);
  if (size == 0 || every == 0 || !IsMesh(socket) ||
      Shakes(static_cast<std::size_t>(socket), *first) ||
      random() % static_cast<unsigned long>(every) != 0) {
    return send_whole(socket, bytes, size, flags);
  }
  ++damaged.count;
  std::vector<unsigned char> changed(first, first + size);
  changed[random() % size] ^= static_cast<unsigned char>(1u << random() % 8);
  return send_whole(socket, changed.data(), size, flags);
}
