// Between Cap'n Proto's ways and prd's: bytes to readers and builders to bytes. For the codec only.
//
// Inside a decoder, what is wrong is thrown, by us as Malformed or by the library as kj::Exception;
// Read turns either into a Status, so that nothing is thrown past the codec.
#ifndef PRD_COMMON_IO_WIRE_H_
#define PRD_COMMON_IO_WIRE_H_

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/array.h>
#include <kj/exception.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/admin.h"
#include "common/base/history.h"
#include "common/base/messages.h"
#include "prd/status.h"
#include "schemas/admin.capnp.h"
#include "schemas/control.capnp.h"
#include "schemas/history.capnp.h"

namespace prd {

struct Malformed {
  std::string reason;
};

// ---- messages <-> bytes ----

// A builder whose first segment is this thread's own memory. One at a time per thread.
class WireBuilder {
 public:
  WireBuilder();
  WireBuilder(const WireBuilder&) = delete;
  WireBuilder& operator=(const WireBuilder&) = delete;

  template <typename Root>
  typename Root::Builder Init() {
    return builder_.initRoot<Root>();
  }
  void ToBytes(std::string* out);  // replaces *out; keeps its memory
  std::string ToBytes();

 private:
  capnp::MallocMessageBuilder builder_;
};

// The message in `bytes`, whatever their alignment. Its readers live as long as it does. On the
// stack only.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes);
  template <typename Root>
  typename Root::Reader Get() {
    return message_.getRoot<Root>();
  }

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

Status CannotBeRead(const char* what, const std::string& why);

// What decode(Root::Reader) -> T makes of the message in `bytes`. `what` is for the reason: "a
// control message".
template <typename T, typename Root, typename Decode>
Result<T> Read(std::string_view bytes, const char* what, Decode decode) {
  try {
    WireReader message(bytes);
    return decode(message.Get<Root>());
  } catch (const Malformed& error) {
    return CannotBeRead(what, error.reason);
  } catch (const kj::Exception& error) {
    return CannotBeRead(what, error.getDescription().cStr());
  }
}

// ---- fields ----

inline std::string ToString(capnp::Text::Reader text) { return {text.cStr(), text.size()}; }

inline capnp::Text::Reader ToText(const std::string& text) { return {text.c_str(), text.size()}; }

// An enum of the same order in the schema and in C++. `last` is its highest value.
template <typename E, typename W>
E ToEnum(W wire, E last, const char* field) {
  if (static_cast<std::uint16_t>(wire) > static_cast<std::uint16_t>(last)) {
    throw Malformed{std::string(field) + ": found " +
                    std::to_string(static_cast<std::uint16_t>(wire)) + ", allowed is 0 to " +
                    std::to_string(static_cast<std::uint16_t>(last))};
  }
  return static_cast<E>(static_cast<std::uint16_t>(wire));
}

template <typename W, typename E>
W ToWireEnum(E value) {
  return static_cast<W>(static_cast<std::uint16_t>(value));
}

// The code of a refusal or an error: any but ok.
Code ToErrorCode(wire::Code code);

// Lists of numbers.
template <typename T>
void WriteNumbers(const std::vector<T>& from, typename capnp::List<T>::Builder to) {
  for (unsigned i = 0; i < to.size(); ++i) to.set(i, from[i]);
}
template <typename T>
std::vector<T> ReadNumbers(typename capnp::List<T>::Reader from) {
  std::vector<T> to;
  to.reserve(from.size());
  for (const T number : from) to.push_back(number);
  return to;
}

// ---- structs shared by several messages ----

void WriteTrained(const Trained& from, wire::Trained::Builder to);
Trained ReadTrained(wire::Trained::Reader from);

void WriteShards(const SharedList<ShardPlace>& from, capnp::List<wire::ShardPlace>::Builder to);
SharedList<ShardPlace> ReadShards(capnp::List<wire::ShardPlace>::Reader from);

void Write(const WorkerEnvelope& from, wire::WorkerEnvelope::Builder to);
WorkerEnvelope ReadWorkerEnvelope(wire::WorkerEnvelope::Reader from);

void Write(const OperatorActed& from, wire::OperatorActed::Builder to);
OperatorActed ReadActed(wire::OperatorActed::Reader from);
void Write(const Record& from, wire::Record::Builder to);
Record ReadRecord(wire::Record::Reader from);

}  // namespace prd

#endif  // PRD_COMMON_IO_WIRE_H_
