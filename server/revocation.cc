#include "server/revocation.h"

#include <cstddef>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "common/io/log.h"

namespace prd {

// Why the worker's messages are refused from now on; empty: they are not. One whose key or user
// belongs to another identity by now comes back as that one.
std::string Revocation::WhyRevoked(const Run& run, const RunWorker& worker) const {
  const std::string_view who = workers_->WhoIs(worker.incarnation);
  if (worker.state == WorkerState::kAbsent || (who.empty() && worker.identity.empty())) return {};
  const Rights* rights = who.empty() ? access_->Named(worker.identity) : access_->Find(who);
  if (rights == nullptr) return "the daemon's config does not let it in any more";
  if (rights->trains && rights->Covers(run.spec().name)) return {};
  return "it may not train in job " + run.spec().name;
}

// Its identity; and its key or user, where that alone is out.
std::string Revocation::Name(const RunWorker& worker) const {
  const std::string_view who = workers_->WhoIs(worker.incarnation);
  if (worker.identity.empty()) return std::string(who);
  const std::string identity = "identity " + worker.identity;
  const bool alone =
      !who.empty() && access_->Find(who) == nullptr && access_->Named(worker.identity) != nullptr;
  return alone ? Called(nullptr, who) + " of " + identity : identity;
}

void Revocation::Evict(Instant now, const std::string& by) {
  due_ = false;
  struct Revoked {
    RunId run = kNoRun;
    std::string job;
    std::string who;
    std::vector<std::pair<Rank, std::string>> ranks;  // and why
  };
  std::map<std::pair<RunId, std::string>, Revoked> revoked;
  for (const auto& [id, run] : controller_->runs()) {
    if (run->ended()) continue;
    for (Rank rank = 0; static_cast<std::size_t>(rank) < run->workers().size(); ++rank) {
      const RunWorker& worker = run->workers()[static_cast<std::size_t>(rank)];
      std::string why = WhyRevoked(*run, worker);
      if (why.empty()) continue;
      const std::string who = Name(worker);
      Revoked& of = revoked[{id, who}];
      of.run = id;
      of.job = run->spec().name;
      of.who = who;
      of.ranks.emplace_back(rank, who + ": " + why);
    }
  }
  for (const auto& [key, of] : revoked) {
    std::size_t evicted = 0;
    for (const auto& [rank, why] : of.ranks) {
      const Status status = controller_->Act(
          now, of.job,
          {.verb = OperatorVerb::kEvict, .rank = rank, .by = by, .reason = why.substr(0, 200)});
      if (status.ok()) ++evicted;
      due_ = due_ || status.code() == Code::kUnavailable;
    }
    if (evicted == 0) continue;
    spdlog::warn("run {} of job {}: {} may not train in it any more; its {} workers are evicted",
                 of.run, of.job, of.who, evicted);
  }
}

}  // namespace prd
