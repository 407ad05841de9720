// One description of a table's keys, used three ways: read and checked, written, listed.
//
// keys.cc says once, for every struct of settings, what its keys are called, what they mean in
// units, and what is allowed; the value that a fresh struct holds is the default. A FieldReader
// fills a struct from a TOML table and collects what is wrong, a FieldWriter writes the normalised
// table, a FieldLister the reference.
#ifndef PRD_CONFIG_FIELDS_H_
#define PRD_CONFIG_FIELDS_H_

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "config/toml.h"
#include "prd/status.h"

namespace prd {

class Fields {
 public:
  // Empty when the text will do, else what is allowed: "tcp://ADDRESS:PORT or ipc://PATH".
  using TextRule = std::string (*)(const std::string& text);
  enum class Need { kOptional, kRequired };

  virtual ~Fields() = default;

  virtual void Text(std::string_view key, std::string* value, TextRule rule,
                    Need need = Need::kOptional) = 0;
  virtual void Flag(std::string_view key, bool* value) = 0;
  // In [least, below).
  virtual void Real(std::string_view key, double* value, double least, double below) = 0;
  // The index of one of the names.
  virtual void Name(std::string_view key, std::size_t* value,
                    std::span<const std::string_view> names, Need need = Need::kOptional) = 0;
  // A number in [least, most], some of which go by a name, and are then written by it.
  struct Named {
    std::string_view name;
    std::int64_t value;
  };
  virtual void NumberOrName(std::string_view key, std::int64_t* value, std::int64_t least,
                            std::int64_t most, std::string_view unit,
                            std::span<const Named> names) = 0;
  // A name, or a list of pairs of whole numbers in [least, most], which counts as the name after
  // the last: *value is names.size() then.
  using Pairs = std::vector<std::pair<std::int32_t, std::int32_t>>;
  virtual void NameOrPairs(std::string_view key, std::size_t* value, Pairs* pairs,
                           std::span<const std::string_view> names, std::int32_t least,
                           std::int32_t most) = 0;
  // A table under a name; it may be absent. `chosen` tables count also when absent, by their
  // defaults, and are the ones a writer writes.
  virtual void Table(std::string_view key, bool chosen,
                     const std::function<void(Fields&)>& describe) = 0;
  // A rule over several keys: ok or "KEY: found X, allowed is Y". After the keys it speaks of.
  virtual void Check(const Status& status) = 0;

  // In [least, most]; unit is "ms", "bytes", ..., or empty for a plain number.
  template <std::integral T>
  void Whole(std::string_view key, T* value, std::int64_t least, std::int64_t most,
             std::string_view unit) {
    auto wide = static_cast<std::int64_t>(*value);
    WholeNumber(key, &wide, least, most, unit);
    *value = static_cast<T>(wide);
  }

  // An enum class whose values are 0, 1, ... in the order of names.
  template <typename E>
  requires std::is_enum_v<E>
  void Choice(std::string_view key, E* value, std::span<const std::string_view> names) {
    auto index = static_cast<std::size_t>(*value);
    Name(key, &index, names);
    *value = static_cast<E>(index);
  }

 protected:
  virtual void WholeNumber(std::string_view key, std::int64_t* value, std::int64_t least,
                           std::int64_t most, std::string_view unit) = 0;
};

// What is wrong with a file, in the order of lines.
class ConfigErrors {
 public:
  explicit ConfigErrors(std::string file) : file_(std::move(file)) {}
  void Add(int line, const std::string& what) { errors_.emplace_back(line, what); }
  bool empty() const { return errors_.empty(); }
  // Ok, or kInvalidArgument with a line "FILE:LINE: what" for each.
  Status ToStatus() const;

 private:
  std::string file_;
  std::vector<std::pair<int, std::string>> errors_;
};

class FieldReader : public Fields {
 public:
  // `path` is put before keys in messages ("job.p-reduce"); `line` is where the table begins. A
  // null table is an absent one. Both pointers must outlive the reader.
  FieldReader(const TomlTable* table, std::string path, int line, ConfigErrors* errors)
      : table_(table), path_(std::move(path)), line_(line), errors_(errors) {}

