#include "common/io/wire.h"

#include <kj/io.h>

#include <array>
#include <cstring>

#include "common/base/archive.h"  // checks that the machine is little-endian

namespace prd {
namespace {

// The builder zeroes what it used when it is done, so this stays zero, as it must be.
constexpr std::size_t kScratchWords = 512;
thread_local std::array<capnp::word, kScratchWords> scratch{};

capnp::ReaderOptions LimitsFor(std::size_t words) {
  capnp::ReaderOptions options;
  // Decoders follow every pointer once; what needs more has pointers that share their targets.
  options.traversalLimitInWords = words + 64;
  options.nestingLimit = 16;
  return options;
}

}  // namespace

WireBuilder::WireBuilder() : builder_(kj::arrayPtr(scratch.data(), scratch.size())) {}

void WireBuilder::ToBytes(std::string* out) {
  const auto segments = builder_.getSegmentsForOutput();
  out->resize(capnp::computeSerializedSizeInWords(segments) * sizeof(capnp::word));
  if (segments.size() == 1) {  // nearly always: a word that says so and its size, and the segment
    const auto only = segments[0].asBytes();
    const std::array<std::uint32_t, 2> frame = {0, static_cast<std::uint32_t>(segments[0].size())};
    std::memcpy(out->data(), frame.data(), sizeof frame);
    std::memcpy(out->data() + sizeof frame, only.begin(), only.size());
    return;
  }
  kj::ArrayOutputStream stream(kj::arrayPtr(reinterpret_cast<kj::byte*>(out->data()), out->size()));
  capnp::writeMessage(stream, segments);
}

WireReader::WireReader(std::string_view bytes)
    : message_(Aligned(bytes), LimitsFor(bytes.size() / sizeof(capnp::word))) {}

kj::ArrayPtr<const capnp::word> WireReader::Aligned(std::string_view bytes) {
  const std::size_t words = bytes.size() / sizeof(capnp::word);
  if (words == 0 || bytes.size() % sizeof(capnp::word) != 0) {
    throw Malformed{"found " + std::to_string(bytes.size()) + " bytes, allowed is a multiple of 8"};
  }
  capnp::word* aligned = small_.data();
  if (words > small_.size()) {
    large_ = kj::heapArray<capnp::word>(words);
    aligned = large_.begin();
  }
  std::memcpy(aligned, bytes.data(), bytes.size());
  return kj::arrayPtr(aligned, words);
}

}  // namespace prd
