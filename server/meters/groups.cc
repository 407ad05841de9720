#include "server/meters/groups.h"

#include <algorithm>

#include "config/config.h"

namespace prd::meters {

bool GroupRow::Has(Rank rank) const {
  return std::any_of(members.begin(), members.end(),
                     [&](const MemberRow& member) { return member.rank == rank; });
}

std::size_t GroupRow::Contributors() const {
  return static_cast<std::size_t>(std::count_if(members.begin(), members.end(),
                                                [](const MemberRow& m) { return m.weight > 0; }));
}

bool GroupRow::AnyResult() const {
  return std::any_of(members.begin(), members.end(),
                     [](const MemberRow& m) { return m.outcome == Outcome::kOk; });
}

std::vector<const MemberRow*> GroupRow::Missing() const {
  std::vector<const MemberRow*> missing;
  for (const MemberRow& member : members) {
    if (held && !ended && !member.came && !member.reported) missing.push_back(&member);
  }
  return missing;
}

std::optional<Instant> GroupRow::Started() const {
  Instant start = formed;
  for (const MemberRow& member : members) {
    if (held && !member.came) return std::nullopt;
    if (held) start = std::max(start, *member.came);
  }
  return start;
}

const char* GroupRow::State() const {
  if (!ended) return Missing().empty() ? "running" : "waits";
  if (ok) return "ok";
  return kind == GroupKind::kRound && AnyResult() ? "partial" : "failed";
}

const char* KindName(GroupKind kind) {
  switch (kind) {
    case GroupKind::kTrain:
      return "train";
    case GroupKind::kInitial:
      return "initial";
    case GroupKind::kFinal:
      return "final";
    case GroupKind::kRound:
      return "round";
    case GroupKind::kAverage:
      return "average";
  }
  return "unknown";
}

Plan PlanOf(const RunStarted& started) {
  const Result<JobSpec> spec = JobSpecFromToml(started.spec);
  return spec.ok() ? MakeEngine(spec->engine)->plan() : Plan();
}

bool GroupFilter::Lets(const GroupRow& group) const {
  if (rank && !group.Has(*rank)) return false;
  if (kind && group.kind != *kind) return false;
  if (since && group.formed < *since) return false;
  return !failed || (group.ended && !group.ok);
}

}  // namespace prd::meters
