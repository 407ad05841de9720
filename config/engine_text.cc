#include "config/engine_text.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

#include "config/config.h"
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
  engine.Describe(lister);
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
  ConfigErrors errors("");
  FieldReader reader(&*table, name, 0, &errors);
  engine.Describe(reader);
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

Result<JobSpec> SwitchedSpec(const JobSpec& now, const std::string& text) {
  JobSpec spec = now;
  const std::size_t colon = std::min(text.find(':'), text.size());
  const std::string name = text.substr(0, colon);
  std::vector<std::string> settings;
  const auto key = [](const std::string& setting) { return setting.substr(0, setting.find('=')); };
  for (std::string& setting : Settings(colon < text.size() ? text.substr(colon + 1) : "")) {
    const std::string of = key(setting);
    if (of != "lease_ms" && of != "heartbeat_ms") {
      settings.push_back(std::move(setting));
      continue;
    }
    const std::string value = setting.substr(std::min(setting.find('='), setting.size() - 1) + 1);
    const bool number = !value.empty() && value.size() <= 9 &&
                        value.find_first_not_of("0123456789") == std::string::npos;
    if (!number) return Wrong(of, TomlText(value), "a whole number of ms");
    (of == "lease_ms" ? spec.lease_ms : spec.heartbeat_ms) =
        static_cast<std::uint32_t>(std::stoul(value));
  }
  if (name == EngineName(now.engine)) {
    for (std::string& kept : Settings(OptionsText(now.engine))) {
      const bool named = std::any_of(settings.begin(), settings.end(),
                                     [&](const std::string& s) { return key(s) == key(kept); });
      if (!named) settings.push_back(std::move(kept));
    }
  }
  std::string engine = name;
  for (const std::string& setting : settings) {
    engine += (engine.size() == name.size() ? ":" : ",") + setting;
  }
  Result<EngineOptions> options = ParseEngine(engine);
  if (!options.ok()) return options.status();
  spec.engine = *std::move(options);
  // Read again as a whole: what holds between keys is checked there.
  Result<JobSpec> read = JobSpecFromToml(JobSpecToToml(spec));
  if (read.ok()) read->make_engine = now.make_engine;
  return read;
}

std::string EngineText(const EngineOptions& engine) {
  const std::string options = OptionsText(engine);
  return std::string(EngineName(engine)) + (options.empty() ? "" : ":" + options);
}

}  // namespace prd
