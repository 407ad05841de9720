#include "common/io/secret.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <new>
#include <set>

namespace prd::secret_test {
namespace {

TEST(Secret, ItsBytesAreZeroOnceItIsGone) {
  alignas(SecretBytes<32>) std::array<unsigned char, sizeof(SecretBytes<32>)> memory{};
  auto* secret = new (memory.data()) SecretBytes<32>{1, 2, 3};
  (*secret)[31] = 4;
  EXPECT_EQ(memory[0], 1);
  EXPECT_EQ(memory[31], 4);
  std::destroy_at(secret);
  EXPECT_TRUE(std::all_of(memory.begin(), memory.end(), [](unsigned char c) { return c == 0; }));
}

TEST(Secret, ACleansedTextIsEmptyAndItsMemoryZero) {
  std::string text = "a secret that is longer than what a string keeps in itself";
  const char* memory = text.data();
  const std::size_t size = text.size();
  Cleanse(&text);
  EXPECT_TRUE(text.empty());
  ASSERT_EQ(text.data(), memory);  // it still has that memory
  EXPECT_TRUE(std::all_of(memory, memory + size, [](char c) { return c == 0; }));
}

TEST(Secret, RandomBitsDoNotComeTwice) {
  std::set<std::uint64_t> drawn;
  for (int i = 0; i < 1000; ++i) drawn.insert(RandomBits());
  EXPECT_EQ(drawn.size(), 1000u);
}

TEST(Secret, AProcessThatHidesItsMemoryLeavesNoCore) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::prctl(PR_GET_DUMPABLE) != 1) ::_exit(2);
    HideMemory();
    ::_exit(::prctl(PR_GET_DUMPABLE) == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace prd::secret_test
