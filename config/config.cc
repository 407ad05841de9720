#include "config/config.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "config/fields.h"
#include "config/glob.h"
#include "config/keys.h"
#include "config/toml.h"

namespace prd {
namespace {

constexpr std::size_t kMaxFileBytes = 4 << 20;

JobRule ReadRule(const TomlTable* table, int line, ConfigErrors* errors) {
  JobRule rule{.pattern = {}, .spec = {}, .line = line};
  FieldReader reader(table, "job", line, errors);
  DescribeJob(reader, &rule.pattern, PatternRule, &rule.spec, &rule);
  reader.RefuseOthers();
  return rule;
}

// Two identities with one key, say, would make it matter which comes first.
void RefuseSecond(const char* key, const std::vector<std::string>& mine,
                  const std::vector<std::string>& theirs, const std::string& other, int line,
                  ConfigErrors* errors) {
  for (const std::string& text : mine) {
    if (std::find(theirs.begin(), theirs.end(), text) == theirs.end()) continue;
    errors->Add(line, std::string("identity.") + key + ": found " + TomlText(text) +
                          " a second time, allowed is once: identity " + TomlText(other) +
                          " has it");
  }
}

void ReadIdentities(const TomlTable::Entry* entry, Config* config, ConfigErrors* errors) {
  if (entry == nullptr) return;
  constexpr const char* kAllowed = "[[identity]] tables, each with name and jobs";
  const auto* array = std::get_if<std::vector<TomlNode>>(&entry->node.value);
  if (array == nullptr) {
    errors->Add(entry->line,
                "identity: found " + Describe(entry->node) + ", allowed are " + kAllowed);
    return;
  }
  for (const TomlNode& node : *array) {
    if (node.table() == nullptr) {
      errors->Add(node.line, "identity: found " + Describe(node) + ", allowed are " + kAllowed);
      continue;
    }
    Identity identity;
    identity.line = node.line;
    FieldReader reader(node.table(), "identity", node.line, errors);
    DescribeIdentity(reader, &identity);
    reader.RefuseOthers();
    for (const Identity& earlier : config->identities) {
      RefuseSecond("name", {identity.name}, {earlier.name}, earlier.name, node.line, errors);
      RefuseSecond("keys", identity.keys, earlier.keys, earlier.name, node.line, errors);
      RefuseSecond("users", identity.users, earlier.users, earlier.name, node.line, errors);
    }
    config->identities.push_back(std::move(identity));
  }
}

void ReadRules(const TomlTable::Entry* entry, Config* config, ConfigErrors* errors) {
  constexpr const char* kAllowed = "one or more [[job]] tables, each with name and engine";
  if (entry == nullptr) {
    errors->Add(0, std::string("job: found nothing, needed is ") + kAllowed);
    return;
  }
  const auto* array = std::get_if<std::vector<TomlNode>>(&entry->node.value);
  if (array == nullptr || array->empty()) {
    errors->Add(entry->line,
                "job: found " + Describe(entry->node) + ", allowed is " + std::string(kAllowed));
    return;
  }
  for (const TomlNode& node : *array) {
    if (node.table() == nullptr) {
      errors->Add(node.line, "job: found " + Describe(node) + ", allowed is " + kAllowed);
      continue;
    }
    JobRule rule = ReadRule(node.table(), node.line, errors);
    for (const JobRule& earlier : config->jobs) {
      if (rule.pattern.empty() || !GlobCovers(earlier.pattern, rule.pattern)) continue;
      const bool same = earlier.pattern == rule.pattern;
      errors->Add(rule.line, "job.name: found " + TomlText(rule.pattern) +
                                 (same ? " a second time, allowed is once: line "
                                       : " behind " + TomlText(earlier.pattern) +
                                             ", allowed is before it: line ") +
                                 std::to_string(earlier.line) + " takes all its jobs");
      break;
    }
    config->jobs.push_back(std::move(rule));
  }
}

}  // namespace

Result<Config> LoadConfig(const std::string& path, const DaemonConfig& daemon) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    const int error = errno;
    return Status(error == ENOENT ? Code::kNotFound : Code::kInvalidArgument,
                  path + ": cannot be read: " + std::strerror(error));
  }
  std::string text;
  char chunk[1 << 16];
  while (in && text.size() <= kMaxFileBytes) {
    in.read(chunk, sizeof chunk);
    text.append(chunk, static_cast<std::size_t>(in.gcount()));
  }
  if (text.size() > kMaxFileBytes) {
    return Status(Code::kInvalidArgument,
                  path + ": found over 4 MiB, which is no configuration of prd");
  }
  if (!in.eof()) {
    return Status(Code::kInvalidArgument, path + ": cannot be read: is it a directory?");
  }
  return ParseConfig(text, path, daemon);
}

