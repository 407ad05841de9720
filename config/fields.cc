#include "config/fields.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

namespace prd {
namespace {

std::string Joined(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : path + "." + std::string(key);
}

// The list's pairs; nothing when it is none of such numbers.
std::optional<Field::Pairs> ReadPairs(const TomlNode& node, std::int32_t least, std::int32_t most) {
  const auto* list = std::get_if<std::vector<TomlNode>>(&node.value);
  if (list == nullptr) return std::nullopt;
  Field::Pairs pairs;
  for (const TomlNode& element : *list) {
    const auto* both = std::get_if<std::vector<TomlNode>>(&element.value);
    if (both == nullptr || both->size() != 2) return std::nullopt;
    std::array<std::int64_t, 2> ends{};
    for (std::size_t i = 0; i < 2; ++i) {
      const auto* whole = std::get_if<std::int64_t>(&(*both)[i].value);
      if (whole == nullptr || *whole < least || *whole > most) return std::nullopt;
      ends[i] = *whole;
    }
    pairs.emplace_back(static_cast<std::int32_t>(ends[0]), static_cast<std::int32_t>(ends[1]));
  }
  return pairs;
}

// Sets the index of the name that the node is, if it is one.
bool ReadName(const TomlNode& node, Field::Names names, std::size_t* index) {
  const auto* text = std::get_if<std::string>(&node.value);
  const auto found = text == nullptr ? names.end() : std::find(names.begin(), names.end(), *text);
  if (found == names.end()) return false;
  *index = static_cast<std::size_t>(found - names.begin());
  return true;
}

// Sets a key's value from a node. False, and the value as it was: the node has none that is
// allowed.
struct Read {
  const TomlNode& node;

