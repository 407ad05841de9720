#include "config/fields.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

namespace prd {
namespace {

std::string WholeAllowed(std::int64_t least, std::int64_t most, std::string_view unit) {
  std::string text = "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
  if (!unit.empty()) text += " (" + std::string(unit) + ")";
  return text;
}

std::string RealAllowed(double least, double below) {
  return "a number from " + TomlReal(least) + " to below " + TomlReal(below);
}

std::string NamesAllowed(std::span<const std::string_view> names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " or " : ", ";
    text += "\"" + std::string(names[i]) + "\"";
  }
  return text;
}

std::string NumberOrNameAllowed(std::int64_t least, std::int64_t most, std::string_view unit,
                                std::span<const Fields::Named> names) {
  std::string text;
  for (const Fields::Named& named : names) text += "\"" + std::string(named.name) + "\", ";
  return text + "or " + WholeAllowed(least, most, unit);
}

std::string NumberOrNameText(std::int64_t value, std::span<const Fields::Named> names) {
  for (const Fields::Named& named : names) {
    if (named.value == value) return TomlText(named.name);
  }
  return std::to_string(value);
}

std::string NameOrPairsAllowed(std::span<const std::string_view> names, std::int32_t least,
                               std::int32_t most) {
  std::string text;
  for (const std::string_view name : names) text += "\"" + std::string(name) + "\", ";
  return text + "or a list of pairs [a, b] of whole numbers from " + std::to_string(least) +
         " to " + std::to_string(most);
}

std::string NameOrPairsText(std::size_t value, const Fields::Pairs& pairs,
                            std::span<const std::string_view> names) {
  if (value < names.size()) return TomlText(names[value]);
  std::string text;
  for (const auto& [a, b] : pairs) {
    text += (text.empty() ? "[" : ", [") + std::to_string(a) + ", " + std::to_string(b) + "]";
  }
  return "[" + text + "]";
}

// The list's pairs; nothing when it is none of such numbers.
std::optional<Fields::Pairs> ReadPairs(const TomlNode& node, std::int32_t least,
                                       std::int32_t most) {
  const auto* list = std::get_if<std::vector<TomlNode>>(&node.value);
  if (list == nullptr) return std::nullopt;
  Fields::Pairs pairs;
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

constexpr const char* kFlagAllowed = "true or false";

// A rule tells what it allows when it is given what it refuses; every rule refuses this.
std::string TextAllowed(Fields::TextRule rule) { return rule(std::string(1, '\x7f')); }

}  // namespace

Status ConfigErrors::ToStatus() const {
  if (errors_.empty()) return Status::Ok();
  std::vector<std::pair<int, std::string>> sorted = errors_;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string text;
  for (const auto& [line, what] : sorted) {
    if (!text.empty()) text += '\n';
    text += file_ + ":" + (line > 0 ? std::to_string(line) + ": " : " ") + what;
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

// ---- reading ----

std::string FieldReader::Path(std::string_view key) const {
  return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

const TomlTable::Entry* FieldReader::Take(std::string_view key) {
  known_.emplace_back(key);
  return table_ == nullptr ? nullptr : table_->Find(key);
}

void FieldReader::Wrong(const TomlTable::Entry& entry, const std::string& allowed) {
  wrong_ = true;
  errors_->Add(entry.line,
               Path(entry.name) + ": found " + Describe(entry.node) + ", allowed is " + allowed);
}

void FieldReader::Missing(std::string_view key, const std::string& allowed) {
  wrong_ = true;
  errors_->Add(line_, Path(key) + ": found nothing, needed is " + allowed);
}

void FieldReader::Text(std::string_view key, std::string* value, TextRule rule, Need need) {
  const TomlTable::Entry* entry = Take(key);
  if (entry == nullptr) {
    if (need == Need::kRequired) Missing(key, TextAllowed(rule));
    return;
  }
  const auto* text = std::get_if<std::string>(&entry->node.value);
  if (text == nullptr) return Wrong(*entry, TextAllowed(rule));
  const std::string allowed = rule(*text);
  if (!allowed.empty()) return Wrong(*entry, allowed);
  *value = *text;
}

void FieldReader::Flag(std::string_view key, bool* value) {
  const TomlTable::Entry* entry = Take(key);
  if (entry == nullptr) return;
  const auto* flag = std::get_if<bool>(&entry->node.value);
  if (flag == nullptr) return Wrong(*entry, kFlagAllowed);
  *value = *flag;
}

void FieldReader::WholeNumber(std::string_view key, std::int64_t* value, std::int64_t least,
                              std::int64_t most, std::string_view unit) {
  const TomlTable::Entry* entry = Take(key);
  if (entry == nullptr) return;
  const auto* whole = std::get_if<std::int64_t>(&entry->node.value);
  if (whole == nullptr || *whole < least || *whole > most) {
    return Wrong(*entry, WholeAllowed(least, most, unit));
  }
  *value = *whole;
}

void FieldReader::Real(std::string_view key, double* value, double least, double below) {
  const TomlTable::Entry* entry = Take(key);
  if (entry == nullptr) return;
  double real = std::nan("");
  if (const auto* number = std::get_if<double>(&entry->node.value)) real = *number;
  if (const auto* whole = std::get_if<std::int64_t>(&entry->node.value)) {
    real = static_cast<double>(*whole);
  }
  if (!(real >= least && real < below)) return Wrong(*entry, RealAllowed(least, below));
  *value = real;
}

void FieldReader::Name(std::string_view key, std::size_t* value,
                       std::span<const std::string_view> names, Need need) {
  const TomlTable::Entry* entry = Take(key);
  if (entry == nullptr) {
    if (need == Need::kRequired) Missing(key, NamesAllowed(names));
    return;
  }
  const auto* text = std::get_if<std::string>(&entry->node.value);
  const auto found = text == nullptr ? names.end() : std::find(names.begin(), names.end(), *text);
  if (found == names.end()) return Wrong(*entry, NamesAllowed(names));
  *value = static_cast<std::size_t>(found - names.begin());
}

void FieldReader::NumberOrName(std::string_view key, std::int64_t* value, std::int64_t least,
                               std::int64_t most, std::string_view unit,
                               std::span<const Named> names) {
  const TomlTable::Entry* entry = Take(key);
  if (entry == nullptr) return;
  const auto* whole = std::get_if<std::int64_t>(&entry->node.value);
  if (whole != nullptr && *whole >= least && *whole <= most) {
    *value = *whole;
    return;
  }
  if (const auto* text = std::get_if<std::string>(&entry->node.value)) {
    for (const Named& named : names) {
      if (named.name != *text) continue;
      *value = named.value;
      return;
    }
  }
  Wrong(*entry, NumberOrNameAllowed(least, most, unit, names));
}

void FieldReader::NameOrPairs(std::string_view key, std::size_t* value, Pairs* pairs,
                              std::span<const std::string_view> names, std::int32_t least,
                              std::int32_t most) {
  const TomlTable::Entry* entry = Take(key);
  if (entry == nullptr) return;
  if (const auto* text = std::get_if<std::string>(&entry->node.value)) {
    const auto found = std::find(names.begin(), names.end(), *text);
    if (found != names.end()) {
      *value = static_cast<std::size_t>(found - names.begin());
      pairs->clear();
      return;
    }
  } else if (std::optional<Pairs> read = ReadPairs(entry->node, least, most)) {
    *value = names.size();
    *pairs = *std::move(read);
    return;
  }
  Wrong(*entry, NameOrPairsAllowed(names, least, most));
}

void FieldReader::Table(std::string_view key, bool chosen,
                        const std::function<void(Fields&)>& describe) {
  const TomlTable::Entry* entry = Take(key);
  if (entry == nullptr && !chosen) return;
  if (entry != nullptr && entry->node.table() == nullptr) {
    return Wrong(*entry, "a table: [" + Path(key) + "]");
  }
  FieldReader inner(entry == nullptr ? nullptr : entry->node.table(), Path(key),
                    entry == nullptr ? line_ : entry->line, errors_);
  // What is wrong out here may be what a rule over all of it would look at.
  inner.wrong_ = wrong_;
  describe(inner);
  inner.RefuseOthers();
}

void FieldReader::Check(const Status& status) {
  if (status.ok() || wrong_) return;
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

void FieldWriter::Line(std::string_view key, const std::string& value) {
  text_ += std::string(key) + " = " + value + "\n";
}

void FieldWriter::Text(std::string_view key, std::string* value, TextRule, Need) {
  Line(key, TomlText(*value));
}
void FieldWriter::Flag(std::string_view key, bool* value) { Line(key, *value ? "true" : "false"); }
void FieldWriter::Real(std::string_view key, double* value, double, double) {
  Line(key, TomlReal(*value));
}
void FieldWriter::WholeNumber(std::string_view key, std::int64_t* value, std::int64_t, std::int64_t,
                              std::string_view) {
  Line(key, std::to_string(*value));
}
void FieldWriter::Name(std::string_view key, std::size_t* value,
                       std::span<const std::string_view> names, Need) {
  Line(key, TomlText(names[*value]));
}
void FieldWriter::NumberOrName(std::string_view key, std::int64_t* value, std::int64_t,
                               std::int64_t, std::string_view, std::span<const Named> names) {
  Line(key, NumberOrNameText(*value, names));
}
void FieldWriter::NameOrPairs(std::string_view key, std::size_t* value, Pairs* pairs,
                              std::span<const std::string_view> names, std::int32_t, std::int32_t) {
  Line(key, NameOrPairsText(*value, *pairs, names));
}
void FieldWriter::Table(std::string_view key, bool chosen,
                        const std::function<void(Fields&)>& describe) {
  if (!chosen) return;
  FieldWriter inner(path_ + "." + std::string(key));
  describe(inner);
  text_ += "\n" + inner.text_;
}

// ---- listing ----

void FieldLister::Add(std::string_view key, std::string preset, std::string allowed) {
  lines_.push_back({.key = path_ + "." + std::string(key),
                    .preset = std::move(preset),
                    .allowed = std::move(allowed)});
}

void FieldLister::Text(std::string_view key, std::string* value, TextRule rule, Need need) {
  Add(key, need == Need::kRequired ? "" : TomlText(*value), TextAllowed(rule));
}
void FieldLister::Flag(std::string_view key, bool* value) {
  Add(key, *value ? "true" : "false", kFlagAllowed);
}
void FieldLister::Real(std::string_view key, double* value, double least, double below) {
  Add(key, TomlReal(*value), RealAllowed(least, below));
}
void FieldLister::WholeNumber(std::string_view key, std::int64_t* value, std::int64_t least,
                              std::int64_t most, std::string_view unit) {
  Add(key, std::to_string(*value), WholeAllowed(least, most, unit));
}
void FieldLister::Name(std::string_view key, std::size_t* value,
                       std::span<const std::string_view> names, Need need) {
  Add(key, need == Need::kRequired ? "" : TomlText(names[*value]), NamesAllowed(names));
}
void FieldLister::NumberOrName(std::string_view key, std::int64_t* value, std::int64_t least,
                               std::int64_t most, std::string_view unit,
                               std::span<const Named> names) {
  Add(key, NumberOrNameText(*value, names), NumberOrNameAllowed(least, most, unit, names));
}
void FieldLister::NameOrPairs(std::string_view key, std::size_t* value, Pairs* pairs,
                              std::span<const std::string_view> names, std::int32_t least,
                              std::int32_t most) {
  Add(key, NameOrPairsText(*value, *pairs, names), NameOrPairsAllowed(names, least, most));
}
void FieldLister::Table(std::string_view key, bool, const std::function<void(Fields&)>& describe) {
  FieldLister inner(path_ + "." + std::string(key));
  describe(inner);
  lines_.insert(lines_.end(), inner.lines_.begin(), inner.lines_.end());
}

}  // namespace prd
