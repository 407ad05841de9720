// Keys of the history's column families.
#ifndef PRD_SERVER_HISTORY_KEYS_H_
#define PRD_SERVER_HISTORY_KEYS_H_

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/ids.h"

namespace prd::history {

enum Family : std::size_t { kDefault = 0, kRecords = 1, kRuns = 2, kSnapshots = 3 };
inline constexpr std::array<const char*, 4> kFamilies = {"default", "records", "runs", "snapshots"};
inline constexpr std::string_view kFormatKey = "format";
inline constexpr std::string_view kFormat = "1";
inline constexpr std::string_view kAsidePrefix = "aside/";

inline void AppendBigEndian(std::uint64_t value, std::string* out) {
  std::array<char, 8> bytes;
  for (int i = 0; i < 8; ++i)
    bytes[static_cast<std::size_t>(i)] = static_cast<char>(value >> (56 - 8 * i));
  out->append(bytes.data(), bytes.size());
}

inline std::string RunKey(RunId run) {
  std::string key;
  AppendBigEndian(run, &key);
  return key;
}

inline std::string RecordKey(RunId run, std::uint64_t index) {
  std::string key;
  AppendBigEndian(run, &key);
  AppendBigEndian(index, &key);
  return key;
}

// Above every record of the run: no run is that long.
inline std::string RecordsEnd(RunId run) {
  return RecordKey(run, std::numeric_limits<std::uint64_t>::max());
}

inline std::string AsideKey(RunId run) { return std::string(kAsidePrefix) + RunKey(run); }

// The integer at a position of a key; nullopt if the key is too short.
inline std::optional<std::uint64_t> BigEndianAt(std::string_view key, std::size_t at) {
  if (key.size() < at + 8) return std::nullopt;
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    value = value << 8 | static_cast<unsigned char>(key[at + i]);
  }
  return value;
}

}  // namespace prd::history

#endif  // PRD_SERVER_HISTORY_KEYS_H_
