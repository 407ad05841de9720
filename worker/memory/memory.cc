#include "worker/memory/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <new>

#include "worker/memory/digest.h"
#include "worker/memory/meanwhile.h"

namespace prd {
namespace {

// Several operations go over a row: as much as stays in the cache meanwhile.
constexpr std::size_t kBlockBytes = 32 << 10;
constexpr std::size_t kHugePage = 2 << 20;
constexpr std::size_t kLargeRow = 4 * kHugePage;

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
      const std::byte* const part = At(input.from, tensor, at);
      if (first && input.weight.exact > 0 && IsZero(part, run)) {
        ZeroOver(sum, run);
      } else {
        (first ? Scale : AddScaled)(dtype, sum, part, run, input.weight);
      }
      first = false;
    }
  }
  if (first) ZeroOver(sum, run);
  if (!first && factor.exact != 1) Scale(dtype, sum, sum, run, factor);
  for (const Memory::Place& other : to.subspan(1)) {
    std::memcpy(At(other, tensor, at), sum, run);
  }
}

// A device's tensors are read on the host in pieces of this size, two of them on their way.
constexpr std::size_t kVisitBytes = 4 << 20;

}  // namespace

void Memory::Visit(const Layout& layout, const Visitor& f) {
  bool more = true;
  if (!device()) {
    for (const Layout::Piece& piece : layout.pieces()) {
      more = more && f(piece.dtype, piece.data, piece.end - piece.begin, piece.begin);
    }
    return;
  }
  struct Part {
    std::shared_ptr<Row> row;
    std::shared_ptr<Transfer> transfer;
  };
  std::array<Part, 2> parts;
  const auto read = [&](std::size_t begin) {
    if (begin >= layout.bytes()) return;
    Part& part = parts[begin / kVisitBytes % 2];
    const std::size_t length = std::min(kVisitBytes, layout.bytes() - begin);
    if (part.row == nullptr)
      part.row = std::make_shared<Row>(AllocateHost(MemoryUse::kReading, length));
    const Place to = InHost(part.row->data(), part.row);
    const Input from = {Tensors()};
    part.transfer = Combine(layout, begin, length, std::span(&to, 1), std::span(&from, 1), {1, 1});
  };
  read(0);
  for (std::size_t begin = 0; begin < layout.bytes() && more; begin += kVisitBytes) {
    read(begin + kVisitBytes);
    const Part& part = parts[begin / kVisitBytes % 2];
    if (part.transfer != nullptr) part.transfer->Wait();
    if (!failure().ok()) return;
    layout.ForEach(begin, std::min(kVisitBytes, layout.bytes() - begin),
                   [&](DType dtype, const std::byte*, std::size_t run, std::size_t at) {
                     more = more && f(dtype, part.row->data() + at, run, begin + at);
                   });
  }
}

std::uint64_t Memory::DigestOf(const Layout& layout) {
  Digest digest;
  Visit(layout, [&digest](DType, const std::byte* data, std::size_t bytes, std::size_t) {
    digest.Add(data, bytes);
    return true;
  });
  return digest.End();
}

std::optional<Layout::Element> Memory::FirstNonfinite(const Layout& layout) {
  std::optional<Layout::Element> first;
  Visit(layout, [&](DType dtype, const std::byte* data, std::size_t bytes, std::size_t at) {
    const std::optional<std::size_t> place = prd::FirstNonfinite(dtype, data, bytes);
    if (place) first = layout.ElementAt(at + *place * DTypeSize(dtype));
    return !place;
  });
  return first;
}

// A large row is asked for in huge pages, where the system gives them to whoever asks: all of it is
// written at once, and a fault for each 4 KiB would take longer than that. The rest behind the last
// huge page stays small.
Row HostMemory::Make(MemoryUse use, std::size_t bytes) {
  if (bytes < kLargeRow) {
    return Row(new std::byte[bytes], bytes, [](std::byte* data) { delete[] data; });
  }
  void* data = nullptr;
  if (posix_memalign(&data, kHugePage, bytes) != 0) throw NoMemory(use, bytes);
  (void)madvise(data, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return Row(static_cast<std::byte*>(data), bytes, [](std::byte* row) { std::free(row); });
}

std::shared_ptr<Transfer> HostMemory::Combine(const Layout& layout, std::size_t offset,
                                              std::size_t length, std::span<const Place> to,
                                              std::span<const Input> from, Weight factor) {
  for (std::size_t begin = 0; begin < length; begin += kBlockBytes) {
    const std::size_t block = std::min(kBlockBytes, length - begin);
    if (begin != 0 && begin % Meanwhile::kBytes == 0) Meanwhile::Do();
    layout.ForEach(offset + begin, block,
                   [&](DType dtype, std::byte* tensor, std::size_t run, std::size_t at) {
                     CombineRun(dtype, tensor, run, begin + at, to, from, factor);
                   });
  }
  return nullptr;
}

void HostMemory::Zero(std::byte* data, std::size_t bytes) { ZeroOver(data, bytes); }

}  // namespace prd
