// One description of a table of settings: what each key is called, which values it may have, in
// which unit, and what it means.
//
// A struct of settings names its keys to a Fields, in order. The values that a fresh struct holds
// are the defaults. What happens to a key is up to the class behind Fields: it is read from TOML,
// written, listed, checked, explained in the manual, drawn at random, ... (config/fields.h,
// config/manual.h, engines/draw.h). Pure: no file, no TOML.
#ifndef PRD_COMMON_BASE_FIELDS_H_
#define PRD_COMMON_BASE_FIELDS_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "prd/status.h"

namespace prd {

// The whole numbers that a key may have, both ends included.
struct WholeRange {
  std::int64_t least = 0;
  std::int64_t most = 0;
  std::string_view unit = {};  // "ms", "bytes", ...; empty: a plain number
  // Random settings are drawn from here: values that a small job meets.
  struct Draw {
    std::int64_t from = 0;
    std::int64_t to = -1;  // less than from: the key keeps its default
  } draw = {};
};

// The real numbers from `least` to less than `below`.
struct RealRange {
  double least = 0;
  double below = 0;
  struct Draw {
    double from = 0;
    double below = 0;
  } draw = {};
};

// A key as a Fields sees it. Pointers and views are valid during the call only.
struct Field {
  using Names = std::span<const std::string_view>;
  using Pairs = std::vector<std::pair<std::int32_t, std::int32_t>>;
  // Empty when the text will do, else what is allowed: "tcp://ADDRESS:PORT or ipc://PATH". No rule
  // allows the text "\x7f".
  using TextRule = std::string (*)(const std::string& text);
  struct NamedNumber {
    std::string_view name;
    std::int64_t value = 0;
  };

  struct Text {
    std::string* value;
    TextRule rule;
  };
  struct Flag {
    bool* value;
  };
  // Numbers that have a name are written by it, and may be outside the range.
  struct Whole {
    std::int64_t* value;
    WholeRange range;
    std::span<const NamedNumber> names;
  };
  struct Real {
    double* value;
    RealRange range;
  };
  // One of the names, by its index.
  struct Name {
    std::size_t* value;
    Names names;
  };
  // One of the names, or a list of pairs of numbers in [least, most]: *value is names.size() then.
  struct NameOrPairs {
    std::size_t* value;
    Pairs* pairs;
    Names names;
    std::int32_t least;
    std::int32_t most;
  };

  std::string_view key;
  std::string_view help;  // sentences for the manual
  std::variant<Text, Flag, Whole, Real, Name, NameOrPairs> kind;
  bool required = false;
};

// "a whole number from 2 to 100000 (workers)", "\"sum\" or \"latest\"", ...
std::string Allowed(const Field& field);
// Whether the key's value is one of those.
bool IsAllowed(const Field& field);
// The key's value as TOML has it: "3", "\"sum\"", "[[0, 1]]", ...
std::string ValueText(const Field& field);

// A TOML basic string, quoted and escaped, and a float that reads back as the same double.
std::string TomlText(std::string_view text);
std::string TomlReal(double value);

// "KEY: found FOUND, allowed is ALLOWED", as every error about a setting reads.
Status Wrong(std::string_view key, std::string_view found, std::string_view allowed);

class Fields {
 public:
  enum class Need { kOptional, kRequired };

  virtual ~Fields() = default;

  void Text(std::string_view key, std::string* value, Field::TextRule rule,
            std::string_view help = {}, Need need = Need::kOptional) {
    Add({key, help, Field::Text{value, rule}, need == Need::kRequired});
  }
  void Flag(std::string_view key, bool* value, std::string_view help = {}) {
    Add({key, help, Field::Flag{value}});
  }
  template <std::integral T>
  void Whole(std::string_view key, T* value, const WholeRange& range, std::string_view help = {}) {
    NamedWhole(key, value, range, {}, help);
  }
  // A number, some of which go by a name.
  template <std::integral T>
  void NamedWhole(std::string_view key, T* value, const WholeRange& range,
                  std::initializer_list<Field::NamedNumber> names, std::string_view help = {}) {
    auto wide = static_cast<std::int64_t>(*value);
    Add({key, help, Field::Whole{&wide, range, {names.begin(), names.size()}}});
    *value = static_cast<T>(wide);
  }
  void Real(std::string_view key, double* value, const RealRange& range,
            std::string_view help = {}) {
    Add({key, help, Field::Real{value, range}});
  }
  // The index of one of the names.
  void Name(std::string_view key, std::size_t* value, Field::Names names,
            std::string_view help = {}, Need need = Need::kOptional) {
    Add({key, help, Field::Name{value, names}, need == Need::kRequired});
  }
  // An enum class whose values are 0, 1, ... in the order of names.
  template <typename E>
  requires std::is_enum_v<E>
  void Choice(std::string_view key, E* value, std::initializer_list<std::string_view> names,
              std::string_view help = {}) {
    auto index = static_cast<std::size_t>(*value);
    Name(key, &index, {names.begin(), names.size()}, help);
    *value = static_cast<E>(index);
  }
  void NameOrPairs(std::string_view key, std::size_t* value, Field::Pairs* pairs,
                   Field::Names names, std::int32_t least, std::int32_t most,
                   std::string_view help = {}) {
    Add({key, help, Field::NameOrPairs{value, pairs, names, least, most}});
  }

  // A table under a name; it may be absent. `chosen` tables count also when absent, by their
  // defaults, and are the ones a writer writes.
  virtual void Table(std::string_view key, bool chosen, std::string_view help,
                     const std::function<void(Fields&)>& describe) = 0;
  // A rule over several keys: ok or Wrong(). After the keys that the rule is about.
  virtual void Check(const Status& status) = 0;
  // The same, of a rule that looks at these keys of the table alone.
  virtual void CheckOver(std::initializer_list<std::string_view>, const Status& status) {
    Check(status);
  }

 protected:
  virtual void Add(const Field& field) = 0;
};

// Whether every key has an allowed value; rules over several keys count too.
class RangeChecker final : public Fields {
 public:
  const Status& status() const { return status_; }  // the first that is wrong

  void Table(std::string_view, bool, std::string_view,
             const std::function<void(Fields&)>& describe) override {
    describe(*this);
  }
  void Check(const Status& status) override {
    if (status_.ok()) status_ = status;
  }

 protected:
  void Add(const Field& field) override {
    if (!IsAllowed(field)) Check(Wrong(field.key, ValueText(field), Allowed(field)));
  }

 private:
  Status status_;
};

}  // namespace prd

#endif  // PRD_COMMON_BASE_FIELDS_H_
