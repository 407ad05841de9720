#include "common/io/wire.h"

#include <capnp/serialize.h>
#include <kj/array.h>
#include <kj/exception.h>
#include <kj/io.h>

#include <array>
#include <cstring>

namespace prd {
namespace {

// The builder zeroes what it used when it is done, so this stays zero, as it must be.
constexpr std::size_t kScratchWords = 512;
thread_local std::array<capnp::word, kScratchWords> scratch{};

// Tracing the stack for every malformed message would make hostile input expensive.
class WithoutStackTrace final : public kj::ExceptionCallback {
 public:
  StackTraceMode stackTraceMode() override { return StackTraceMode::NONE; }
};

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
  kj::ArrayOutputStream stream(kj::arrayPtr(reinterpret_cast<kj::byte*>(out->data()), out->size()));
  capnp::writeMessage(stream, segments);
}

std::string WireBuilder::ToBytes() {
  std::string bytes;
  ToBytes(&bytes);
  return bytes;
}

Status Visit(std::string_view bytes, const char* what, WireVisitor* visitor) {
  const auto malformed = [what](const std::string& why) {
    return Status(Code::kInvalidArgument, std::string(what) + " that cannot be read: " + why);
  };
  const std::size_t words = bytes.size() / sizeof(capnp::word);
  if (words == 0 || bytes.size() % sizeof(capnp::word) != 0) {
    return malformed("found " + std::to_string(bytes.size()) +
                     " bytes, allowed is a multiple of 8");
  }
  std::array<capnp::word, 128> small;
  kj::Array<capnp::word> large;
  capnp::word* aligned = small.data();
  if (words > small.size()) {
    large = kj::heapArray<capnp::word>(words);
    aligned = large.begin();
  }
  std::memcpy(aligned, bytes.data(), bytes.size());
  const WithoutStackTrace without_stack_trace;
  try {
    capnp::FlatArrayMessageReader message(kj::arrayPtr(aligned, words), LimitsFor(words));
    visitor->Visit(message);
  } catch (const Malformed& error) {
    return malformed(error.reason);
  } catch (const kj::Exception& error) {
    return malformed(error.getDescription().cStr());
  }
  return Status::Ok();
}

Code ToErrorCode(wire::Code code) {
  if (code == wire::Code::OK) throw Malformed{"code: found ok, allowed is an error"};
  return ToEnum(code, Code::kInternal, "code");
}

}  // namespace prd