Result<Config> ParseConfig(std::string_view text, const std::string& file,
                           const DaemonConfig& daemon) {
  Result<TomlTable> root = ParseToml(text, file);
  if (!root.ok()) return root.status();
  Config config;
  config.file = file;
  config.daemon = daemon;
  ConfigErrors errors(file);
  FieldReader reader(&*root, "", 0, &errors);
  ReadIdentities(reader.Take("identity"), &config, &errors);
  reader.Table("daemon", true, "", [&](Fields& table) {
    DescribeDaemon(table, &config.daemon);
    table.Check(CheckAccess(config.daemon, config.identities));
  });
  ReadRules(reader.Take("job"), &config, &errors);
  reader.RefuseOthers();
  PRD_RETURN_IF_ERROR(errors.ToStatus());
  return config;
}

Result<JobSpec> FindJob(const Config& config, const std::string& name) {
  const std::string allowed = JobNameRule(name);
  if (!allowed.empty()) {
    return Status(Code::kInvalidArgument,
                  "job: found " + TomlText(name.substr(0, 60)) + ", allowed is " + allowed);
  }
  std::string patterns;
  for (const JobRule& rule : config.jobs) {
    patterns += (patterns.empty() ? "" : ", ") + TomlText(rule.pattern);
    if (!GlobMatches(rule.pattern, name)) continue;
    JobSpec spec = rule.spec;
    spec.name = name;
    const bool keys = !config.daemon.curve_secret_key_file.empty();
    if (rule.mesh_security_by_keys && keys) spec.mesh_security = MeshSecurity::kAead;
    spec.text = JobSpecToToml(spec);
    return spec;
  }
  return Status(Code::kNotFound, "job: found " + TomlText(name) + ", which no [[job]] in " +
                                     config.file + " matches; there are " + patterns);
}

std::optional<JobSpec> LiveSwitch(const Config& before, const Config& now,
                                  const std::string& name) {
  const auto rule = std::find_if(now.jobs.begin(), now.jobs.end(),
                                 [&](const JobRule& of) { return GlobMatches(of.pattern, name); });
  if (rule == now.jobs.end() || !rule->live) return std::nullopt;
  const Result<JobSpec> was = FindJob(before, name);
  Result<JobSpec> is = FindJob(now, name);
  if (!is.ok() || (was.ok() && was->text == is->text)) return std::nullopt;
  return *std::move(is);
}

std::string JobSpecToToml(const JobSpec& spec) {
  JobSpec copy = spec;  // a writer only reads
  FieldWriter writer("job");
  DescribeJob(writer, &copy.name, JobNameRule, &copy, nullptr);
  return writer.text();
}

Result<JobSpec> JobSpecFromToml(std::string_view text) {
  const std::string file = "job spec";
  Result<TomlTable> root = ParseToml(text, file);
  if (!root.ok()) return root.status();
  ConfigErrors errors(file);
  JobSpec spec;
  FieldReader reader(&*root, "", 0, &errors);
  reader.Table("job", true, "",
               [&](Fields& table) { DescribeJob(table, &spec.name, JobNameRule, &spec, nullptr); });
  reader.RefuseOthers();
  PRD_RETURN_IF_ERROR(errors.ToStatus());
  spec.text = text;
  return spec;
}

std::string ConfigReference() {
  DaemonConfig daemon;
  JobSpec spec;
  std::string name;
  std::string text;
  FieldLister lister("daemon");
  DescribeDaemon(lister, &daemon);
  FieldLister job("job");
  JobRule rule;
  DescribeJob(job, &name, PatternRule, &spec, &rule);
  Identity someone;
  FieldLister identity("identity");
  DescribeIdentity(identity, &someone);
  std::vector<FieldLister::Line> lines = lister.lines();
  lines.insert(lines.end(), identity.lines().begin(), identity.lines().end());
  lines.insert(lines.end(), job.lines().begin(), job.lines().end());
  for (const FieldLister::Line& line : lines) {
    text += line.key + " = " + (line.value.empty() ? "(required)" : line.value) + "\n    " +
            line.allowed + "\n";
  }
  return text;
}

}  // namespace prd
