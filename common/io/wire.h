// Between Cap'n Proto's ways and prd's: bytes to readers and builders to bytes. For the codec only.
//
// Inside a decoder, what is wrong is thrown, by us as Malformed or by the library as kj::Exception.
// Nothing is thrown past the codec.
#ifndef PRD_COMMON_IO_WIRE_H_
#define PRD_COMMON_IO_WIRE_H_

#include <capnp/any.h>
#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/array.h>
#include <kj/exception.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace prd {

struct Malformed {
  std::string reason;
};

// A builder whose first segment is this thread's own memory. One at a time per thread.
class WireBuilder {
 public:
  WireBuilder();
  WireBuilder(const WireBuilder&) = delete;
  WireBuilder& operator=(const WireBuilder&) = delete;

  capnp::AnyStruct::Builder Init(std::uint16_t words, std::uint16_t pointers) {
    return builder_.getRoot<capnp::AnyPointer>().initAsAnyStruct(words, pointers);
  }
  void ToBytes(std::string* out);  // replaces *out; keeps its memory

 private:
  capnp::MallocMessageBuilder builder_;
};

// The message in `bytes`, whatever their alignment. Its readers live as long as it does. On the
// stack only.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes);
  capnp::AnyStruct::Reader Get() { return message_.getRoot<capnp::AnyStruct>(); }

 private:
  // Tracing the stack for every malformed message would make hostile input expensive.
  class WithoutStackTrace final : public kj::ExceptionCallback {
   public:
    StackTraceMode stackTraceMode() override { return StackTraceMode::NONE; }
  };
  kj::ArrayPtr<const capnp::word> Aligned(std::string_view bytes);

  WithoutStackTrace without_stack_trace_;
  std::array<capnp::word, 128> small_;
  kj::Array<capnp::word> large_;  // what `small_` has no room for
  capnp::FlatArrayMessageReader message_;
};

}  // namespace prd

#endif  // PRD_COMMON_IO_WIRE_H_
