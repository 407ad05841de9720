// The daemon's configuration: one TOML file, checked completely before any of it is used.
//
// Every error names the file, the line, the key, what was found and what is allowed; all errors of
// a file are reported at once, one per line of the message. Unknown keys are errors (with the
// nearest known key). config/prd.toml is the manual: every key with its default, unit and reason.
#ifndef PRD_CONFIG_CONFIG_H_
#define PRD_CONFIG_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engines/job_spec.h"
#include "prd/status.h"

namespace prd {

struct DaemonConfig {
  // Where workers connect: "tcp://ADDRESS:PORT" or "ipc://PATH"; empty: an ipc socket of this
  // user's own (common/io/own_socket.h). Off loopback only with curve keys.
  std::string listen;
  // Where prdctl connects, the same; tcp only with curve keys.
  std::string admin = "ipc:///run/prd/admin.sock";
  std::string state_dir = "/var/lib/prd";
  std::string log_level = "info";  // trace, debug, info, warn, error
  // Prometheus metrics at http://ADDRESS:PORT/metrics; empty = off.
  std::string metrics;
  // Records are in the operating system's hands before a decision leaves (they survive a kill of
  // prd). true: on the disk (they survive a power cut), for a few ms per batch on most disks.
  bool sync = false;
  std::int64_t retain_runs = 1000;                    // ended runs kept per job name
  std::int64_t retain_runs_in_all = 100'000;          // of all names
  std::int64_t retain_bytes = std::int64_t{8} << 30;  // of all runs, before compression
  std::uint64_t snapshot_every = 100'000;       // records of a run between snapshots of its state
  std::int64_t max_message_bytes = 65'536;      // a larger control message closes its connection
  std::int64_t max_connections = 0;             // of workers; 0: as many as descriptors allow
  std::int64_t max_connections_per_host = 512;  // 0: no limit of its own
  // CURVE: the daemon's key pair, and a list of clients' public keys, one Z85 key per line.
  std::string curve_secret_key_file;
  std::string curve_authorized_keys_file;
  // Arrivals, and refusals with their reasons: a file, or empty: the log.
  std::string audit_log;

  friend bool operator==(const DaemonConfig&, const DaemonConfig&) = default;
};

// One [[job]]: the settings of all jobs whose name matches.
struct JobRule {
  std::string
      pattern;   // of job names; * is any run of characters, ? any one. The first match counts
  JobSpec spec;  // name and text empty
  bool mesh_security_by_keys = true;  // "auto": FindJob says which
  bool live = false;                  // a reload counts for jobs that run, too
  int line = 0;                       // of the file, for messages
};

// What an identity may do with its jobs. All may look at them with prdctl.
enum class Role : std::uint8_t {
  kWorker = 0,    // its processes may train in them
  kViewer = 1,    // nothing else
  kOperator = 2,  // it sees the daemon itself, too
};

// One [[identity]]: who may do what.
struct Identity {
  std::string name;
  std::vector<std::string> keys;   // CURVE public keys (Z85)
  std::vector<std::string> users;  // of this host, by name or number; "*": every one
  std::vector<std::string> jobs;   // patterns of names, as JobRule::pattern
  Role role = Role::kWorker;
  // At a time, all together; 0: no limit of its own.
  std::int64_t max_jobs = 0;
  std::int64_t max_workers = 0;
  std::int64_t max_connections = 0;
  std::int64_t max_messages_per_s = 0;
  std::int64_t max_read_bytes_per_s = 16 << 20;
  std::int64_t max_runs_per_minute = 600;  // that its workers begin
  // Bounds of its jobs' history.
  std::int64_t max_runs = 10'000;  // ended
  std::int64_t max_history_bytes = 0;
  int line = 0;  // of the file, for messages
  friend bool operator==(const Identity&, const Identity&) = default;
};

struct Config {
  std::string file;
  DaemonConfig daemon;
  std::vector<Identity> identities;
  std::vector<JobRule> jobs;
};

// Keys of [daemon] that are not in the file are as in `daemon`.
Result<Config> LoadConfig(const std::string& path, const DaemonConfig& daemon = {});
// `file` is for messages only.
Result<Config> ParseConfig(std::string_view text, const std::string& file,
                           const DaemonConfig& daemon = {});

// The spec for a job's name by the first rule that matches, with name and text set. kNotFound lists
// the patterns there are.
Result<JobSpec> FindJob(const Config& config, const std::string& name);

// The spec that a job which runs is to be switched to, when `before` was reloaded as `now`: its
// table there has `live`, and gives it another spec than it did. nullopt: it is not.
std::optional<JobSpec> LiveSwitch(const Config& before, const Config& now, const std::string& name);

// A spec as one normalised [job] table, every key written out, and back: what a run keeps in its
// history.
std::string JobSpecToToml(const JobSpec& spec);
Result<JobSpec> JobSpecFromToml(std::string_view text);

// Every key with its default and what is allowed, one after the other, for help texts.
std::string ConfigReference();

}  // namespace prd

#endif  // PRD_CONFIG_CONFIG_H_
