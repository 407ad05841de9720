#include "server/history/retention.h"

#include <algorithm>

namespace prd::history {
namespace {

std::string Called(std::string_view owner) {
  return owner.empty() ? std::string("runs of no identity") : "identity " + std::string(owner);
}

}  // namespace

void Retention::Begin(RunId run, const std::string& job, const std::string& owner,
                      std::uint64_t bytes) {
  const Run begun{.owner = owners_.try_emplace(owner).first, .job = jobs_.try_emplace(job).first};
  runs_[run] = begun;
  ++begun.owner->second.runs;
  ++begun.job->second.runs;
  Grow(run, bytes);
}

void Retention::Grow(RunId run, std::uint64_t bytes) {
  const auto at = runs_.find(run);
  if (at == runs_.end()) return;
  at->second.bytes += bytes;
  at->second.owner->second.bytes += bytes;
  total_.bytes += bytes;
}

void Retention::Shrink(RunId run, std::uint64_t bytes) {
  const auto at = runs_.find(run);
  if (at == runs_.end()) return;
  bytes = std::min(bytes, at->second.bytes);
  at->second.bytes -= bytes;
  at->second.owner->second.bytes -= bytes;
  total_.bytes -= bytes;
}

void Retention::MayTrim(RunId run, std::uint64_t bytes) {
  const auto at = runs_.find(run);
  if (at == runs_.end()) return;
  auto& trimmable = at->second.owner->second.trimmable;
  trimmable.erase({at->second.trimmable, run});
  at->second.trimmable = at->second.ended ? 0 : bytes;
  if (at->second.trimmable > 0) trimmable.emplace(at->second.trimmable, run);
}

void Retention::Own(RunId run, const std::string& owner) {
  const auto at = runs_.find(run);
  if (at == runs_.end() || at->second.owner->first == owner) return;
  const Run before = at->second;
  const std::string job = before.job->first;
  Remove(run);
  Begin(run, job, owner, before.bytes);
  MayTrim(run, before.trimmable);
  if (before.ended) End(run);
}

void Retention::End(RunId run) {
  const auto at = runs_.find(run);
  if (at == runs_.end() || at->second.ended) return;
  MayTrim(run, 0);
  at->second.ended = true;
  at->second.owner->second.ended.insert(run);
  Count(at->second.job, run, true);
  ++total_.ended;
}

void Retention::Remove(RunId run) {
  const auto at = runs_.find(run);
  if (at == runs_.end()) return;
  MayTrim(run, 0);
  const Run gone = at->second;
  runs_.erase(at);
  Owner& owner = gone.owner->second;
  owner.bytes -= gone.bytes;
  total_.bytes -= gone.bytes;
  if (gone.ended) {
    owner.ended.erase(run);
    Count(gone.job, run, false);
    --total_.ended;
  }
  --gone.job->second.runs;
  if (gone.job->second.runs == 0) jobs_.erase(gone.job);
  if (--owner.runs == 0) owners_.erase(gone.owner);
}

void Retention::Count(JobMap::iterator job, RunId run, bool ended) {
  std::set<RunId>& runs = job->second.ended;
  if (!runs.empty()) by_count_.erase({runs.size(), job->first});
  if (ended) {
    runs.insert(run);
  } else {
    runs.erase(run);
  }
  if (!runs.empty()) by_count_.emplace(runs.size(), job->first);
}

std::uint64_t Retention::FairBytes() const {
  return bounds_.bytes / std::max<std::size_t>(1, owners_.size());
}

std::optional<Retention::Verdict> Retention::BytesFrom(const Owner& owner) {
  const auto& most =
      owner.trimmable.empty() ? std::pair<std::uint64_t, RunId>() : *owner.trimmable.rbegin();
  if (most.first > owner.bytes / 2 || (owner.ended.empty() && most.first > 0)) {
    return Verdict{.run = most.second, .whole = false, .reason = {}};
  }
  if (owner.ended.empty()) return std::nullopt;
  return Verdict{.run = *owner.ended.begin(), .whole = true, .reason = {}};
}

std::optional<Retention::Verdict> Retention::Next() const {
  if (!by_count_.empty() && by_count_.rbegin()->first > bounds_.runs_per_job) {
    const auto job = jobs_.find(by_count_.rbegin()->second);
    return Verdict{.run = *job->second.ended.begin(),
                   .reason = "job " + job->first + " has more than " +
                             std::to_string(bounds_.runs_per_job) + " ended runs (retain_runs)"};
  }
  for (const auto& [name, owner] : owners_) {
    const auto own = bounds_.owners.find(name);
    if (own == bounds_.owners.end()) continue;
    const Bounds::Share& share = own->second;
    if (share.runs > 0 && owner.ended.size() > share.runs) {
      return Verdict{.run = *owner.ended.begin(),
                     .reason = Called(name) + " has more than " + std::to_string(share.runs) +
                               " ended runs (max_runs)"};
    }
    if (share.bytes == 0 || owner.bytes <= share.bytes) continue;
    if (std::optional<Verdict> next = BytesFrom(owner)) {
      next->reason = Called(name) + " has more than " + std::to_string(share.bytes) +
                     " bytes (max_history_bytes)";
      return next;
    }
  }
  const bool runs = total_.ended > bounds_.runs;
  if (!runs && total_.bytes <= bounds_.bytes) return std::nullopt;
  // Whoever has less than an even share is left alone, also where the others' runs still go on.
  const std::pair<const std::string, Owner>* most = nullptr;
  for (const auto& owner : owners_) {
    const auto has = [&](const auto& of) {
      return runs ? of.second.ended.size() : of.second.bytes;
    };
    const bool can = runs ? !owner.second.ended.empty()
                          : owner.second.bytes > FairBytes() && BytesFrom(owner.second).has_value();
    if (can && (most == nullptr || has(owner) > has(*most))) most = &owner;
  }
  if (most == nullptr) return std::nullopt;
  Verdict next{.run = kNoRun, .reason = {}};
  if (runs) {
    next.run = *most->second.ended.begin();
    next.reason =
        "there are more than " + std::to_string(bounds_.runs) + " ended runs (retain_runs_in_all)";
  } else {
    next = *BytesFrom(most->second);
    next.reason = "there are more than " + std::to_string(bounds_.bytes) + " bytes (retain_bytes)";
  }
  next.reason += ", and most are of " + Called(most->first);
  return next;
}

std::vector<std::pair<std::string, Retention::Use>> Retention::Owners() const {
  std::vector<std::pair<std::string, Use>> all;
  all.reserve(owners_.size());
  for (const auto& [name, owner] : owners_) {
    all.emplace_back(name, Use{.ended = owner.ended.size(), .bytes = owner.bytes});
  }
  return all;
}

std::uint64_t Retention::BytesOf(RunId run) const {
  const auto at = runs_.find(run);
  return at == runs_.end() ? 0 : at->second.bytes;
}

}  // namespace prd::history
