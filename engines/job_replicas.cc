// Job: replicas that are to be equal are compared now and then.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "engines/job.h"
#include "engines/words.h"

namespace prd {
namespace {

bool In(const std::vector<Rank>& ascending, Rank rank) {
  return std::binary_search(ascending.begin(), ascending.end(), rank);
}

std::string After(GroupId group, Iteration iteration) {
  return GroupName(group) + " (iteration " + std::to_string(iteration) + ")";
}

}  // namespace

// Between averages the replicas of a job that trains in rounds differ by design.
bool Job::ComparesAfter(GroupKind kind, const GroupFormed& form) {
  const GroupKind makes_equal = TrainsInRounds(plan_) ? GroupKind::kAverage : GroupKind::kTrain;
  if (spec_.check_replicas_ms == 0 || !ReplicasAreEqual(plan_) || kind != makes_equal ||
      form.members.size() < 2 || now_ < compare_at_) {
    return false;
  }
  compare_at_ = now_ + spec_.check_replicas_ms * kMillisecond;
  return true;
}

// Gives those whose digest is not that of most members who have told one and are still there; of
// two equal halves, not that of the half with the lowest rank.
std::vector<Rank> Job::Compare(GroupId id, const Running& group) {
  std::map<std::uint64_t, std::vector<Rank>> sides;
  std::vector<Rank> compared;
  for (const Digest& digest : group.digests) {
    if (!Present(digest.rank) || At(digest.rank).last_group != id) continue;
    sides[digest.value].push_back(digest.rank);
    compared.push_back(digest.rank);
  }
  if (compared.size() < 2) return {};
  std::sort(compared.begin(), compared.end());
  std::vector<Rank> most;
  for (auto& [value, ranks] : sides) {
    std::sort(ranks.begin(), ranks.end());
    if (ranks.size() > most.size() || (ranks.size() == most.size() && ranks < most)) most = ranks;
  }
  std::vector<Rank> differ;
  for (const Rank rank : compared) {
    if (!In(most, rank)) differ.push_back(rank);
  }
  std::vector<Rank> all = differ;  // with those of whom nothing new is known
  for (const Rank rank : divergence_.ranks) {
    if (!In(compared, rank)) all.push_back(rank);
  }
  std::sort(all.begin(), all.end());
  if (all == divergence_.ranks) return differ;
  if (divergence_.ranks.empty()) {
    divergence_ = {.ranks = {}, .group = id, .iteration = group.iteration, .since = now_};
  }
  const std::string since = After(divergence_.group, divergence_.iteration);
  divergence_.ranks = all;
  Write(ReplicasDiffer{
      .group = id,
      .iteration = group.iteration,
      .ranks = all,
      .reason = all.empty()
                    ? "all that were compared are equal; some were not since " + since
                    : words::Ranks(all) + (all.size() == 1 ? " has" : " have") +
                          " other parameters than " + words::Ranks(most) + ", since " + since +
                          "; optimizer state is copied with a model only if it is in "
                          "Replica::state"});
  return differ;
}

// Signals that were held back go on to the engine. To repair, who differs copies a replica of those
// who do not.
void Job::EndComparison(const Running& group, const std::vector<Rank>& have) {
  if (!group.compares || spec_.on_divergence != JobSpec::OnDivergence::kRepair) return;
  const auto usable = [this](Rank rank) {
    return Present(rank) && At(rank).state == State::kActive && At(rank).source == kNoRank &&
           !At(rank).signal_held;
  };
  Rank source = kNoRank;
  for (const Rank rank : have) {
    if (source == kNoRank && usable(rank) && !In(divergence_.ranks, rank)) source = rank;
  }
  for (const Rank rank : have) {
    if (!Present(rank)) continue;
    At(rank).compared = false;
    if (!usable(rank) || !In(divergence_.ranks, rank) || source == kNoRank) {
      if (!At(rank).signal_held) HandSignal(rank);
    } else if (TrainsInRounds(plan_)) {
      LeaveBehind(rank, "its replica differs from those of most members");
    } else {
      OrderAdopt(rank, source, "its replica differs from those of most members");
    }
  }
}

// The worker has gone.
void Job::ForgetDivergence(Rank rank, State was) {
  if (!In(divergence_.ranks, rank)) return;
  std::erase(divergence_.ranks, rank);
  if (was == State::kFinal) return;  // it has taken the final average
  Write(ReplicasDiffer{.group = divergence_.group,
                       .iteration = divergence_.iteration,
                       .ranks = divergence_.ranks,
                       .reason = RankName(rank) + ", whose replica differed, is gone"});
}

std::string Job::ExplainReplica(Instant now, Rank rank) const {
  std::string text;
  if (In(divergence_.ranks, rank)) {
    text += "; rank " + std::to_string(rank) +
            "'s parameters differ from those of most members since group " +
            std::to_string(divergence_.group) + " (" + words::Duration(now - divergence_.since) +
            " ago), and are equal again after the final average";
  }
  const Tally& tally = tallies_[Index(rank)];
  if (tally.nonfinite > 0) {
    text += "; " + std::to_string(tally.nonfinite) +
            (tally.nonfinite == 1 ? " of its steps was" : " of its steps were") +
            " not finite, the last told " + words::Duration(now - tally.nonfinite_at) + " ago";
  }
  return text;
}

}  // namespace prd
