#include "engines/admissions.h"

#include <algorithm>
#include <utility>

#include "engines/run_limits.h"

namespace prd {
namespace {

Refused Invalid(std::string reason) {
  return {.code = Code::kInvalidArgument, .reason = std::move(reason)};
}

}  // namespace

void Admissions::TakeOver(const FormerRun& former) {
  launch_ = former.launch;
  model_hash_ = former.model_hash;
}

void Admissions::Admit(Rank rank, const Hello& hello) {
  if (model_hash_ == 0) model_hash_ = hello.model_hash;
  if (launch_.empty()) launch_ = hello.launch;
  std::erase_if(refusals_, [&](const RefusedHello& known) {
    return known.hello.rank == rank ||
           (known.hello.pid == hello.pid && known.hello.host_name == hello.host_name);
  });
}

void Admissions::Refuse(Instant now, const HelloRefused& hello) {
  // A worker that is refused again is the newest now.
  std::erase_if(refusals_, [&](const RefusedHello& known) {
    return known.hello.rank == hello.rank && known.hello.pid == hello.pid &&
           known.hello.host_name == hello.host_name;
  });
  refusals_.push_back({.hello = hello, .at = now});
  if (refusals_.size() > kMaxRefusals) refusals_.erase(refusals_.begin());
}

std::optional<Refused> Admissions::CheckForm(const JobSpec& spec, const WorkerEnvelope& envelope,
                                             const Hello& hello) {
  const std::string most = std::to_string(spec.max_workers);
  if (hello.version < kOldestVersion || hello.version > kProtocolVersion) {
    return Invalid("protocol version: found " + std::to_string(hello.version) +
                   ", this daemon speaks " + std::to_string(kOldestVersion) + " to " +
                   std::to_string(kProtocolVersion));
  }
  if (envelope.incarnation == 0 || envelope.seq != 1) {
    return Invalid("a Hello carries an incarnation other than 0 and sequence number 1");
  }
  if (hello.rank < kNoRank || hello.rank >= spec.max_workers) {
    return Invalid("rank: found " + std::to_string(hello.rank) + ", allowed is 0 to " +
                   std::to_string(spec.max_workers - 1) +
                   " (max_workers of the job), or -1 for any");
  }
  if (hello.world_size < 0 || hello.world_size > spec.max_workers) {
    return Invalid("world size: found " + std::to_string(hello.world_size) + ", allowed is 0 to " +
                   most + " (max_workers of the job)");
  }
  if (hello.iteration < 0 || hello.iteration > kMaxIteration) {
    return Invalid("iteration: found " + std::to_string(hello.iteration) + ", out of range");
  }
  for (const Trained& told : {hello.own, hello.job_trained, hello.goal}) {
    if (InRange(told)) continue;
    return Invalid("steps and samples trained, and a goal: found " + std::to_string(told.steps) +
                   " steps and " + std::to_string(told.samples) + " samples, allowed are 0 to " +
                   std::to_string(kMaxTrained));
  }
  if (hello.batch < 0 || hello.batch > kMaxBatch || hello.max_share < 0 ||
      hello.max_share > kMaxBatch) {
    return Invalid("batch and max_share: found " + std::to_string(hello.batch) + " and " +
                   std::to_string(hello.max_share) + " samples, allowed are 0 to " +
                   std::to_string(kMaxBatch));
  }
  std::size_t longest = std::max({hello.host.size(), hello.host_name.size(), hello.launch.size()});
  for (const std::string& endpoint : hello.endpoints) longest = std::max(longest, endpoint.size());
  if (longest > kMaxName || hello.endpoints.empty() || hello.endpoints.size() > kMaxEndpoints) {
    return Invalid("a Hello carries 1 to " + std::to_string(kMaxEndpoints) +
                   " endpoints, and no text over " + std::to_string(kMaxName) + " bytes");
  }
  return std::nullopt;
}

std::optional<Refused> Admissions::CheckLaunch(const JobSpec& spec, const Hello& hello,
                                               const std::string& holder) const {
  if (launch_.empty() || hello.launch.empty() || hello.launch == launch_) return std::nullopt;
  if (hello.former.known()) {
    return Refused{.code = Code::kFailedPrecondition,
                   .reason = "a new launch of job " + spec.name + " has begun: " + launch_ +
                             holder + "; this worker is of launch " + hello.launch};
  }
  return Refused{.code = Code::kUnavailable,
                 .reason = "launch " + launch_ + " of job " + spec.name + " still runs" + holder +
                           "; this is launch " + hello.launch +
                           " (PRD_LAUNCH; workers of one job have the same)",
                 .retry_ms = 500};
}

std::optional<Refused> Admissions::CheckModel(const Hello& hello) const {
  if (model_hash_ == 0 || hello.model_hash == model_hash_) return std::nullopt;
  return Invalid(
      "the model differs from that of the job's other workers: same parameters and same state, in "
      "the same order, with the same sizes and dtypes, and the same model_tag are needed (this "
      "worker has " +
      std::to_string(hello.model_bytes) + " bytes of parameters)");
}

std::string Admissions::RefusalWords() const {
  constexpr std::size_t kShown = 2;
  std::string text;
  for (std::size_t i = 0; i < refusals_.size() && i < kShown; ++i) {
    const HelloRefused& hello = refusals_[refusals_.size() - 1 - i].hello;
    text += (i == 0 ? "; refused: " : "; ") +
            (hello.rank == kNoRank ? std::string("a worker") : RankName(hello.rank)) + " (pid " +
            std::to_string(hello.pid) + " on " + hello.host_name + "): " + hello.reason;
  }
  if (refusals_.size() > kShown) {
    text += "; and " + std::to_string(refusals_.size() - kShown) + " more";
  }
  return text;
}

}  // namespace prd
