#include "engines/draw.h"

#include <algorithm>

#include "common/base/check.h"

namespace prd {
namespace {

// Sets what it is shown. Every fourth number and every fourth name stays at its default.
class Drawer final : public Fields {
 public:
  Drawer(Prng* prng, int workers) : prng_(prng), workers_(workers) {}

  void Table(std::string_view, bool, std::string_view,
             const std::function<void(Fields&)>& describe) override {
    describe(*this);
  }
  void Check(const Status&) override {}

  void operator()(const Field::Text&) {}
  void operator()(const Field::Flag& of) { *of.value = prng_->Below(2) == 0; }
  void operator()(const Field::Whole& of) {
    const auto [from, to] = of.range.draw;
    if (from <= to && Changes()) *of.value = Between(from, to);
  }
  void operator()(const Field::Real& of) {
    const auto [from, below] = of.range.draw;
    if (from < below && Changes()) *of.value = from + (below - from) * prng_->Unit();
  }
  void operator()(const Field::Name& of) {
    if (Changes()) *of.value = prng_->Below(of.names.size());
  }
  void operator()(const Field::NameOrPairs& of) {
    of.pairs->clear();
    *of.value = prng_->Below(of.names.size() + (workers_ > 1 ? 1 : 0));
    if (*of.value == of.names.size()) *of.pairs = Tree();
  }

 protected:
  void Add(const Field& field) override { std::visit(*this, field.kind); }

 private:
  bool Changes() { return prng_->Below(4) > 0; }
  std::int64_t Between(std::int64_t from, std::int64_t to) {
    return from +
           static_cast<std::int64_t>(prng_->Below(static_cast<std::uint64_t>(to - from) + 1));
  }

  // Over all workers, and some pairs more.
  Field::Pairs Tree() {
    Field::Pairs pairs;
    for (int rank = 1; rank < workers_; ++rank) pairs.emplace_back(Between(0, rank - 1), rank);
    for (std::int64_t more = Between(0, 4); more > 0 && workers_ > 2; --more) {
      const std::int64_t low = Between(0, workers_ - 2);
      const Field::Pairs::value_type pair(low, Between(low + 1, workers_ - 1));
      if (std::find(pairs.begin(), pairs.end(), pair) == pairs.end()) pairs.push_back(pair);
    }
    return pairs;
  }

  Prng* prng_;
  int workers_;
};

}  // namespace

EngineOptions Draw(const EngineOptions& of, Prng* prng, int workers, int start) {
  constexpr int kTries = 1000;  // a rule over several keys refuses a part of them only
  for (int i = 0; i < kTries; ++i) {
    EngineOptions options = Defaults(of);
    Drawer drawer(prng, workers);
    options.Describe(drawer);
    options.Fit(prng, workers);
    if (Validate(options, workers).ok() && Validate(options, start).ok()) return options;
  }
  PRD_CHECK(!"an engine's draw ranges hold options that go together");
  return of;
}

}  // namespace prd
