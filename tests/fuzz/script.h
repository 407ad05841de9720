// Reads bytes as a script; after its end all is zero.
#ifndef PRD_TESTS_FUZZ_SCRIPT_H_
#define PRD_TESTS_FUZZ_SCRIPT_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

namespace prd {

class Script {
 public:
  explicit Script(std::string_view bytes) : bytes_(bytes) {}

  bool over() const { return bytes_.empty(); }
  std::uint8_t Byte() {
    if (bytes_.empty()) return 0;
    const auto byte = static_cast<std::uint8_t>(bytes_.front());
    bytes_.remove_prefix(1);
    return byte;
  }
  std::size_t Below(std::size_t bound) { return Byte() % bound; }
  // Mostly small; now and then anything.
  std::uint64_t Number() {
    const std::uint8_t first = Byte();
    if (first < 240) return first % 16;
    std::uint64_t number = 0;
    for (int i = 0; i < 8; ++i) number = number << 8 | Byte();
    return number;
  }
  std::string Text(std::size_t most) {
    const std::size_t length = Below(most + 1);
    const std::string text(bytes_.substr(0, length));
    bytes_.remove_prefix(std::min(bytes_.size(), text.size()));
    return text;
  }

 private:
  std::string_view bytes_;
};

}  // namespace prd

#endif  // PRD_TESTS_FUZZ_SCRIPT_H_
