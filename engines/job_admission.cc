// Job: which messages it takes.
#include <algorithm>
#include <string>
#include <utility>

#include "engines/job.h"
#include "engines/job_limits.h"

namespace prd {

bool Job::Present(Rank rank) const {
  return rank >= 0 && Index(rank) < workers_.size() &&
         workers_[Index(rank)].state != State::kAbsent;
}

// Workers of two launches of the training program are never in one run.
std::optional<Refused> Job::CheckLaunch(const Hello& hello) const {
  if (launch_.empty() || hello.launch.empty() || hello.launch == launch_) return std::nullopt;
  const auto holder = std::find_if(workers_.begin(), workers_.end(), [](const Worker& worker) {
    return worker.state != State::kAbsent;
  });
  const std::string who = holder == workers_.end()
                              ? std::string()
                              : " (rank " + std::to_string(holder - workers_.begin()) + ", pid " +
                                    std::to_string(holder->pid) + " on " + holder->host_name + ")";
  if (hello.former.known()) {
    return Refused{.code = Code::kFailedPrecondition,
                   .reason = "a new launch of job " + spec_.name + " has begun: " + launch_ + who +
                             "; this worker is of launch " + hello.launch};
  }
  return Refused{.code = Code::kUnavailable,
                 .reason = "launch " + launch_ + " of job " + spec_.name + " still runs" + who +
                           "; this is launch " + hello.launch +
                           " (PRD_LAUNCH; workers of one job have the same)",
                 .retry_ms = 500};
}

std::optional<Refused> Job::CheckHello(const WorkerEnvelope& envelope, const Hello& hello) const {
  const auto no = [](std::string reason, Code code = Code::kInvalidArgument,
                     std::uint32_t retry_ms = 0) {
    return Refused{.code = code, .reason = std::move(reason), .retry_ms = retry_ms};
  };
  if (hello.version < kOldestVersion || hello.version > kProtocolVersion) {
    return no("protocol version: found " + std::to_string(hello.version) + ", this daemon speaks " +
              std::to_string(kOldestVersion) + " to " + std::to_string(kProtocolVersion));
  }
  if (envelope.incarnation == 0 || envelope.seq != 1) {
    return no("a Hello carries an incarnation other than 0 and sequence number 1");
  }
  if (hello.rank < kNoRank || hello.rank >= spec_.max_workers) {
    return no("rank: found " + std::to_string(hello.rank) + ", allowed is 0 to " +
              std::to_string(spec_.max_workers - 1) + " (max_workers of the job), or -1 for any");
  }
  if (hello.world_size < 0 || hello.world_size > spec_.max_workers) {
    return no("world size: found " + std::to_string(hello.world_size) + ", allowed is 0 to " +
              std::to_string(spec_.max_workers) + " (max_workers of the job)");
  }
  if (hello.iteration < 0 || hello.iteration > kMaxIteration) {
    return no("iteration: found " + std::to_string(hello.iteration) + ", out of range");
  }
  for (const Trained& told : {hello.own, hello.job_trained, hello.goal}) {
    if (InRange(told)) continue;
    return no("steps and samples trained, and a goal: found " + std::to_string(told.steps) +
              " steps and " + std::to_string(told.samples) + " samples, allowed are 0 to " +
              std::to_string(kMaxTrained));
  }
  std::size_t longest = std::max({hello.host.size(), hello.host_name.size(), hello.launch.size()});
  for (const std::string& endpoint : hello.endpoints) longest = std::max(longest, endpoint.size());
  if (longest > kMaxName || hello.endpoints.empty() || hello.endpoints.size() > kMaxEndpoints) {
    return no("a Hello carries 1 to " + std::to_string(kMaxEndpoints) +
              " endpoints, and no text over " + std::to_string(kMaxName) + " bytes");
  }
  if (std::optional<Refused> other = CheckLaunch(hello)) return other;
  if (model_hash_ != 0 && hello.model_hash != model_hash_) {
    return no(
        "the model differs from that of the job's other workers: same parameters and same state, "
        "in the same order, with the same sizes and dtypes, and the same model_tag are needed "
        "(this worker has " +
        std::to_string(hello.model_bytes) + " bytes of parameters)");
  }
  if (switching_) {
    return no("job " + spec_.name + " is about to go on in another run: " + switching_->by,
              Code::kUnavailable, 100);
  }
  if (Count(State::kFinal) > 0) {
    return no("job " + spec_.name + " is taking its final average; a new run can begin after it",
              Code::kUnavailable, 500);
  }
  if (hello.rank == kNoRank && live_ >= spec_.max_workers) {
    return no("the job has all its " + std::to_string(spec_.max_workers) + " workers (max_workers)",
              Code::kResourceExhausted);
  }
  if (Present(hello.rank)) {
    const Worker& holder = workers_[Index(hello.rank)];
    const bool soon = spec_.death_grace_ms > 0 && holder.returns_at_once;
    const std::uint32_t asks_ms =
        soon ? std::min(spec_.death_grace_ms, spec_.lease_ms / 4) : spec_.lease_ms / 4;
    return no(
        RankName(hello.rank) + " of job " + spec_.name + " is held by pid " +
            std::to_string(holder.pid) + " on " + holder.host_name +
            (soon ? "; if that process has ended, the rank is free in a moment; if its host is "
                    "gone, once its lease of " +
                        std::to_string(spec_.lease_ms) + " ms has run out"
                  : "; if that one is dead, its lease of " + std::to_string(spec_.lease_ms) +
                        " ms will run out"),
        Code::kUnavailable, std::max(asks_ms, 50u));
  }
  return std::nullopt;
}

// ---- workers that were not admitted ----

// Again with the same words: it is the newest now.
void Job::NoteRefusal(const HelloRefused& hello) {
  std::erase_if(refusals_, [&](const Refusal& known) {
    return known.hello.rank == hello.rank && known.hello.pid == hello.pid &&
           known.hello.host_name == hello.host_name;
  });
  refusals_.push_back({.hello = hello, .at = now_});
  if (refusals_.size() > kMaxRefusals) refusals_.erase(refusals_.begin());
}

// The rank is taken now, or the process has found another one.
void Job::ForgetRefusals(Rank rank, const Hello& hello) {
  std::erase_if(refusals_, [&](const Refusal& known) {
    return known.hello.rank == rank ||
           (known.hello.pid == hello.pid && known.hello.host_name == hello.host_name);
  });
}

// The newest of them, to go behind what a worker waits for.
std::string Job::RefusalWords() const {
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

bool Job::Foreign(const WorkerEnvelope& envelope) const {
  const auto known = by_incarnation_.find(envelope.incarnation);
  return known != by_incarnation_.end() && workers_[Index(known->second)].token != envelope.token;
}

Job::Admission Job::Admit(const WorkerEnvelope& envelope) const {
  using Verdict = Admission::Verdict;
  const auto refuse = [](Code code, std::string reason) {
    return Admission{.verdict = Verdict::kRefuse,
                     .refusal = Refused{.code = code, .reason = std::move(reason)}};
  };
  if (const auto* hello = std::get_if<Hello>(&envelope.body)) {
    const auto known = by_incarnation_.find(envelope.incarnation);
    if (known != by_incarnation_.end()) {
      const bool own = workers_[Index(known->second)].token == envelope.token;
      return {.verdict = own ? Verdict::kDuplicate : Verdict::kForeign, .rank = known->second};
    }
    std::optional<Refused> refusal = CheckHello(envelope, *hello);
    if (!refusal) return {.verdict = Verdict::kStep};
    return {.verdict = Verdict::kRefuse, .refusal = std::move(refusal)};
  }
  if (envelope.identity.high != identity_.high) {
    return refuse(Code::kAborted, "run " + std::to_string(run_) +
                                      " is another one here: the controller has lost its history, "
                                      "or its state directory is another");
  }
  if (!Present(envelope.rank) ||
      workers_[Index(envelope.rank)].incarnation != envelope.incarnation) {
    return refuse(Code::kAborted, RankName(envelope.rank) + " of job " + spec_.name +
                                      " is not held by this incarnation (any more): its lease ran "
                                      "out, it left, or it never joined");
  }
  if (workers_[Index(envelope.rank)].token != envelope.token) return {Verdict::kForeign};
  if (std::holds_alternative<Heartbeat>(envelope.body) != (envelope.seq == 0)) {
    return refuse(Code::kInvalidArgument,
                  "heartbeats carry sequence number 0, and no other message does");
  }
  if (envelope.seq == 0) return {.verdict = Verdict::kStep, .rank = envelope.rank};
  switch (link(envelope.rank).Check(envelope.seq)) {
    case LinkEnd<ControllerBody>::Verdict::kDuplicate:
      return {.verdict = Verdict::kDuplicate, .rank = envelope.rank};
    case LinkEnd<ControllerBody>::Verdict::kGap:
      return {.verdict = Verdict::kGap, .rank = envelope.rank};
    case LinkEnd<ControllerBody>::Verdict::kDeliver:
      break;
  }
  return {.verdict = Verdict::kStep, .rank = envelope.rank};
}

}  // namespace prd
