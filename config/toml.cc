#include "config/toml.h"

#include <toml++/toml.h>

#include <exception>

#include "common/base/fields.h"

namespace prd {
namespace {

TomlTable Convert(const toml::table& from);

TomlNode Convert(const toml::node& from) {
  TomlNode node{.line = static_cast<int>(from.source().begin.line), .value = TomlDate{}};
  if (const auto* text = from.as_string()) node.value = text->get();
  if (const auto* whole = from.as_integer()) node.value = whole->get();
  if (const auto* real = from.as_floating_point()) node.value = real->get();
  if (const auto* flag = from.as_boolean()) node.value = flag->get();
  if (const auto* table = from.as_table()) node.value = Convert(*table);
  if (const auto* array = from.as_array()) {
    std::vector<TomlNode> nodes;
    for (const toml::node& element : *array) nodes.push_back(Convert(element));
    node.value = std::move(nodes);
  }
  return node;
}

TomlTable Convert(const toml::table& from) {
  TomlTable table;
  for (const auto& [key, value] : from) {
    table.entries.push_back({.name = std::string(key.str()),
                             .line = static_cast<int>(key.source().begin.line),
                             .node = Convert(value)});
  }
  return table;
}

}  // namespace

const TomlTable::Entry* TomlTable::Find(std::string_view name) const {
  for (const Entry& entry : entries) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

std::string Describe(const TomlNode& node) {
  struct Words {
    std::string operator()(const std::string& text) const {
      constexpr std::size_t kShown = 60;
      if (text.size() <= kShown) return TomlText(text) + " (a text)";
      return TomlText(text.substr(0, kShown)) + "... (a text)";
    }
    std::string operator()(std::int64_t whole) const { return std::to_string(whole); }
    std::string operator()(double real) const { return TomlReal(real); }
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(TomlDate) const { return "a date or time"; }
    std::string operator()(const std::vector<TomlNode>&) const { return "an array"; }
    std::string operator()(const TomlTable&) const { return "a table"; }
  };
  return std::visit(Words{}, node.value);
}

Result<TomlTable> ParseToml(std::string_view text, const std::string& file) {
  try {
    return Convert(toml::parse(text, file));
  } catch (const toml::parse_error& error) {
    return Status(Code::kInvalidArgument, file + ":" + std::to_string(error.source().begin.line) +
                                              ": " + std::string(error.description()));
  } catch (const std::exception& error) {
    return Status(Code::kInvalidArgument, file + ": " + error.what());
  }
}

}  // namespace prd
