// Options from the environment: prd's own variables and the launchers'.
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "prd/session.h"

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

}  // namespace

Result<SessionOptions> Session::OptionsFromEnvironment() {
  constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();
  constexpr std::int64_t kMaxMs = std::int64_t{1} << 40;
  SessionOptions options;
  ReadText({"PRD_CONTROLLER"}, &options.controller);
  ReadText({"PRD_JOB", "TORCHELASTIC_RUN_ID", "SLURM_JOB_NAME"}, &options.job);
  ReadText({"PRD_ADDRESS"}, &options.address);
  ReadText({"PRD_CURVE_SERVER_KEY"}, &options.curve_server_key);
  ReadText({"PRD_CURVE_PUBLIC_KEY"}, &options.curve_public_key);
  ReadText({"PRD_CURVE_SECRET_KEY"}, &options.curve_secret_key);
  std::int64_t rank = options.rank;
  std::int64_t world_size = options.world_size;
  std::int64_t timeout = options.timeout.count();
  std::int64_t reduce_timeout = options.reduce_timeout.count();
  std::int64_t communicators = options.max_communicators;
  PRD_RETURN_IF_ERROR(ReadNumber(
      {"PRD_RANK", "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}, 0, kMaxInt, &rank));
  PRD_RETURN_IF_ERROR(ReadNumber(
      {"PRD_WORLD_SIZE", "WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}, 1,
      kMaxInt, &world_size));
  PRD_RETURN_IF_ERROR(ReadNumber({"PRD_TIMEOUT_MS", "PRD_PATIENCE_MS"}, 0, kMaxMs, &timeout));
  PRD_RETURN_IF_ERROR(ReadNumber({"PRD_REDUCE_TIMEOUT_MS"}, 0, kMaxMs, &reduce_timeout));
  PRD_RETURN_IF_ERROR(ReadNumber({"PRD_MAX_COMMUNICATORS"}, 1, kMaxInt, &communicators));
  options.rank = static_cast<int>(rank);
  options.world_size = static_cast<int>(world_size);
  options.timeout = std::chrono::milliseconds(timeout);
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
