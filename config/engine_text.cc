#include "config/engine_text.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

#include "config/fields.h"
#include "config/toml.h"

namespace prd {
namespace {

// What stands between commas, but for those within brackets.
std::vector<std::string> Settings(const std::string& text) {
  std::vector<std::string> settings;
  int depth = 0;
  bool begins = true;
  for (const char c : text) {
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    const bool ends = c == ',' && depth == 0;
    if (begins) settings.emplace_back();
    if (!ends) settings.back() += c;
    begins = ends;
  }
  return settings;
}

// "group_size = 5\nweights = \"constant\"\n" of "group_size=5,weights=constant".
Result<std::string> ToToml(const std::string& text) {
  std::string toml;
  for (const std::string& setting : Settings(text)) {
    const std::size_t equals = setting.find('=');
    if (equals == std::string::npos) {
      return Wrong("engine", TomlText(setting), "KEY=VALUE after the colon");
    }
    const std::string value = setting.substr(equals + 1);
    const bool word = value != "true" && value != "false" && !value.starts_with('[') &&
                      (value.empty() || value.find_first_not_of("0123456789.+-e") != value.npos);
    toml += setting.substr(0, equals) + " = " + (word ? TomlText(value) : value) + "\n";
  }
  return toml;
}

std::vector<FieldLister::Line> LinesOf(EngineOptions engine) {
  FieldLister lister("");
  Describe(&engine, lister);
  return lister.lines();
}

}  // namespace

Result<EngineOptions> ParseEngine(const std::string& text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const std::string name = text.substr(0, colon);
  std::vector<EngineOptions> engines = AllEngines();
  std::vector<std::string_view> names;
  for (const EngineOptions& engine : engines) names.push_back(EngineName(engine));
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    return Wrong("engine", TomlText(name), Allowed({.kind = Field::Name{nullptr, names}}));
  }
  EngineOptions& engine = engines[static_cast<std::size_t>(found - names.begin())];

  const Result<std::string> toml = ToToml(colon < text.size() ? text.substr(colon + 1) : "");
  if (!toml.ok()) return toml.status();
  const Result<TomlTable> table = ParseToml(*toml, text);
  if (!table.ok()) return table.status();
  ConfigErrors errors(text);
  FieldReader reader(&*table, name, 0, &errors);
  Describe(&engine, reader);
  reader.Check(Validate(engine, 0));
  reader.RefuseOthers();
  PRD_RETURN_IF_ERROR(errors.ToStatus());
  return engine;
}

std::string OptionsText(const EngineOptions& engine) {
  const std::vector<FieldLister::Line> lines = LinesOf(engine);
  const std::vector<FieldLister::Line> defaults = LinesOf(Defaults(engine));
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].value == defaults[i].value) continue;
    std::string setting = lines[i].key + "=" + lines[i].value;
    std::erase(setting, ' ');
    std::erase(setting, '"');
    text += (text.empty() ? "" : ",") + setting;
  }
  return text;
}

std::string EngineText(const EngineOptions& engine) {
  const std::string options = OptionsText(engine);
  return std::string(EngineName(engine)) + (options.empty() ? "" : ":" + options);
}

}  // namespace prd