  void Text(std::string_view key, std::string* value, TextRule rule, Need need) override;
  void Flag(std::string_view key, bool* value) override;
  void Real(std::string_view key, double* value, double least, double below) override;
  void Name(std::string_view key, std::size_t* value, std::span<const std::string_view> names,
            Need need) override;
  void NumberOrName(std::string_view key, std::int64_t* value, std::int64_t least,
                    std::int64_t most, std::string_view unit,
                    std::span<const Named> names) override;
  void NameOrPairs(std::string_view key, std::size_t* value, Pairs* pairs,
                   std::span<const std::string_view> names, std::int32_t least,
                   std::int32_t most) override;
  void Table(std::string_view key, bool chosen,
             const std::function<void(Fields&)>& describe) override;
  void Check(const Status& status) override;

  // Call after all keys were asked for: what is in the table and was not asked for is an error.
  void RefuseOthers();
  // Marks a key as known that the caller reads by itself.
  const TomlTable::Entry* Take(std::string_view key);

 protected:
  void WholeNumber(std::string_view key, std::int64_t* value, std::int64_t least, std::int64_t most,
                   std::string_view unit) override;

 private:
  void Wrong(const TomlTable::Entry& entry, const std::string& allowed);
  void Missing(std::string_view key, const std::string& allowed);
  std::string Path(std::string_view key) const;

  const TomlTable* table_;
  std::string path_;
  int line_;
  ConfigErrors* errors_;
  bool wrong_ = false;  // a key of this table; rules over several keys would only repeat it
  std::vector<std::string> known_;
};

class FieldWriter : public Fields {
 public:
  // Writes "[path]" first.
  explicit FieldWriter(std::string path);

  void Text(std::string_view key, std::string* value, TextRule rule, Need need) override;
  void Flag(std::string_view key, bool* value) override;
  void Real(std::string_view key, double* value, double least, double below) override;
  void Name(std::string_view key, std::size_t* value, std::span<const std::string_view> names,
            Need need) override;
  void NumberOrName(std::string_view key, std::int64_t* value, std::int64_t least,
                    std::int64_t most, std::string_view unit,
                    std::span<const Named> names) override;
  void NameOrPairs(std::string_view key, std::size_t* value, Pairs* pairs,
                   std::span<const std::string_view> names, std::int32_t least,
                   std::int32_t most) override;
  void Table(std::string_view key, bool chosen,
             const std::function<void(Fields&)>& describe) override;
  void Check(const Status&) override {}

  const std::string& text() const { return text_; }

 protected:
  void WholeNumber(std::string_view key, std::int64_t* value, std::int64_t least, std::int64_t most,
                   std::string_view unit) override;

 private:
  void Line(std::string_view key, const std::string& value);
  std::string path_;
  std::string text_;
};

// A line per key: "job.lease_ms = 2000   a whole number from 20 to 3600000 (ms)".
class FieldLister : public Fields {
 public:
  struct Line {
    std::string key;     // with its path
    std::string preset;  // as TOML; empty for a required key
    std::string allowed;
  };
  explicit FieldLister(std::string path) : path_(std::move(path)) {}

  void Text(std::string_view key, std::string* value, TextRule rule, Need need) override;
  void Flag(std::string_view key, bool* value) override;
  void Real(std::string_view key, double* value, double least, double below) override;
  void Name(std::string_view key, std::size_t* value, std::span<const std::string_view> names,
            Need need) override;
  void NumberOrName(std::string_view key, std::int64_t* value, std::int64_t least,
                    std::int64_t most, std::string_view unit,
                    std::span<const Named> names) override;
  void NameOrPairs(std::string_view key, std::size_t* value, Pairs* pairs,
                   std::span<const std::string_view> names, std::int32_t least,
                   std::int32_t most) override;
  void Table(std::string_view key, bool chosen,
             const std::function<void(Fields&)>& describe) override;
  void Check(const Status&) override {}

  const std::vector<Line>& lines() const { return lines_; }

 protected:
  void WholeNumber(std::string_view key, std::int64_t* value, std::int64_t least, std::int64_t most,
                   std::string_view unit) override;

 private:
  void Add(std::string_view key, std::string preset, std::string allowed);
  std::string path_;
  std::vector<Line> lines_;
};

// The word in the list that a typing error is most likely to have meant; empty when none is near.
std::string NearestWord(std::string_view word, const std::vector<std::string>& words);

}  // namespace prd

#endif  // PRD_CONFIG_FIELDS_H_
