// TOML text as plain values with line numbers: the only place that sees toml++.
#ifndef PRD_CONFIG_TOML_H_
#define PRD_CONFIG_TOML_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "prd/status.h"

namespace prd {

struct TomlNode;

// In the order of keys' names; no name twice.
struct TomlTable {
  struct Entry;
  std::vector<Entry> entries;
  const Entry* Find(std::string_view name) const;
};

// A date or a time: nothing in prd takes one.
struct TomlDate {};

struct TomlNode {
  int line = 0;  // from 1
  std::variant<std::string, std::int64_t, double, bool, TomlDate, std::vector<TomlNode>, TomlTable>
      value;
  const TomlTable* table() const { return std::get_if<TomlTable>(&value); }
};

struct TomlTable::Entry {
  std::string name;
  int line = 0;  // of the key
  TomlNode node;
};

// The value for a message, with its kind where the text alone would mislead: `"8" (a text)`.
std::string Describe(const TomlNode& node);

// kInvalidArgument: "FILE:LINE: what is not TOML about it". Nesting is limited; text of any content
// is safe.
Result<TomlTable> ParseToml(std::string_view text, const std::string& file);

}  // namespace prd

#endif  // PRD_CONFIG_TOML_H_
