#include "worker/own_process.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/io/connection_facts.h"

namespace prd {
namespace {

struct Slot {
  std::atomic<bool> taken{false};
  std::atomic<int> socket{-1};
  std::atomic<std::uint64_t> cookie{0};  // the kernel's number of it, never used twice
};
std::array<Slot, 256> slots;

// In the child, which has this thread alone.
void CloseCopies() {
  for (Slot& slot : slots) {
    const int socket = slot.socket;
    if (socket >= 0 && slot.cookie != 0 && CookieOf(socket) == slot.cookie) ::close(socket);
    slot.socket = -1;
  }
}

}  // namespace

OwnProcess::OwnProcess() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, CloseCopies);
  if (registered != 0) return;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].taken.exchange(true)) continue;
    slot_ = static_cast<int>(i);
    return;
  }
}

OwnProcess::~OwnProcess() {
  Keep(-1);
  if (slot_ >= 0) slots[static_cast<std::size_t>(slot_)].taken = false;
}

void OwnProcess::Keep(int socket) {
  if (slot_ < 0) return;
  Slot& slot = slots[static_cast<std::size_t>(slot_)];
  slot.socket = -1;
  slot.cookie = CookieOf(socket).value_or(0);
  slot.socket = socket;
}

}  // namespace prd
