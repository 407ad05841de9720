#include "tests/fuzz/feed.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "common/io/codec.h"
#include "tests/io/random_messages.h"
#include "tests/worker/device/random_comm_message.h"
#include "worker/device/communicators.h"
#include "worker/mesh/keys.h"
#include "worker/mesh/seal.h"

namespace prd {
namespace {

// Encodings are compared, not values, because a record may hold a NaN.
template <typename T>
Fed Check(Result<T> (*decode)(std::string_view), std::string_view bytes) {
  const Result<T> first = decode(bytes);
  if (!first.ok()) {
    const bool good =
        first.status().code() == Code::kInvalidArgument && !first.status().message().empty();
    return {.accepted = false, .fault = good ? "" : "refused as " + first.status().ToString()};
  }
  const std::string encoded = Encode(*first);
  const Result<T> second = decode(encoded);
  if (!second.ok()) {
    return {.accepted = true, .fault = "its encoding is refused: " + second.status().ToString()};
  }
  return {.accepted = true,
          .fault = Encode(*second) == encoded ? "" : "it changes when encoded once more"};
}

std::string BytesOf(const CommMessage& message) {
  const std::vector<std::byte> bytes = EncodeCommMessage(message);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::optional<CommMessage> CommMessageOf(std::string_view bytes) {
  return DecodeCommMessage(std::as_bytes(std::span(bytes)));
}

bool WithinLimits(const CommMessage& message) {
  return message.members.size() <= CommMessage::kMaxMembers &&
         message.reason.size() <= CommMessage::kMaxReason &&
         std::all_of(message.reason.begin(), message.reason.end(),
                     [](char c) { return c >= ' ' && c <= '~'; });
}

// Between workers: refused without a word.
Fed CheckCommMessage(std::string_view bytes) {
  const std::optional<CommMessage> first = CommMessageOf(bytes);
  if (!first) return {};
  if (!WithinLimits(*first)) return {.accepted = true, .fault = "it is beyond its limits"};
  const std::optional<CommMessage> second = CommMessageOf(BytesOf(*first));
  return {.accepted = true,
          .fault = second == first ? "" : "it changes when it is encoded and decoded once more"};
}

// What a connection to a mesh names itself: one text for each.
Fed CheckPass(std::string_view bytes) {
  const std::optional<Pass> pass = DecodePass(bytes);
  if (!pass) return {};
  return {.accepted = true, .fault = EncodePass(*pass) == bytes ? "" : "it has another text"};
}

// The first part, then the payload, under a key that whoever changes them does not have.
const SealKey kSealKey{1, 2, 3};

std::string SealedBytes(const std::array<std::byte, kFrameHeaderBytes>& header,
                        std::string_view payload) {
  std::string sealed(payload.size(), '\0');
  const auto first = FrameSealer(kSealKey).Seal(header, std::as_bytes(std::span(payload)),
                                                reinterpret_cast<std::byte*>(sealed.data()));
  return std::string(reinterpret_cast<const char*>(first.data()), first.size()) + sealed;
}

Fed CheckSealed(std::string_view bytes) {
  const std::size_t length = std::min(bytes.size(), kSealedHeaderBytes);
  std::string payload(bytes.substr(length));
  const auto header =
      FrameOpener(kSealKey).Open(std::as_bytes(std::span(bytes.substr(0, length))),
                                 std::as_writable_bytes(std::span(payload.data(), payload.size())));
  if (!header) return {};
  (void)DecodeHeader(*header, payload.size());
  return {.accepted = true,
          .fault = SealedBytes(*header, payload) == bytes ? "" : "it opens, and was not sealed"};
}

}  // namespace

Fed Feed(std::size_t decoder, std::string_view bytes) {
  switch (decoder) {
    case 0:
      return Check(DecodeWorkerEnvelope, bytes);
    case 1:
      return Check(DecodeControllerEnvelope, bytes);
    case 2:
      return Check(DecodeRecord, bytes);
    case 3:
      return Check(DecodeAdminRequest, bytes);
    case 4:
      return Check(DecodeAdminReply, bytes);
    case 5:
      return CheckCommMessage(bytes);
    case 6:
      return CheckPass(bytes);
    default:
      return CheckSealed(bytes);
  }
}

DecoderKinds KindsOf(std::size_t decoder) {
  static const std::array<DecoderKinds, kDecoders> kinds{
      {{"worker", std::variant_size_v<WorkerBody::Variant>},
       {"controller", std::variant_size_v<ControllerBody::Variant>},
       {"record", std::variant_size_v<RecordBody::Variant>},
       {"request", std::variant_size_v<AdminRequest>},
       {"reply", std::variant_size_v<AdminReply>},
       {"comm", kCommKinds},
       {"pass", 1},
       {"sealed", 17}}};
  return kinds[decoder];
}

std::string ValidBytes(std::size_t decoder, Prng& prng) {
  return ValidBytes(decoder, prng.Below(16), prng);
}

std::string ValidBytes(std::size_t decoder, std::size_t kind, Prng& prng) {
  switch (decoder) {
    case 0:
      return Encode(RandomWorkerEnvelope(prng, kind));
    case 1:
      return Encode(RandomControllerEnvelope(prng, kind));
    case 2:
      return Encode(RandomRecord(prng, kind));
    case 3:
      return Encode(RandomAdminRequest(prng, kind));
    case 4:
      return Encode(RandomAdminReply(prng, kind));
    case 5:
      return BytesOf(RandomCommMessage(prng, kind, 8));
    case 6:
      return EncodePass({.from = prng.Next() | 1,
                         .number = prng.Next(),
                         .purpose = prng.Below(2) == 0 ? Purpose::kData : Purpose::kSignals});
    default: {
      const std::string payload(prng.Below(100), static_cast<char>(prng.Next()));
      const FrameHeader header{.kind = static_cast<FrameKind>(1 + kind),
                               .run = prng.Next(),
                               .from = prng.Next(),
                               .to = prng.Next(),
                               .length = payload.size()};
      return SealedBytes(EncodeHeader(header), payload);
    }
  }
}

void Mutate(Prng& prng, std::string* bytes) {
  if (bytes->empty() || prng.Below(16) == 0) {
    bytes->resize(8 * prng.Below(40) + (prng.Below(4) == 0 ? prng.Below(8) : 0));
    for (char& c : *bytes) c = static_cast<char>(prng.Next());
    // Most noise fails at the segment table; let half of it pass there.
    const std::uint64_t table = (bytes->size() / 8 - 1) << 32;
    if (bytes->size() >= 8 && prng.Below(2) == 0) std::memcpy(bytes->data(), &table, 8);
    return;
  }
  for (std::uint64_t changes = 1 + prng.Below(4); changes > 0; --changes) {
    const std::size_t at = prng.Below(bytes->size());
    switch (prng.Below(7)) {
      case 0:
        (*bytes)[at] ^= static_cast<char>(1 << prng.Below(8));
        break;
      case 1:
        (*bytes)[at] = static_cast<char>(prng.Next());
        break;
      case 2: {  // pointers and counts are words and half words
        const std::uint64_t word = prng.Below(2) == 0 ? prng.Next() : ~0ull >> prng.Below(64);
        const std::size_t size = prng.Below(2) == 0 ? 8 : 4;
        if (bytes->size() < size) break;
        std::memcpy(bytes->data() + prng.Below(bytes->size() / size) * size, &word, size);
        break;
      }
      case 3:  // another word of the same message: pointers that share targets, cycles
        if (bytes->size() >= 16) {
          const std::size_t from = prng.Below(bytes->size() / 8) * 8;
          const std::size_t to = prng.Below(bytes->size() / 8) * 8;
          std::memmove(bytes->data() + to, bytes->data() + from, 8);
        }
        break;
      case 4:
        bytes->resize(bytes->size() / 8 * 8 + 8 * prng.Below(8));
        break;
      case 5:
        bytes->resize(1 + at);
        break;
      default: {  // a small signed step of a pointer's offset or a size
        std::uint32_t half;
        if (bytes->size() >= 4) {
          char* place = bytes->data() + prng.Below(bytes->size() / 4) * 4;
          std::memcpy(&half, place, 4);
          half += static_cast<std::uint32_t>(prng.Below(64)) - 32;
          std::memcpy(place, &half, 4);
        }
      }
    }
    if (bytes->empty()) return;
  }
}

}  // namespace prd
