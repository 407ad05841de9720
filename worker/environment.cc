// Options from the environment: prd's own variables and the launchers'.
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "common/base/messages.h"
#include "common/io/curve.h"
#include "common/io/file_access.h"
#include "prd/session.h"
#include "worker/session_checks.h"

namespace prd {
namespace {

const char* Value(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

// The first variable that is set decides.
Status ReadNumber(std::initializer_list<const char*> names, std::int64_t low, std::int64_t high,
                  std::int64_t* to) {
  for (const char* name : names) {
    const char* value = Value(name);
    if (value == nullptr) continue;
    const char* end = value + std::strlen(value);
    std::int64_t number = 0;
    const auto [stopped, error] = std::from_chars(value, end, number);
    if (error != std::errc() || stopped != end || number < low || number > high) {
      return Status(Code::kInvalidArgument,
                    std::string(name) + ": found \"" + value + "\", allowed is a number from " +
                        std::to_string(low) + " to " + std::to_string(high));
    }
    *to = number;
    return Status::Ok();
  }
  return Status::Ok();
}

void ReadText(std::initializer_list<const char*> names, std::string* to) {
  for (const char* name : names) {
    if (const char* value = Value(name)) {
      *to = value;
      return;
    }
  }
}

// Which start of the program this is, as its launcher tells it: equal for all that it started.
std::string Launch() {
  std::string launch;
  ReadText({"PRD_LAUNCH"}, &launch);
  if (!launch.empty()) return launch;
  if (const char* job = Value("SLURM_JOB_ID")) {
    launch = std::string("slurm-") + job;
    for (const char* part : {"SLURM_STEP_ID", "SLURM_RESTART_COUNT"}) {
      if (const char* value = Value(part)) launch += std::string(".") + value;
    }
    return launch;
  }
  ReadText({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}, &launch);
  return launch;
}

// From a file, where one is named or systemd hands one over. REQUIRES: controller and server key
// have been read.
Status ReadSecretKey(SessionOptions* options) {
  constexpr const char* kFile = "PRD_CURVE_SECRET_KEY_FILE";
  ReadText({"PRD_CURVE_SECRET_KEY"}, &options->curve_secret_key);
  std::string file;
  ReadText({kFile}, &file);
  if (!file.empty() && !options->curve_secret_key.empty()) {
    return Status(Code::kInvalidArgument,
                  std::string(kFile) + ": found \"" + file +
                      "\" beside PRD_CURVE_SECRET_KEY, allowed is one of them");
  }
  const bool named = !file.empty();
  // Over ipc a worker may do without.
  const bool keys = !options->curve_server_key.empty() || options->controller.starts_with("tcp://");
  if (!named && keys && options->curve_secret_key.empty()) file = CredentialFile("prd-secret-key");
  if (file.empty()) return Status::Ok();
  const Result<CurveKeys> pair = ReadSecretKeyFile(file);
  if (!pair.ok()) {
    return Status(pair.status().code(),
                  (named ? std::string(kFile) + ": " : std::string()) + pair.status().message());
  }
  options->curve_secret_key = pair->secret_key;
  return Status::Ok();
}

}  // namespace

Result<SessionOptions> Session::OptionsFromEnvironment() {
  constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();
  constexpr std::int64_t kMaxMs = kLongestTimeout.count();
  constexpr std::int64_t kMaxGoal = std::int64_t{1} << 60;
  SessionOptions options;
  ReadText({"PRD_CONTROLLER"}, &options.controller);
  ReadText({"PRD_JOB"}, &options.job);
  if (options.job.empty()) {
    ReadText({"TORCHELASTIC_RUN_ID"}, &options.job);
    if (options.job == "none") options.job.clear();  // torchrun's default
  }
  if (options.job.empty()) ReadText({"SLURM_JOB_NAME"}, &options.job);
  options.launch = Launch();
  ReadText({"PRD_ADDRESS"}, &options.address);
  ReadText({"PRD_MESH_PORTS"}, &options.mesh_ports);
  ReadText({"PRD_ANNOUNCE_ADDRESS"}, &options.announce_address);
  ReadText({"PRD_CURVE_SERVER_KEY"}, &options.curve_server_key);
  ReadText({"PRD_CURVE_PUBLIC_KEY"}, &options.curve_public_key);
  PRD_RETURN_IF_ERROR(ReadSecretKey(&options));
  std::int64_t rank = options.rank;
  std::int64_t world_size = options.world_size;
  std::int64_t timeout = options.timeout.count();
  std::int64_t start_timeout = options.start_timeout.count();
  std::int64_t reduce_timeout = options.reduce_timeout.count();
  std::int64_t communicators = options.max_communicators;
  PRD_RETURN_IF_ERROR(ReadNumber(
      {"PRD_RANK", "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}, 0, kMaxInt, &rank));
  PRD_RETURN_IF_ERROR(ReadNumber(
      {"PRD_WORLD_SIZE", "WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}, 1,
      kMaxInt, &world_size));
  PRD_RETURN_IF_ERROR(ReadNumber({"PRD_TIMEOUT_MS", "PRD_PATIENCE_MS"}, 0, kMaxMs, &timeout));
  PRD_RETURN_IF_ERROR(ReadNumber({"PRD_START_TIMEOUT_MS"}, 0, kMaxMs, &start_timeout));
  PRD_RETURN_IF_ERROR(ReadNumber({"PRD_REDUCE_TIMEOUT_MS"}, 0, kMaxMs, &reduce_timeout));
  PRD_RETURN_IF_ERROR(ReadNumber({"PRD_MAX_COMMUNICATORS"}, 1, kMaxInt, &communicators));
  PRD_RETURN_IF_ERROR(ReadNumber({"PRD_GOAL_STEPS"}, 0, kMaxGoal, &options.goal_steps));
  PRD_RETURN_IF_ERROR(ReadNumber({"PRD_GOAL_SAMPLES"}, 0, kMaxGoal, &options.goal_samples));
  PRD_RETURN_IF_ERROR(ReadNumber({"PRD_BATCH"}, 0, kMaxBatch, &options.batch));
  PRD_RETURN_IF_ERROR(ReadNumber({"PRD_MAX_SHARE"}, 0, kMaxBatch, &options.max_share));
  std::int64_t check_tensors = 0;
  PRD_RETURN_IF_ERROR(ReadNumber({"PRD_CHECK_TENSORS"}, 0, 1, &check_tensors));
  options.check_tensors = check_tensors != 0;
  std::int64_t rows_on_host = 0;
  PRD_RETURN_IF_ERROR(ReadNumber({"PRD_ROWS_ON_HOST"}, 0, 1, &rows_on_host));
  options.rows_on_host = rows_on_host != 0;
  options.rank = static_cast<int>(rank);
  options.world_size = static_cast<int>(world_size);
  options.timeout = std::chrono::milliseconds(timeout);
  options.start_timeout = std::chrono::milliseconds(start_timeout);
  options.reduce_timeout = std::chrono::milliseconds(reduce_timeout);
  options.max_communicators = static_cast<int>(communicators);
  return options;
}

Result<Session> Session::FromEnvironment() {
  Result<SessionOptions> options = OptionsFromEnvironment();
  if (!options.ok()) return options.status();
  return Create(std::move(options).value());
}

}  // namespace prd
