#include "tools/sim/batch_book.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "engines/batch_shares.h"
#include "engines/violation.h"
#include "tools/sim/names.h"

namespace prd::sim {
namespace {

constexpr double kMostTimes = 2;  // of a step's time

std::string Text(std::int64_t number) { return std::to_string(number); }

// It goes on, in another state: nobody has left.
bool Stays(const WorkerLeft& left) {
  return left.reason.starts_with("nobody has a") || left.reason.starts_with("reaches no worker");
}

}  // namespace

void BatchBook::Forgot(RunId run, const std::vector<Record>& records) {
  const Engine::Batches use = runs_[run].use;
  runs_[run] = {.use = use, .members = {}, .sums = {}, .fewer = {}, .groups = {}};
  for (const Record& record : records) Take(run, record, false);
}

bool BatchBook::WentElsewhere(RunId run, Iteration step, Iteration before) const {
  const auto job = runs_.find(run);
  if (job == runs_.end()) return false;
  const auto next = job->second.elsewhere.lower_bound(step - before);
  return next != job->second.elsewhere.end() && *next <= step;
}

void BatchBook::Take(RunId run, const Record& record, bool check) {
  const auto found = runs_.find(run);
  if (found == runs_.end() || found->second.use == Engine::Batches::kNone) return;
  Job& job = found->second;
  if (const auto* from = std::get_if<FromWorker>(&record.body)) {
    const auto* hello = std::get_if<Hello>(&from->envelope.body);
    if (hello == nullptr) return;
    if (job.batch == 0) {
      const std::int64_t set = world_->workload.job.batch;
      job.batch = set > 0 ? set : hello->batch;
    }
    job.members[hello->rank] = {
        .there = true, .max_share = hello->max_share, .accumulates = hello->accumulates};
  } else if (const auto* left = std::get_if<WorkerLeft>(&record.body)) {
    if (!StaysInJob(left->why) && !Stays(*left)) job.members[left->rank].there = false;
  } else if (const auto* set = std::get_if<SharesSet>(&record.body)) {
    if (check && set->more) CheckMore(job, *set);
    if (check && !set->more) CheckShares(job, *set);
    if (!set->more) {
      job.sums.erase(job.sums.lower_bound(set->from), job.sums.end());
      job.sums[set->from] = set->batch;
      job.fewer.erase(job.fewer.lower_bound(set->from), job.fewer.end());
    } else if (set->reason.starts_with(BatchShares::kGoesOnElsewhere)) {
      job.elsewhere.insert(set->from);
    } else if (set->shares.empty()) {
      job.fewer.insert(set->from);
    }
  } else if (const auto* formed = std::get_if<GroupFormed>(&record.body)) {
    if (formed->kind == GroupKind::kTrain) job.groups[formed->id] = *formed;
  } else if (const auto* ended = std::get_if<GroupEnded>(&record.body)) {
    const auto of = job.groups.find(ended->id);
    if (of == job.groups.end()) return;
    if (check && ended->ok) CheckStep(run, job, of->second);
    job.groups.erase(of);
    given_.erase({run, ended->id});
  }
}

void BatchBook::CheckShares(const Job& job, const SharesSet& set) const {
  const std::string from = "shares from step " + Text(set.from) + " on: ";
  std::int64_t sum = 0;
  std::int64_t fits = 0;
  bool unlimited = false;
  for (const ShareGiven& share : set.shares) {
    const auto found = job.members.find(share.rank);
    if (found == job.members.end() || !found->second.there) {
      throw Violation("share-owner", from + RankName(share.rank) + " has one, and is not there");
    }
    const Member& member = found->second;
    if (share.first != sum || share.samples < 1) {
      throw Violation("shares-sum", from + RankName(share.rank) + " has " + Text(share.samples) +
                                        " at " + Text(share.first) + ", after " + Text(sum));
    }
    sum += share.samples;
    unlimited = unlimited || member.max_share == 0 || member.accumulates;
    fits += member.max_share;
    if (member.max_share > 0 && share.samples > member.max_share && !member.accumulates) {
      throw Violation("share-limit", from + RankName(share.rank) + " has " + Text(share.samples) +
                                         ", and its limit is " + Text(member.max_share));
    }
    if (job.use == Engine::Batches::kWhole && member.max_share == 0) CheckTime(share.rank, share);
  }
  const std::int64_t due = unlimited ? job.batch : std::min(job.batch, fits);
  if (sum == due && set.batch == sum) return;
  throw Violation("shares-sum", from + "they sum to " + Text(sum) + ", said to be " +
                                    Text(set.batch) + ", and it should be " + Text(due));
}

void BatchBook::CheckMore(const Job& job, const SharesSet& set) const {
  for (const ShareGiven& share : set.shares) {
    const auto found = job.members.find(share.rank);
    const bool can = found != job.members.end() && found->second.there && found->second.accumulates;
    if (can && share.samples > 0) continue;
    throw Violation("share-owner", RankName(share.rank) + " is to compute more of step " +
                                       Text(set.from) + ", and cannot");
  }
}

void BatchBook::CheckTime(Rank rank, const ShareGiven& share) const {
  const FaultsPart& faults = world_->workload.faults;
  const bool even = times_->exact() && world_->workload.compute.fixed_part == 0;
  if (share.expected_ns == 0 || !even || faults.worker_freezes_per_s > 0) return;
  const auto step = static_cast<DurationNs>(times_->MeanNs(static_cast<std::uint32_t>(rank)));
  const auto takes = static_cast<double>(times_->Of(step, share.samples));
  if (static_cast<double>(share.expected_ns) <= kMostTimes * takes) return;
  throw Violation("share-time", RankName(rank) + " is expected to compute for " +
                                    Text(share.expected_ns) + " ns, and takes " +
                                    Text(static_cast<std::int64_t>(takes)));
}

void BatchBook::CheckStep(RunId run, const Job& job, const GroupFormed& formed) const {
  const auto found = given_.find({run, formed.id});
  if (job.use != Engine::Batches::kWhole || found == given_.end()) return;
  const auto after = job.sums.upper_bound(formed.iteration);
  if (after == job.sums.begin()) return;
  std::int64_t due = std::prev(after)->second;
  const std::string group = GroupName(formed.id) + ", step " + Text(formed.iteration) + ": ";
  std::vector<Range> ranges;
  std::map<Rank, std::int64_t> counts;
  std::int64_t sum = 0;
  for (const GroupShare& member : formed.members) {
    const auto given = found->second.find(static_cast<std::uint32_t>(member.rank));
    if (given == found->second.end()) return;  // it has not begun, and is not needed
    for (const Range& range : given->second) {
      if (range.step != formed.iteration) {
        throw Violation("batch-whole",
                        group + RankName(member.rank) + " has samples of step " + Text(range.step));
      }
      counts[member.rank] += range.samples;
      sum += range.samples;
      ranges.push_back(range);
    }
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.first < b.first; });
  std::int64_t end = 0;
  bool gap = false;
  const bool elsewhere = job.elsewhere.contains(formed.iteration);
  for (const Range& range : ranges) {
    if (range.first < end && !elsewhere) {
      throw Violation("batch-whole", group + "sample " + Text(range.first) + " is in it twice");
    }
    gap = gap || range.first > end;
    end = range.first + range.samples;
  }
  // Where the job went back to an earlier step, it did so with the shares of the step at hand.
  const bool went_back = !job.elsewhere.empty() && *job.elsewhere.begin() <= formed.iteration;
  const auto is = [end](const auto& set) { return set.second == end; };
  if (went_back && std::any_of(after, job.sums.end(), is)) due = end;
  if (!elsewhere && (end > due || ((gap || end < due) && !job.fewer.contains(formed.iteration)))) {
    throw Violation("batch-whole", group + Text(sum) + " samples, up to " + Text(end) +
                                       ", are in it, of a batch of " + Text(due));
  }
  for (const GroupShare& member : formed.members) {
    const double weight = static_cast<double>(counts[member.rank]) / static_cast<double>(sum);
    if (std::abs(weight - member.weight) < 1e-9) continue;
    throw Violation("batch-whole", group + RankName(member.rank) + " weighs " +
                                       std::to_string(member.weight) + " with " +
                                       Text(counts[member.rank]) + " of " + Text(sum));
  }
}

}  // namespace prd::sim
