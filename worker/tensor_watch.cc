#include "worker/tensor_watch.h"

#include <algorithm>
#include <cstring>

namespace prd {
namespace {

// Calls f(index, tensor's bytes on the host, bytes) for each tensor, in the caller's order, until f
// returns false.
template <typename F>
void ForEachTensor(Memory& memory, const std::vector<Tensor>& tensors, F&& f) {
  Row row;
  std::vector<const std::byte*> at(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    at[i] = static_cast<const std::byte*>(tensors[i].data);
  }
  if (memory.device()) {
    const Layout layout(tensors);
    row = memory.AllocateHost(layout.bytes());
    const auto copied = memory.Combine(layout, Memory::InHost(row.data()), {{Memory::Tensors()}});
    if (copied != nullptr) copied->Wait();
    std::size_t offset = 0;  // as layout.h orders them
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        if (tensors[i].dtype != dtype) continue;
        at[i] = row.data() + offset;
        offset += tensors[i].count * DTypeSize(dtype);
      }
    }
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!f(i, at[i], tensors[i].count * DTypeSize(tensors[i].dtype))) return;
  }
}

std::uint64_t HashOf(const std::byte* data, std::size_t bytes) {
  constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15;
  std::uint64_t hash = bytes;
  for (std::size_t at = 0; at < bytes; at += sizeof hash) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + at, std::min(sizeof word, bytes - at));
    hash = (hash ^ word) * kFactor;
    hash ^= hash >> 29;
  }
  return hash;
}

// -0 counts as a change that is there.
bool HasNonzero(const std::byte* data, std::size_t bytes) {
  return std::any_of(data, data + bytes, [](std::byte byte) { return byte != std::byte{0}; });
}

std::string Name(const char* which, std::size_t i) {
  return std::string(which) + "[" + std::to_string(i) + "]";
}

}  // namespace

TensorWatch::TensorWatch(const std::vector<Tensor>& parameters,
                         const std::vector<Tensor>& gradients)
    : parameters_(parameters), gradients_(gradients), watched_(parameters.size()) {}

std::vector<std::uint64_t> TensorWatch::Hashes(Memory& memory) const {
  std::vector<std::uint64_t> hashes;
  ForEachTensor(memory, parameters_, [&](std::size_t, const std::byte* data, std::size_t bytes) {
    hashes.push_back(HashOf(data, bytes));
    return true;
  });
  return hashes;
}

void TensorWatch::Note(Memory& memory) {
  const std::vector<std::uint64_t> hashes = Hashes(memory);
  for (std::size_t i = 0; i < hashes.size(); ++i) watched_[i].hash = hashes[i];
  noted_ = true;
}

Status TensorWatch::Check(Memory& memory) {
  if (!noted_) return Status::Ok();
  const std::vector<std::uint64_t> hashes = Hashes(memory);
  std::string changed;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const bool same = watched_[i].hash == hashes[i];
    watched_[i].hash = hashes[i];
    if (!same && changed.empty()) changed = Name("parameters", i);
  }
  if (changed.empty()) return Status::Ok();
  return Status(Code::kFailedPrecondition,
                changed +
                    " was written between calls, or its memory was given back: parameters "
                    "may be written only before Attach or inside `apply`");
}

void TensorWatch::BeforeApply(Memory& memory) {
  before_ = Hashes(memory);
  ForEachTensor(memory, gradients_, [&](std::size_t i, const std::byte* data, std::size_t bytes) {
    watched_[i].gradient = HasNonzero(data, bytes);
    return true;
  });
}

std::vector<std::string> TensorWatch::AfterApply(Memory& memory) {
  std::vector<std::string> lines;
  const std::vector<std::uint64_t> after = Hashes(memory);
  for (std::size_t i = 0; i < after.size(); ++i) {
    Watched& watched = watched_[i];
    const bool stuck = after[i] == before_[i] && watched.gradient;
    watched.unchanged = stuck ? watched.unchanged + 1 : 0;
    if (watched.unchanged < kUnchanged || watched.named) continue;
    watched.named = true;
    lines.push_back(Name("parameters", i) + " has not changed in " + std::to_string(kUnchanged) +
                    " steps, although its gradient is not zero: does the optimizer write "
                    "elsewhere?");
  }
  return lines;
}

}  // namespace prd
