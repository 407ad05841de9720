// The daemon's configuration: one TOML file, checked completely before any of it is used.
//
// Every error names the file, the line, the key, what was found and what is allowed; all errors of
// a file are reported at once, one per line of the message. Unknown keys are errors (with the
// nearest known key). config/prd.toml is the manual: every key with its default, unit and reason.
#ifndef PRD_CONFIG_CONFIG_H_
#define PRD_CONFIG_CONFIG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engines/job.h"
#include "prd/status.h"

namespace prd {

struct DaemonConfig {
  // Where workers connect: "tcp://ADDRESS:PORT" or "ipc://PATH". Off loopback only with curve keys.
  std::string listen = "tcp://127.0.0.1:5775";
  // Where prdctl connects; a file only its owner may open.
  std::string admin = "ipc:///run/prd/admin.sock";
  std::string state_dir = "/var/lib/prd";
  std::string log_level = "info";  // trace, debug, info, warn, error
  // Prometheus metrics at http://ADDRESS:PORT/metrics; empty = off.
  std::string metrics;
  // Records are in the operating system's hands before a decision leaves (they survive a kill of
  // prd). true: on the disk (they survive a power cut), for a few ms per batch on most disks.
  bool sync = false;
  std::int64_t retain_runs = 1000;          // ended runs kept per job name
  std::uint64_t snapshot_every = 100'000;   // records of a run between snapshots of its state
  std::int64_t max_message_bytes = 65'536;  // a larger control message closes its connection
  // CURVE: the daemon's key pair, and the clients' public keys, one Z85 key per line. All or none.
  std::string curve_secret_key_file;
  std::string curve_authorized_keys_file;

  friend bool operator==(const DaemonConfig&, const DaemonConfig&) = default;
};

// One [[job]]: the settings of all jobs whose name matches.
struct JobRule {
  std::string
      pattern;   // of job names; * is any run of characters, ? any one. The first match counts
  JobSpec spec;  // name and text empty
  int line = 0;  // of the file, for messages
};

struct Config {
  std::string file;
  DaemonConfig daemon;
  std::vector<JobRule> jobs;
};

Result<Config> LoadConfig(const std::string& path);
// `file` is for messages only.
Result<Config> ParseConfig(std::string_view text, const std::string& file);

// The spec for a job's name by the first rule that matches, with name and text set. kNotFound lists
// the patterns there are.
Result<JobSpec> FindJob(const Config& config, const std::string& name);

// A spec as one normalised [job] table, every key written out, and back: what a run keeps in its
// history.
std::string JobSpecToToml(const JobSpec& spec);
Result<JobSpec> JobSpecFromToml(std::string_view text);

// Every key with its default and what is allowed, one after the other, for help texts.
std::string ConfigReference();

}  // namespace prd

#endif  // PRD_CONFIG_CONFIG_H_