  bool operator()(const Field::Text& of) const {
    const auto* text = std::get_if<std::string>(&node.value);
    if (text == nullptr || !of.rule(*text).empty()) return false;
    *of.value = *text;
    return true;
  }
  bool operator()(const Field::Flag& of) const {
    const auto* flag = std::get_if<bool>(&node.value);
    if (flag == nullptr) return false;
    *of.value = *flag;
    return true;
  }
  bool operator()(const Field::Whole& of) const {
    if (const auto* text = std::get_if<std::string>(&node.value)) {
      const auto named = std::find_if(of.names.begin(), of.names.end(),
                                      [&](const auto& one) { return one.name == *text; });
      if (named == of.names.end()) return false;
      *of.value = named->value;
      return true;
    }
    const auto* whole = std::get_if<std::int64_t>(&node.value);
    if (whole == nullptr || *whole < of.range.least || *whole > of.range.most) return false;
    *of.value = *whole;
    return true;
  }
  bool operator()(const Field::Real& of) const {
    double real = std::nan("");
    if (const auto* number = std::get_if<double>(&node.value)) real = *number;
    if (const auto* whole = std::get_if<std::int64_t>(&node.value)) {
      real = static_cast<double>(*whole);
    }
    if (!(real >= of.range.least && real < of.range.below)) return false;
    *of.value = real;
    return true;
  }
  bool operator()(const Field::Name& of) const { return ReadName(node, of.names, of.value); }
  bool operator()(const Field::NameOrPairs& of) const {
    if (ReadName(node, of.names, of.value)) {
      of.pairs->clear();
      return true;
    }
    std::optional<Field::Pairs> pairs = ReadPairs(node, of.least, of.most);
    if (!pairs) return false;
    *of.value = of.names.size();
    *of.pairs = *std::move(pairs);
    return true;
  }
};

}  // namespace

Status ConfigErrors::ToStatus() const {
  if (errors_.empty()) return Status::Ok();
  std::vector<std::pair<int, std::string>> sorted = errors_;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string text;
  for (const auto& [line, what] : sorted) {
    if (!text.empty()) text += '\n';
    if (!file_.empty()) text += file_ + ":" + (line > 0 ? std::to_string(line) + ": " : " ");
    text += what;
  }
  return Status(Code::kInvalidArgument, text);
}

std::string NearestWord(std::string_view word, const std::vector<std::string>& words) {
  std::string nearest;
  std::size_t best = word.size() / 3 + 2;  // more changes than this is another word
  if (word.size() > 100) return nearest;
  for (const std::string& candidate : words) {
    std::vector<std::size_t> row(candidate.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= word.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i;
      for (std::size_t j = 1; j < row.size(); ++j) {
        const std::size_t replaced = diagonal + (word[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
      }
    }
    if (row.back() >= best) continue;
    best = row.back();
    nearest = candidate;
  }
  return nearest;
}

// A rule says what it allows when it is given what it refuses.
std::string TextsAllowed(Field::TextRule rule) { return "a list; each is " + rule("\x7f"); }

std::string TextsValue(const std::vector<std::string>& texts) {
  std::string list;
  for (const std::string& text : texts) list += (list.empty() ? "" : ", ") + TomlText(text);
  return "[" + list + "]";
}

// ---- reading ----

std::string FieldReader::Path(std::string_view key) const { return Joined(path_, key); }

const TomlTable::Entry* FieldReader::Take(std::string_view key) {
  known_.emplace_back(key);
  return table_ == nullptr ? nullptr : table_->Find(key);
}

void FieldReader::Wrong(const TomlTable::Entry& entry, const TomlNode& found,
                        const std::string& allowed) {
  wrong_.push_back(entry.name);
  errors_->Add(entry.line,
               Path(entry.name) + ": found " + Describe(found) + ", allowed is " + allowed);
}

void FieldReader::Missing(std::string_view key, const std::string& allowed) {
  wrong_.emplace_back(key);
  errors_->Add(line_, Path(key) + ": found nothing, needed is " + allowed);
}

void FieldReader::Add(const Field& field) {
  const TomlTable::Entry* entry = Take(field.key);
  if (entry != nullptr) {
    if (!std::visit(Read{entry->node}, field.kind)) Wrong(*entry, entry->node, Allowed(field));
  } else if (field.required) {
    Missing(field.key, Allowed(field));
  }
}

void FieldReader::Texts(std::string_view key, std::vector<std::string>* value, Field::TextRule rule,
                        std::string_view, Need need) {
  const TomlTable::Entry* entry = Take(key);
  if (entry == nullptr) {
    if (need == Need::kRequired) Missing(key, TextsAllowed(rule));
    return;
  }
  const auto* list = std::get_if<std::vector<TomlNode>>(&entry->node.value);
  if (list == nullptr) return Wrong(*entry, entry->node, TextsAllowed(rule));
  std::vector<std::string> texts;
  for (const TomlNode& element : *list) {
    const auto* text = std::get_if<std::string>(&element.value);
    if (text == nullptr || !rule(*text).empty()) return Wrong(*entry, element, TextsAllowed(rule));
    texts.push_back(*text);
  }
  *value = std::move(texts);
}

void FieldReader::Table(std::string_view key, bool chosen, std::string_view,
                        const std::function<void(Fields&)>& describe) {
  const TomlTable::Entry* entry = Take(key);
  if (entry == nullptr && !chosen) return;
  if (entry != nullptr && entry->node.table() == nullptr) {
    return Wrong(*entry, entry->node, "a table: [" + Path(key) + "]");
  }
  FieldReader inner(entry == nullptr ? nullptr : entry->node.table(), Path(key),
                    entry == nullptr ? line_ : entry->line, errors_);
  describe(inner);
  inner.RefuseOthers();
}

void FieldReader::Check(const Status& status) {
  if (wrong_.empty()) Report(status);
}

void FieldReader::CheckOver(std::initializer_list<std::string_view> keys, const Status& status) {
  const auto wrong = [this](std::string_view key) {
    return std::find(wrong_.begin(), wrong_.end(), key) != wrong_.end();
  };
  if (std::none_of(keys.begin(), keys.end(), wrong)) Report(status);
}

void FieldReader::Report(const Status& status) {
  if (status.ok()) return;
  const std::string& what = status.message();
  const TomlTable::Entry* entry =
      table_ == nullptr ? nullptr : table_->Find(what.substr(0, what.find(':')));
  errors_->Add(entry == nullptr ? line_ : entry->line, Path(what));
}

void FieldReader::RefuseOthers() {
  if (table_ == nullptr) return;
  for (const TomlTable::Entry& entry : table_->entries) {
    if (std::find(known_.begin(), known_.end(), entry.name) != known_.end()) continue;
    const std::string nearest = NearestWord(entry.name, known_);
    std::string all;
    for (const std::string& known : known_) all += (all.empty() ? "" : ", ") + known;
    errors_->Add(entry.line, Path(entry.name) + ": unknown key" +
                                 (nearest.empty() ? "; allowed are " + all
                                                  : "; did you mean \"" + nearest + "\"?"));
  }
}

// ---- writing ----

FieldWriter::FieldWriter(std::string path) : path_(std::move(path)) { text_ = "[" + path_ + "]\n"; }

void FieldWriter::Add(const Field& field) {
  text_ += std::string(field.key) + " = " + ValueText(field) + "\n";
}

void FieldWriter::Table(std::string_view key, bool chosen, std::string_view,
                        const std::function<void(Fields&)>& describe) {
  if (!chosen) return;
  FieldWriter inner(path_ + "." + std::string(key));
  describe(inner);
  text_ += "\n" + inner.text_;
}

// ---- listing ----

void FieldLister::Add(const Field& field) {
  lines_.push_back({.key = Joined(path_, field.key),
                    .value = field.required ? "" : ValueText(field),
                    .allowed = Allowed(field),
                    .help = std::string(field.help)});
}

void FieldLister::Texts(std::string_view key, std::vector<std::string>* value, Field::TextRule rule,
                        std::string_view help, Need need) {
  lines_.push_back({.key = Joined(path_, key),
                    .value = need == Need::kRequired ? "" : TextsValue(*value),
                    .allowed = TextsAllowed(rule),
                    .help = std::string(help)});
}

void FieldLister::Table(std::string_view key, bool, std::string_view,
                        const std::function<void(Fields&)>& describe) {
  FieldLister inner(Joined(path_, key));
  describe(inner);
  lines_.insert(lines_.end(), inner.lines_.begin(), inner.lines_.end());
}

}  // namespace prd
