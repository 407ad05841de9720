#include "common/base/text.h"

namespace prd {
namespace {

bool Continues(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

bool IsHarmful(std::uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x061c || code == 0x200e ||
         code == 0x200f || (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

std::string_view CutText(std::string_view text) {
  if (text.size() <= kMaxText) return text;
  // A character has 4 bytes at most; what has more bytes like that is no text anyway.
  std::size_t end = kMaxText;
  while (end > kMaxText - 3 && Continues(text[end])) --end;
  return text.substr(0, Continues(text[end]) ? kMaxText : end);
}

Character FirstCharacter(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1, !IsHarmful(lead)};
  const Character broken{.code = lead};
  const std::size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < size) return broken;
  std::uint32_t code = lead & (0x7fu >> size);
  for (std::size_t i = 1; i < size; ++i) {
    if (!Continues(text[i])) return broken;
    code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3fu);
  }
  // Longer than need be, half of a UTF-16 pair, or beyond Unicode.
  static constexpr std::uint32_t kLowest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLowest[size] || (code >= 0xd800 && code < 0xe000) || code > 0x10ffff) return broken;
  return {code, size, !IsHarmful(code)};
}

std::string Harmless(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character first = FirstCharacter(text);
    out += first.harmless ? text.substr(0, first.size) : "?";
    text.remove_prefix(first.size);
  }
  return out;
}

}  // namespace prd
