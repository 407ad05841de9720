#include "worker/mesh/frame.h"

#include <cstring>

#include "common/base/archive.h"  // checks that the machine is little-endian

namespace prd {
namespace {

constexpr std::uint32_t kMagic = 0x33647270;  // "prd3": the 3 is the version
constexpr std::uint64_t kReserved = 0;

struct Writer {
  std::byte* at;
  template <typename T>
  void operator()(const T& value) {
    std::memcpy(at, &value, sizeof value);
    at += sizeof value;
  }
};

struct Reader {
  const std::byte* at;
  template <typename T>
  void operator()(T& value) {
    std::memcpy(&value, at, sizeof value);
    at += sizeof value;
  }
};

template <typename Cursor, typename Header, typename Word32, typename Word64>
void Fields(Cursor cursor, Word32& magic, Word32& kind, Header& h, Word64& reserved) {
  cursor(magic);
  cursor(kind);
  cursor(h.run);
  cursor(h.group);
  cursor(h.from);
  cursor(h.to);
  cursor(h.stage);
  cursor(h.chunk);
  cursor(h.offset);
  cursor(h.length);
  cursor(reserved);
}

}  // namespace

std::array<std::byte, kFrameHeaderBytes> EncodeHeader(const FrameHeader& header) {
  std::array<std::byte, kFrameHeaderBytes> bytes;
  const std::uint32_t magic = kMagic;
  const auto kind = static_cast<std::uint32_t>(header.kind);
  Fields(Writer{bytes.data()}, magic, kind, header, kReserved);
  return bytes;
}

std::optional<FrameHeader> DecodeHeader(std::span<const std::byte> bytes,
                                        std::size_t payload_bytes) {
  if (bytes.size() != kFrameHeaderBytes) return std::nullopt;
  FrameHeader header;
  std::uint32_t magic = 0;
  std::uint32_t kind = 0;
  std::uint64_t reserved = 0;
  Fields(Reader{bytes.data()}, magic, kind, header, reserved);
  if (magic != kMagic || reserved != kReserved || kind < 1 ||
      kind > static_cast<std::uint32_t>(FrameKind::kPong) || header.length != payload_bytes) {
    return std::nullopt;
  }
  header.kind = static_cast<FrameKind>(kind);
  return header;
}

}  // namespace prd
