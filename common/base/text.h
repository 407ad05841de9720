// Texts that somebody else wrote, made fit to be kept and shown.
#ifndef PRD_COMMON_BASE_TEXT_H_
#define PRD_COMMON_BASE_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace prd {

// Bytes of a text that a worker sends with a message: a reason, what went wrong, a name.
inline constexpr std::size_t kMaxText = 256;

// The first bytes of the text, kMaxText at most, without a part of a character at the end.
std::string_view CutText(std::string_view text);

// The character at the beginning of a text in UTF-8.
struct Character {
  std::uint32_t code = 0;  // of Unicode
  std::size_t size = 1;    // bytes; of what is no UTF-8, one
  // A terminal shows it. It may obey control characters (C0, DEL and C1), and characters that
  // change the direction of the text or end a line (Unicode's bidirectional controls and
  // separators).
  bool harmless = false;
};
// REQUIRES: the text is not empty.
Character FirstCharacter(std::string_view text);

// The text with '?' for each character that is not harmless.
std::string Harmless(std::string_view text);

}  // namespace prd

#endif  // PRD_COMMON_BASE_TEXT_H_
