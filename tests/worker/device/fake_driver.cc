// Stands in for the CUDA driver where a host pointer is checked: of 64 bytes it says that they are
// a device's, of 64 more that they are managed, and it knows no other memory.
#include <cstddef>
#include <cstdint>

extern "C" {

std::byte prd_fake_device_memory[64];
std::byte prd_fake_managed_memory[64];

// cuda.h's.
int cuPointerGetAttribute(void* value, int attribute, std::uintptr_t pointer) {
  const auto in = [pointer](const std::byte(&memory)[64]) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory);
    return pointer >= begin && pointer < begin + sizeof memory;
  };
  if (!in(prd_fake_device_memory) && !in(prd_fake_managed_memory)) return 1;  // invalid value
  if (attribute == 2) *static_cast<unsigned*>(value) = 2;
  if (attribute == 8) *static_cast<bool*>(value) = in(prd_fake_managed_memory);
  if (attribute == 9) *static_cast<int*>(value) = 3;
  return 0;
}
}
