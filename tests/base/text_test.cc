// Texts from elsewhere: cut at whole characters, and harmless on a terminal.
#include "common/base/text.h"

#include <gtest/gtest.h>

namespace prd {
namespace {

TEST(Text, IsCutBetweenCharacters) {
  EXPECT_EQ(CutText("short"), "short");
  EXPECT_EQ(CutText(std::string(256, 'x')).size(), 256u);
  EXPECT_EQ(CutText(std::string(70'000, 'x')).size(), 256u);
  for (const std::string character : {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}) {
    for (std::size_t before = 250; before <= 256; ++before) {
      std::string text(before, 'x');
      for (int i = 0; i < 5; ++i) text += character;
      const std::string_view cut = CutText(text);
      EXPECT_LE(cut.size(), 256u);
      EXPECT_GT(cut.size(), 252u);
      EXPECT_EQ((cut.size() - before) % character.size(), 0u) << before << " " << character;
    }
  }
  EXPECT_EQ(CutText(std::string(300, '\x80')).size(), 256u);
}

TEST(Text, KeepsWhatIsHarmless) {
  for (const char* text :
       {"", "rank 2: no space left", "Z\xc3\xbcrich \xe2\x82\xac \xf0\x9f\x98\x80", "\xc2\xa0",
        "\xe2\x80\xa7", "\xe2\x80\xaf"}) {
    EXPECT_EQ(Harmless(text), text);
  }
}

TEST(Text, ReplacesWhatATerminalMayObey) {
  EXPECT_EQ(Harmless(std::string_view("a\0b\x1b[2J\n\x7f", 9)), "a?b?[2J??");
  EXPECT_EQ(Harmless("C1: \xc2\x9b"
                     "31m, \xc2\x80, \xc2\x9f"),
            "C1: ?31m, ?, ?");
  EXPECT_EQ(Harmless("a\xe2\x80\xae"
                     "b\xe2\x81\xa6"
                     "c\xe2\x80\x8f"
                     "d\xd8\x9c"),
            "a?b?c?d?");
  EXPECT_EQ(Harmless("a\xe2\x80\xa8"
                     "b\xe2\x80\xa9"),
            "a?b?");
}

TEST(Text, ReplacesWhatIsNoUtf8) {
  EXPECT_EQ(Harmless("\x9b"
                     "31m"),
            "?31m");                                // C1 where bytes are Latin-1
  EXPECT_EQ(Harmless("\xc0\x9b"), "??");            // longer than need be
  EXPECT_EQ(Harmless("\xe0\x82\x9b"), "???");       // the same
  EXPECT_EQ(Harmless("\xed\xa0\x80"), "???");       // half of a pair
  EXPECT_EQ(Harmless("\xf4\x90\x80\x80"), "????");  // beyond Unicode
  EXPECT_EQ(Harmless("cut \xe2\x82"), "cut ??");
  EXPECT_EQ(Harmless("\xff\xfe"), "??");
}

}  // namespace
}  // namespace prd
