#include "config/manual.h"

#include <functional>
#include <sstream>
#include <string_view>
#include <utility>

#include "config/config.h"
#include "config/fields.h"
#include "config/keys.h"

namespace prd {
namespace {

constexpr std::size_t kColumns = 100;

constexpr std::string_view kHeader =
    R"(# The configuration of prd, and its manual: every key there is, with its default, what is
# allowed, and what it is for. A key that is left out has the value written here; `name` and
# `engine` of a [[job]] must be given.
#
#   prd --config FILE --check-config    checks a file completely and says what is wrong, by line
#   systemctl reload prd                runs that begin from then on use the new file; runs that are
#                                       going keep what they began with. Who may do what counts at
#                                       once, also for connections that there are. A file with
#                                       errors changes nothing: the errors are in the log.
#
# This file is made from the descriptions in config/keys.cc and engines/*/options.h.
)";

// As comment lines.
std::string Comment(std::string_view text) {
  std::istringstream words{std::string(text)};
  std::string lines;
  std::string line = "#";
  for (std::string word; words >> word;) {
    if (line.size() + 1 + word.size() > kColumns) lines += std::exchange(line, "#") + "\n";
    line += " " + word;
  }
  return lines + line + "\n";
}

class ManualWriter final : public ListFields {
 public:
  // Writes the table with this heading; `path` is what tables within it are called after. `mark` is
  // put before its lines: "#" leaves the table out.
  ManualWriter(std::string_view help, std::string_view heading, std::string path,
               std::string_view mark = "")
      : path_(std::move(path)), mark_(mark) {
    text_ = "\n" + Comment(help) + mark_ + std::string(heading) + "\n";
  }

  void Table(std::string_view key, bool, std::string_view help,
             const std::function<void(Fields&)>& describe) override {
    const std::string path = path_ + "." + std::string(key);
    ManualWriter inner(help, "[" + path + "]", path);
    describe(inner);
    text_ += inner.text_;
  }
  void Check(const Status&) override {}

  void Texts(std::string_view key, std::vector<std::string>* value, Field::TextRule rule,
             std::string_view help, Need need) override {
    Write(key, help, need == Need::kRequired, TextsAllowed(rule), TextsValue(*value));
  }

  const std::string& text() const { return text_; }

 protected:
  void Add(const Field& field) override {
    const bool flag = std::holds_alternative<Field::Flag>(field.kind);
    Write(field.key, field.help, field.required, flag ? "" : Allowed(field), ValueText(field));
  }

 private:
  void Write(std::string_view key, std::string_view help, bool required, const std::string& allowed,
             const std::string& value) {
    text_ += "\n" + Comment(help);
    if (!allowed.empty()) text_ += Comment((required ? "Required: " : "Allowed: ") + allowed);
    text_ += mark_ + std::string(key) + " = " + value + "\n";
  }

  std::string path_;
  std::string mark_;
  std::string text_;
};

}  // namespace

std::string ConfigManual() {
  DaemonConfig config;
  ManualWriter daemon("The daemon itself.", "[daemon]", "daemon");
  DescribeDaemon(daemon, &config);
  Identity someone{.name = "alice", .jobs = {"alice-*"}};
  ManualWriter identity(
      "One [[identity]] for everybody who may do something: it takes the # from these lines. "
      "Without any, there are the user that prd runs as, root, and the keys of "
      "curve_authorized_keys_file, for all jobs. server/SECURITY.md says whom prd protects from "
      "whom.",
      "[[identity]]", "identity", "#");
  DescribeIdentity(identity, &someone);
  std::string name = "*";
  JobSpec spec;
  ManualWriter job(
      "One [[job]] for every kind of job. A worker names its job (PRD_JOB); a job that no [[job]] "
      "matches is refused.",
      "[[job]]", "job");
  JobRule rule;
  DescribeJob(job, &name, PatternRule, &spec, &rule);
  return std::string(kHeader) + daemon.text() + identity.text() + job.text();
}

std::string ConfigSample(const EngineOptions& engine) {
  const std::string name(EngineName(engine));
  FieldWriter table("job." + name);
  EngineOptions options = engine;  // a writer only reads
  options.Describe(table);
  const std::string about = name + " for eight workers on this host. " +
                            std::string(engine.about().help) + " What each key means: prd.toml.";
  return Comment(about) + "\n[[job]]\nname = \"*\"\nengine = " + TomlText(name) +
         "\nworkers = 8\n\n" + table.text();
}

}  // namespace prd
