// What the config does with the keys of a table (common/base/fields.h): a FieldReader fills a
// struct from a TOML table and collects what is wrong, a FieldWriter writes the normalised table, a
// FieldLister the reference.
#ifndef PRD_CONFIG_FIELDS_H_
#define PRD_CONFIG_FIELDS_H_

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/fields.h"
#include "config/toml.h"
#include "prd/status.h"

namespace prd {

// What is wrong with a file, in the order of lines. Empty: the text is no file's.
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

// Describes the config's own tables, some of which have lists of texts.
class ListFields : public Fields {
 public:
  // The rule is for each of them.
  virtual void Texts(std::string_view key, std::vector<std::string>* value, Field::TextRule rule,
                     std::string_view help, Need need) = 0;
};
std::string TextsAllowed(Field::TextRule rule);
std::string TextsValue(const std::vector<std::string>& texts);

class FieldReader final : public ListFields {
 public:
  // `path` is put before keys in messages ("job.p-reduce"); `line` is where the table begins. A
  // null table is an absent one. Both pointers must outlive the reader.
  FieldReader(const TomlTable* table, std::string path, int line, ConfigErrors* errors)
      : table_(table), path_(std::move(path)), line_(line), errors_(errors) {}

  void Table(std::string_view key, bool chosen, std::string_view help,
             const std::function<void(Fields&)>& describe) override;
  void Check(const Status& status) override;
  void CheckOver(std::initializer_list<std::string_view> keys, const Status& status) override;
  void Texts(std::string_view key, std::vector<std::string>* value, Field::TextRule rule,
             std::string_view help, Need need) override;

  // Call after all keys were asked for: what is in the table and was not asked for is an error.
  void RefuseOthers();
  // Marks a key as known that the caller reads by itself.
  const TomlTable::Entry* Take(std::string_view key);

 protected:
  void Add(const Field& field) override;

 private:
  void Wrong(const TomlTable::Entry& entry, const TomlNode& found, const std::string& allowed);
  void Missing(std::string_view key, const std::string& allowed);
  void Report(const Status& status);
  std::string Path(std::string_view key) const;

  const TomlTable* table_;
  std::string path_;
  int line_;
  ConfigErrors* errors_;
  // Keys of this table. Rules over several keys would only repeat what is wrong with one.
  std::vector<std::string> wrong_;
  std::vector<std::string> known_;
};

class FieldWriter final : public Fields {
 public:
  // Writes "[path]" first.
  explicit FieldWriter(std::string path);

  void Table(std::string_view key, bool chosen, std::string_view help,
             const std::function<void(Fields&)>& describe) override;
  void Check(const Status&) override {}

  const std::string& text() const { return text_; }

 protected:
  void Add(const Field& field) override;

 private:
  std::string path_;
  std::string text_;
};

// A line per key: "job.lease_ms = 2000   a whole number from 20 to 3600000 (ms)".
class FieldLister final : public ListFields {
 public:
  struct Line {
    std::string key;    // with its path
    std::string value;  // as TOML; empty for a required key
    std::string allowed;
    std::string help;
  };
  // Empty for no path.
  explicit FieldLister(std::string path) : path_(std::move(path)) {}

  void Table(std::string_view key, bool chosen, std::string_view help,
             const std::function<void(Fields&)>& describe) override;
  void Check(const Status&) override {}
  void Texts(std::string_view key, std::vector<std::string>* value, Field::TextRule rule,
             std::string_view help, Need need) override;

  const std::vector<Line>& lines() const { return lines_; }

 protected:
  void Add(const Field& field) override;

 private:
  std::string path_;
  std::vector<Line> lines_;
};

// The word in the list that a typing error is most likely to have meant; empty when none is near.
std::string NearestWord(std::string_view word, const std::vector<std::string>& words);

}  // namespace prd

#endif  // PRD_CONFIG_FIELDS_H_
