#include "common/base/archive.h"

#include <gtest/gtest.h>

#include "common/base/prng.h"

namespace prd {
namespace {

struct Inner {
  int a = 0;
  std::string b;
  void Archive(StateArchive& ar) { ar(a, b); }
  friend bool operator==(const Inner&, const Inner&) = default;
};

struct Named {
  int a = 0;
  std::string b;
  static void Visit(auto& m, auto&& field) { field("a", m.a)("b", m.b, kUnlessZero, "other"); }
  friend bool operator==(const Named&, const Named&) = default;
};

struct Outer {
  bool flag = false;
  double x = 0;
  Instant at;
  std::vector<Inner> list;
  std::deque<std::int64_t> queue;
  std::map<int, std::string> map;
  std::set<std::uint64_t> set;
  std::optional<double> maybe;
  std::variant<int, std::string, Inner> any;
  std::vector<std::pair<int, double>> pairs;
  void Archive(StateArchive& ar) { ar(flag, x, at, list, queue, map, set, maybe, any, pairs); }
  friend bool operator==(const Outer&, const Outer&) = default;
};

Outer Random(Prng* prng) {
  Outer o;
  o.flag = prng->Below(2) == 0;
  o.x = prng->Unit();
  o.at.ns = static_cast<std::int64_t>(prng->Next());
  for (std::uint64_t i = prng->Below(4); i > 0; --i) {
    o.list.push_back({static_cast<int>(i), std::string(prng->Below(20), 'x')});
    o.queue.push_back(static_cast<std::int64_t>(prng->Next()));
    o.map[static_cast<int>(prng->Below(9))] = "v";
    o.set.insert(prng->Next());
    o.pairs.emplace_back(1, prng->Unit());
  }
  if (prng->Below(2) == 0) o.maybe = prng->Unit();
  switch (prng->Below(3)) {
    case 0:
      o.any = 7;
      break;
    case 1:
      o.any = std::string("text");
      break;
    default:
      o.any = Inner{3, "inner"};
  }
  return o;
}

TEST(Archive, AStructThatNamesItsFieldsIsSavedInTheirOrder) {
  Named named{.a = 7, .b = "seven"};
  Inner inner{.a = 7, .b = "seven"};
  StateArchive saver = StateArchive::Saver();
  saver(named);
  EXPECT_EQ(saver.bytes(), SaveState(inner));
  Named loaded;
  StateArchive loader = StateArchive::Loader(saver.bytes());
  loader(loaded);
  EXPECT_TRUE(loader.ok() && loader.AtEnd());
  EXPECT_EQ(loaded, named);
}

TEST(Archive, LoadsWhatItSaved) {
  Prng prng(1);
  for (int i = 0; i < 1000; ++i) {
    const Outer saved = Random(&prng);
    const std::string bytes = SaveState(saved);
    StateArchive ar = StateArchive::Loader(bytes);
    Outer loaded;
    loaded.Archive(ar);
    ASSERT_TRUE(ar.ok() && ar.AtEnd());
    ASSERT_EQ(saved, loaded);
    ASSERT_EQ(HashBytes(bytes), HashBytes(SaveState(loaded)));
  }
}

TEST(Archive, DamagedBytesNeitherCrashNorPassUnnoticedWhenShort) {
  Prng prng(2);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = SaveState(Random(&prng));
    const std::size_t cut = prng.Below(bytes.size());
    {
      StateArchive ar = StateArchive::Loader(std::string_view(bytes).substr(0, cut));
      Outer loaded;
      loaded.Archive(ar);
      EXPECT_FALSE(ar.ok());
    }
    for (int flips = 0; flips < 4; ++flips) {
      bytes[prng.Below(bytes.size())] = static_cast<char>(prng.Next());
    }
    StateArchive ar = StateArchive::Loader(bytes);
    Outer loaded;
    loaded.Archive(ar);
    EXPECT_LE(loaded.list.size(), bytes.size());  // allocation stays bounded by the input
  }
}

}  // namespace
}  // namespace prd
