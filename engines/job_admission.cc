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

std::optional<Refused> Job::CheckHello(const WorkerEnvelope& envelope, const Hello& hello) const {
  const auto no = [](std::string reason, Code code, std::uint32_t retry_ms = 0) {
    return Refused{.code = code, .reason = std::move(reason), .retry_ms = retry_ms};
  };
  if (std::optional<Refused> wrong = Admissions::CheckForm(spec_, envelope, hello)) return wrong;
  const auto any = std::find_if(workers_.begin(), workers_.end(), [](const Worker& worker) {
    return worker.state != State::kAbsent;
  });
  const std::string who = any == workers_.end()
                              ? std::string()
                              : " (rank " + std::to_string(any - workers_.begin()) + ", pid " +
                                    std::to_string(any->pid) + " on " + any->host_name + ")";
  if (std::optional<Refused> other = admissions_.CheckLaunch(spec_, hello, who)) return other;
  if (std::optional<Refused> other = admissions_.CheckModel(hello)) return other;
  if (switching()) {
    return no("job " + spec_.name + " is about to go on in another run: " + switching()->by,
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
