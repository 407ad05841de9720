#include "worker/mesh/frame.h"

#include <cstring>

#include "common/base/archive.h"  // checks that the machine is little-endian

namespace prd {
namespace {

// "prd", and a letter for the version.
constexpr std::uint32_t kMagic = 0x00647270u | (('a' - 1 + kMeshVersion) << 24);
static_assert(kMeshVersion <= 26);

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

template <typename Cursor, typename Header, typename Word32>
void VisitFields(Cursor cursor, Word32& magic, Word32& kind, Header& h) {
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
  cursor(h.stream);
  cursor(h.number);
  cursor(h.done);
  cursor(h.members);
}

// As they are on the wire: without gaps.
struct WireParcel {
  std::uint32_t kind;
  std::uint32_t shard;
  std::uint64_t epoch;
  std::int64_t stamp;
};
struct WireNote {
  WireParcel parcel;
  std::uint32_t kind;
  std::uint32_t workers;
  std::int64_t version;
};
struct WireClock {
  std::uint64_t worker;
  std::int64_t clock;
};
struct WireParcelInfo {
  std::uint64_t bytes;
  std::int64_t version;
  std::int64_t readable;
};
static_assert(sizeof(WireParcel) == 24 && sizeof(WireNote) == 40 && sizeof(WireClock) == 16 &&
              sizeof(WireParcelInfo) == 24);

template <typename T>
void Append(std::vector<std::byte>* bytes, const T& value) {
  const std::size_t at = bytes->size();
  bytes->resize(at + sizeof value);
  std::memcpy(bytes->data() + at, &value, sizeof value);
}

template <typename T>
std::optional<T> Whole(std::span<const std::byte> bytes) {
  if (bytes.size() != sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

bool InRange(std::int64_t number) { return number >= -1 && number <= kMaxExchangeNumber; }

WireParcel ToWire(const PeerItem& parcel) {
  return {static_cast<std::uint32_t>(parcel.kind), parcel.shard, parcel.epoch, parcel.stamp};
}

std::optional<PeerItem> FromWire(const WireParcel& wire) {
  if (wire.kind > static_cast<std::uint32_t>(PeerItem::Kind::kState) || !InRange(wire.stamp)) {
    return std::nullopt;
  }
  return PeerItem{.kind = static_cast<PeerItem::Kind>(wire.kind),
                  .shard = wire.shard,
                  .epoch = wire.epoch,
                  .stamp = wire.stamp};
}

}  // namespace

std::uint64_t MarkOf(const Group& group) {
  struct WireMember {
    Incarnation incarnation;
    double weight;
  };
  static_assert(sizeof(WireMember) == 16);
  std::uint64_t mark = HashBytes({}) ^ static_cast<std::uint64_t>(group.kind);
  for (const GroupMember& member : group.members) {
    const WireMember wire{member.incarnation, member.weight};
    mark = HashBytes({reinterpret_cast<const char*>(&wire), sizeof wire}, mark);
  }
  return mark;
}

std::vector<std::byte> EncodeNote(const PeerMessage& note) {
  std::vector<std::byte> bytes;
  Append(&bytes, WireNote{.parcel = ToWire(note.parcel),
                          .kind = static_cast<std::uint32_t>(note.kind),
                          .workers = note.workers,
                          .version = note.version});
  return bytes;
}

std::optional<PeerMessage> DecodeNote(std::span<const std::byte> bytes) {
  const auto wire = Whole<WireNote>(bytes);
  const auto parcel = wire ? FromWire(wire->parcel) : std::nullopt;
  if (!parcel || wire->kind > static_cast<std::uint32_t>(PeerMessage::Kind::kStored) ||
      !InRange(wire->version)) {
    return std::nullopt;
  }
  return PeerMessage{.kind = static_cast<PeerMessage::Kind>(wire->kind),
                     .parcel = *parcel,
                     .version = wire->version,
                     .workers = wire->workers};
}

std::vector<std::byte> EncodeParcel(const PeerItem& parcel) {
  std::vector<std::byte> bytes;
  Append(&bytes, ToWire(parcel));
  return bytes;
}

std::optional<PeerItem> DecodeParcel(std::span<const std::byte> bytes) {
  const auto wire = Whole<WireParcel>(bytes);
  return wire ? FromWire(*wire) : std::nullopt;
}

std::vector<std::byte> EncodeParcelInfo(const ParcelInfo& info) {
  std::vector<std::byte> bytes;
  const ShardHeader& enclosure = info.enclosure;
  Append(&bytes, WireParcelInfo{info.bytes, enclosure.version, enclosure.readable});
  for (const ShardHeader::Clock& clock : enclosure.clocks) {
    Append(&bytes, WireClock{clock.worker, clock.clock});
  }
  return bytes;
}

std::optional<ParcelInfo> DecodeParcelInfo(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(WireParcelInfo)) return std::nullopt;
  const auto wire = Whole<WireParcelInfo>(bytes.first(sizeof(WireParcelInfo)));
  bytes = bytes.subspan(sizeof *wire);
  if (bytes.size() % sizeof(WireClock) != 0 || bytes.size() / sizeof(WireClock) > kMaxClocks ||
      !InRange(wire->version) || !InRange(wire->readable)) {
    return std::nullopt;
  }
  ParcelInfo info{
      .bytes = wire->bytes,
      .enclosure = {.version = wire->version, .readable = wire->readable, .clocks = {}}};
  std::vector<ShardHeader::Clock>& clocks = info.enclosure.clocks;
  for (; !bytes.empty(); bytes = bytes.subspan(sizeof(WireClock))) {
    const auto clock = Whole<WireClock>(bytes.first(sizeof(WireClock)));
    if (!InRange(clock->clock) || (!clocks.empty() && clocks.back().worker >= clock->worker)) {
      return std::nullopt;
    }
    clocks.push_back({clock->worker, clock->clock});
  }
  return info;
}

FrameHeader PingOf(Topic topic, std::uint64_t number, RunId run, Incarnation from, Incarnation to) {
  return {.kind = FrameKind::kPing,
          .run = run,
          .group = number,
          .from = from,
          .to = to,
          .stage = static_cast<std::uint32_t>(topic)};
}

std::array<std::byte, kFrameHeaderBytes> EncodeHeader(const FrameHeader& header) {
  std::array<std::byte, kFrameHeaderBytes> bytes;
  const std::uint32_t magic = kMagic;
  const auto kind = static_cast<std::uint32_t>(header.kind);
  VisitFields(Writer{bytes.data()}, magic, kind, header);
  return bytes;
}

std::optional<FrameHeader> DecodeHeader(std::span<const std::byte> bytes,
                                        std::size_t payload_bytes) {
  if (bytes.size() != kFrameHeaderBytes) return std::nullopt;
  FrameHeader header;
  std::uint32_t magic = 0;
  std::uint32_t kind = 0;
  VisitFields(Reader{bytes.data()}, magic, kind, header);
  if (magic != kMagic || kind < 1 || kind > static_cast<std::uint32_t>(FrameKind::kAck) ||
      header.length != payload_bytes) {
    return std::nullopt;
  }
  header.kind = static_cast<FrameKind>(kind);
  return header;
}

}  // namespace prd
