#include "worker/tensor_watch.h"

#include <vector>

namespace prd {
namespace {

std::uint64_t DigestOf(Memory& memory, const Tensor& tensor) {
  return memory.DigestOf(Layout(std::vector<Tensor>{tensor}));
}

// The digest of a tensor of that size and dtype whose elements are all 0, wherever it is.
std::uint64_t DigestOfZeros(const Tensor& like) {
  std::vector<double> zeros(like.count * DTypeSize(like.dtype) / sizeof(double) + 1);
  HostMemory memory;
  return DigestOf(memory, {zeros.data(), like.count, like.dtype});
}

std::string Name(const char* which, std::size_t i) {
  return std::string(which) + "[" + std::to_string(i) + "]";
}

}  // namespace

TensorWatch::TensorWatch(const std::vector<Tensor>& parameters,
                         const std::vector<Tensor>& gradients)
    : parameters_(parameters), gradients_(gradients), watched_(parameters.size()) {
  for (const Tensor& gradient : gradients_) zeros_.push_back(DigestOfZeros(gradient));
}

std::vector<std::uint64_t> TensorWatch::Digests(Memory& memory) const {
  std::vector<std::uint64_t> digests;
  for (const Tensor& tensor : parameters_) digests.push_back(DigestOf(memory, tensor));
  return digests;
}

void TensorWatch::Note(Memory& memory) {
  const std::vector<std::uint64_t> digests = Digests(memory);
  for (std::size_t i = 0; i < digests.size(); ++i) watched_[i].digest = digests[i];
  noted_ = true;
}

Status TensorWatch::Check(Memory& memory) {
  if (!noted_) return Status::Ok();
  const std::vector<std::uint64_t> digests = Digests(memory);
  std::string changed;
  for (std::size_t i = 0; i < digests.size(); ++i) {
    const bool same = watched_[i].digest == digests[i];
    watched_[i].digest = digests[i];
    if (!same && changed.empty()) changed = Name("parameters", i);
  }
  if (changed.empty()) return Status::Ok();
  return Status(Code::kFailedPrecondition,
                changed +
                    " was written between calls, or its memory was given back: parameters "
                    "may be written only before Attach or inside `apply`");
}

void TensorWatch::BeforeApply(Memory& memory) {
  before_ = Digests(memory);
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    watched_[i].gradient = DigestOf(memory, gradients_[i]) != zeros_[i];
  }
}

std::vector<std::string> TensorWatch::AfterApply(Memory& memory) {
  std::vector<std::string> lines;
  const std::vector<std::uint64_t> after = Digests(memory);
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
