#include "worker/memory/memory.h"

#include <algorithm>
#include <cstring>

namespace prd {
namespace {

// Several operations go over a row: as much as stays in the cache meanwhile.
constexpr std::size_t kBlockBytes = 32 << 10;

// The bytes of a place for a run of the layout's memory at `at` of the range.
std::byte* At(const Memory::Place& place, std::byte* tensor, std::size_t at) {
  return place.data == nullptr ? tensor : place.data + at;
}

// One run of one dtype.
void CombineRun(DType dtype, std::byte* tensor, std::size_t run, std::size_t at,
                std::span<const Memory::Place> to, std::span<const Memory::Input> from,
                Weight factor) {
  std::byte* sum = At(to[0], tensor, at);
  bool first = true;
  if (factor.exact != 0) {
    for (const Memory::Input& input : from) {
      if (input.weight.exact == 0) continue;
      (first ? Scale : AddScaled)(dtype, sum, At(input.from, tensor, at), run, input.weight);
      first = false;
    }
  }
  if (first) std::memset(sum, 0, run);
  if (!first && factor.exact != 1) Scale(dtype, sum, sum, run, factor);
  for (const Memory::Place& other : to.subspan(1)) {
    std::memcpy(At(other, tensor, at), sum, run);
  }
}

}  // namespace

Row HostMemory::Allocate(std::size_t bytes) {
  return Row(new std::byte[bytes], bytes, [](std::byte* data) { delete[] data; });
}

std::shared_ptr<Transfer> HostMemory::Combine(const Layout& layout, std::size_t offset,
                                              std::size_t length, std::span<const Place> to,
                                              std::span<const Input> from, Weight factor) {
  for (std::size_t begin = 0; begin < length; begin += kBlockBytes) {
    const std::size_t block = std::min(kBlockBytes, length - begin);
    layout.ForEach(offset + begin, block,
                   [&](DType dtype, std::byte* tensor, std::size_t run, std::size_t at) {
                     CombineRun(dtype, tensor, run, begin + at, to, from, factor);
                   });
  }
  return nullptr;
}

void HostMemory::Zero(std::byte* data, std::size_t bytes) { std::memset(data, 0, bytes); }

}  // namespace prd
