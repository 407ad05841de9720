// The options of any engine, and what can be done with them. Which engines there are: registry.h.
#ifndef PRD_ENGINES_ANY_ENGINE_H_
#define PRD_ENGINES_ANY_ENGINE_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "engines/engine.h"
#include "engines/options.h"

namespace prd {

// The options of one engine, of whichever type. A value: copies are independent. One that was moved
// from can only be assigned to, or end.
class EngineOptions {
 public:
  EngineOptions();  // the first engine of the registry, with its defaults
  template <typename T>
  requires requires { T::kAbout; }
  EngineOptions(T options) : held_(std::make_unique<HeldOf<T>>(std::move(options))) {
    static_assert(OptionsOfAnEngine<T>);
  }
  EngineOptions(const EngineOptions& other) : held_(other.held_->Copy()) {}
  EngineOptions(EngineOptions&&) noexcept = default;
  EngineOptions& operator=(const EngineOptions& other) {
    held_ = other.held_->Copy();
    return *this;
  }
  EngineOptions& operator=(EngineOptions&&) noexcept = default;

  // The options as what they are; nullptr if they are another engine's. Owned by this object.
  template <typename T>
  T* As() {
    auto* of = dynamic_cast<HeldOf<T>*>(held_.get());
    return of == nullptr ? nullptr : &of->options;
  }
  template <typename T>
  const T* As() const {
    return const_cast<EngineOptions*>(this)->As<T>();
  }
  // REQUIRES: they are of this type.
  template <typename T>
  const T& Get() const {
    PRD_CHECK(As<T>() != nullptr);
    return *As<T>();
  }

  // As in engines/options.h.
  const EngineAbout& about() const { return held_->about(); }
  void Describe(Fields& fields) { held_->Describe(fields); }
  Status Check(int workers) const { return held_->Check(workers); }
  std::string Paces(int workers) const { return held_->Paces(workers); }
  std::unique_ptr<Engine> Make() const { return held_->Make(); }
  void Fit(Prng* prng, int workers) { held_->Fit(prng, workers); }

  friend bool operator==(const EngineOptions& a, const EngineOptions& b) {
    return a.held_->Equals(*b.held_);
  }

 private:
  struct Held {
    virtual ~Held() = default;
    virtual std::unique_ptr<Held> Copy() const = 0;
    virtual bool Equals(const Held& other) const = 0;
    virtual const EngineAbout& about() const = 0;
    virtual void Describe(Fields& fields) = 0;
    virtual Status Check(int workers) const = 0;
    virtual std::string Paces(int workers) const = 0;
    virtual std::unique_ptr<Engine> Make() const = 0;
    virtual void Fit(Prng* prng, int workers) = 0;
  };
  template <typename T>
  struct HeldOf final : Held {
    explicit HeldOf(T of) : options(std::move(of)) {}
    std::unique_ptr<Held> Copy() const override { return std::make_unique<HeldOf>(options); }
    bool Equals(const Held& other) const override {
      const auto* same = dynamic_cast<const HeldOf*>(&other);
      return same != nullptr && same->options == options;
    }
    const EngineAbout& about() const override { return T::kAbout; }
    void Describe(Fields& fields) override { options.Describe(fields); }
    Status Check(int workers) const override { return options.Check(workers); }
    std::string Paces(int workers) const override { return options.Paces(workers); }
    std::unique_ptr<Engine> Make() const override { return options.Make(); }
    void Fit(Prng* prng, int workers) override {
      if constexpr (requires { options.Fit(prng, workers); }) options.Fit(prng, workers);
    }
    T options;
  };
  std::unique_ptr<Held> held_;
};

inline std::string_view EngineName(const EngineOptions& options) { return options.about().name; }

// Every engine with its default options, in the order in which help texts list them.
const std::vector<EngineOptions>& AllEngines();
// The same engine with its default options.
const EngineOptions& Defaults(const EngineOptions& of);
// Adds an engine to those of the registry, with its default options: tests do. Call it before any
// engine is used, from one thread. REQUIRES: no other engine has its name.
void RegisterEngine(EngineOptions defaults);

// Ok or "KEY: found X, allowed is Y". `workers` that the job starts with, 0: not known.
Status Validate(const EngineOptions& options, int workers);

// Why one slow worker of so many sets the pace of all with these options (options.h, Paces): a
// sentence, with what would change that. Empty: nothing in the options says so; always so for fewer
// than two workers.
std::string SlowestSetsPace(const EngineOptions& options, int workers);

// REQUIRES: Validate(options, workers) is ok.
inline std::unique_ptr<Engine> MakeEngine(const EngineOptions& options) { return options.Make(); }

}  // namespace prd

#endif  // PRD_ENGINES_ANY_ENGINE_H_
