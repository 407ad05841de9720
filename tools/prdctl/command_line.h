// The commands of prdctl and their options. What they do is in commands.h.
#ifndef PRD_TOOLS_PRDCTL_COMMAND_LINE_H_
#define PRD_TOOLS_PRDCTL_COMMAND_LINE_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "prd/status.h"
#include "tools/prdctl/commands.h"
#include "tools/prdctl/source.h"

namespace prd::ctl {

// Where the history is read: in files, or from a daemon.
struct Access {
  std::string state_dir;
  std::string admin = "ipc:///run/prd/admin.sock";
  std::string key, server_key;
  int timeout_ms = 3000;
};

struct PruneFlags {
  std::string before;
  std::size_t keep = 0;
  bool dry_run = false;
};

struct Flags {
  Access access;
  bool json = false;
  std::string run;
  std::optional<Rank> rank;
  std::string rank_or_job;  // explain's first argument
  GroupId group = kNoGroup;
  std::string engine;
  std::vector<std::string> settings;
  std::string kind, since, format = "jsonl", file, key_name, host, reason;
  std::string listen = "127.0.0.1:8270";
  PruneFlags prune;
  bool failed = false, follow = false, table = false, options = false, all = false;
  std::size_t last_groups = 20, last = 0;
  double slow_factor = 1.5;
};

using Command = std::function<Status(HistorySource&, const Console&)>;

// Adds all commands. `chosen` becomes what the one given does, once the command line is parsed.
// Both outlive the app.
void AddCommands(CLI::App& app, Flags& flags, Command& chosen);

// keygen, which needs no history.
Status Keygen(const Flags& flags, const Console& console);

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_COMMAND_LINE_H_
