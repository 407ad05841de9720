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

void Retention::Own(RunId run, const std::string& owner) {
  const auto at = runs_.find(run);
  if (at == runs_.end() || at->second.owner->first == owner) return;
  const Run before = at->second;
  const std::string job = before.job->first;
  Remove(run);
  Begin(run, job, owner, before.bytes);
  if (before.ended) End(run);
}

void Retention::End(RunId run) {
  const auto at = runs_.find(run);
  if (at == runs_.end() || at->second.ended) return;
  at->second.ended = true;
  at->second.owner->second.ended.insert(run);
  Count(at->second.job, run, true);
  ++total_.ended;
}

void Retention::Remove(RunId run) {
  const auto at = runs_.find(run);
  if (at == runs_.end()) return;
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

std::optional<Retention::Verdict> Retention::Next() const {
  if (!by_count_.empty() && by_count_.rbegin()->first > bounds_.runs_per_job) {
    const auto job = jobs_.find(by_count_.rbegin()->second);
    return Verdict{*job->second.ended.begin(), "job " + job->first + " has more than " +
                                                   std::to_string(bounds_.runs_per_job) +
                                                   " ended runs (retain_runs)"};
  }
  for (const auto& [name, owner] : owners_) {
    const auto own = bounds_.owners.find(name);
    if (own == bounds_.owners.end() || owner.ended.empty()) continue;
    const RunId oldest = *owner.ended.begin();
    if (own->second.runs > 0 && owner.ended.size() > own->second.runs) {
      return Verdict{oldest, Called(name) + " has more than " + std::to_string(own->second.runs) +
                                 " ended runs (max_runs)"};
    }
    if (own->second.bytes > 0 && owner.bytes > own->second.bytes) {
      return Verdict{oldest, Called(name) + " has more than " + std::to_string(own->second.bytes) +
                                 " bytes (max_history_bytes)"};
    }
  }
  const bool runs = total_.ended > bounds_.runs;
  if (!runs && total_.bytes <= bounds_.bytes) return std::nullopt;
  // Whoever has less than an even share is left alone, also where the others' runs still go on.
  const std::pair<const std::string, Owner>* most = nullptr;
  for (const auto& owner : owners_) {
    if (owner.second.ended.empty() || (!runs && owner.second.bytes <= FairBytes())) continue;
    const auto has = [&](const auto& of) {
      return runs ? of.second.ended.size() : of.second.bytes;
    };
    if (most == nullptr || has(owner) > has(*most)) most = &owner;
  }
  if (most == nullptr) return std::nullopt;
  const std::string what =
      runs ? "there are more than " + std::to_string(bounds_.runs) +
                 " ended runs (retain_runs_in_all)"
           : "there are more than " + std::to_string(bounds_.bytes) + " bytes (retain_bytes)";
  return Verdict{*most->second.ended.begin(), what + ", and most are of " + Called(most->first)};
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
