#include "tests/engines/eager_model.h"

#include <algorithm>
#include <cmath>

namespace prd {

namespace {

// The rank after the word in "waits for rank 3, drawn for", kNoRank when it is not there.
Rank RankAfter(const std::string& text, const std::string& word) {
  const std::size_t at = text.find(word);
  return at == std::string::npos ? kNoRank : std::stoi(text.substr(at + word.size()));
}

}  // namespace

void EagerModel::Learn(const Event& event) {
  if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    if (workers_.empty()) done_ = last_sync_ = joined->iteration;
    workers_[joined->rank] = {.host = joined->host};
  } else if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    workers_[ready->rank].signal = ready->ready;
    workers_[ready->rank].owed = ready->owed;
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    workers_.erase(left->rank);
    if (drawn_ == left->rank) drawn_ = kNoRank;
  } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
    if (running_->kind == GroupKind::kRound) workers_[finished->rank].owed = finished->owed;
  } else if (const auto* ended = std::get_if<EndedEvent>(&event)) {
    failures_ += ended->ok ? 0 : 1;
    if (ended->ok && running_->kind == GroupKind::kAverage) last_sync_ = done_;
    if (ended->ok && running_->kind == GroupKind::kRound) {
      done_ = running_->iteration;
      for (auto& [rank, worker] : workers_) {
        worker.passed_over = taking_part_.contains(rank) ? 0 : worker.passed_over + 1;
        bounds_ += worker.passed_over == options_.max_stale_rounds ? 1 : 0;
      }
    }
    running_.reset();
  }
}

std::set<Rank> EagerModel::Arrived() const {
  std::set<Rank> ranks;
  for (const auto& [rank, worker] : workers_) {
    if (worker.signal.waiting && worker.signal.iteration == done_ + 1) ranks.insert(rank);
  }
  return ranks;
}

std::set<Rank> EagerModel::Overdue() const {
  std::set<Rank> ranks;
  for (const auto& [rank, worker] : workers_) {
    if (options_.max_stale_rounds > 0 && worker.passed_over >= options_.max_stale_rounds &&
        worker.owed == 0 && !Arrived().contains(rank)) {
      ranks.insert(rank);
    }
  }
  return ranks;
}

std::string EagerModel::Check(const Applied& applied) {
  Learn(applied.event);
  if (applied.effects.empty()) return CheckNothing(applied);
  if (applied.effects.size() > 1) return "more than one decision";
  const auto* group = std::get_if<FormGroup>(&applied.effects[0]);
  if (group == nullptr) return "a decision that is no group";
  if (running_) return "a group while another one runs";
  if (group->reason.empty()) return "no reason";
  std::set<Rank> members;
  std::vector<std::string> hosts;
  for (const GroupShare& member : group->members) {
    members.insert(member.rank);
    const std::string& host = workers_[member.rank].host;
    if (hosts.empty() || hosts.back() != host) hosts.push_back(host);
  }
  if (members.size() != workers_.size() || group->members.size() != workers_.size()) {
    return "not all, or not once";
  }
  std::sort(hosts.begin(), hosts.end());
  if (std::unique(hosts.begin(), hosts.end()) != hosts.end()) return "a host in two pieces";
  running_ = *group;
  return group->kind == GroupKind::kAverage ? CheckAverage(*group) : CheckRound(*group);
}

std::string EagerModel::CheckAverage(const FormGroup& group) {
  ++averages_;
  if (options_.sync_every == 0 || done_ - last_sync_ < options_.sync_every) return "early average";
  if (Arrived().size() != workers_.size()) return "an average of workers that do not wait";
  if (group.iteration != done_) return "an average changes no iteration";
  for (const GroupShare& member : group.members) {
    if (member.weight != 1.0 / static_cast<double>(workers_.size())) return "unequal weights";
  }
  return "";
}

std::string EagerModel::CheckRound(const FormGroup& group) {
  if (group.kind != GroupKind::kRound) return "wrong kind";
  if (group.iteration != done_ + 1) return "a round's number is that of the one before + 1";
  if (options_.sync_every > 0 && workers_.size() > 1 && done_ - last_sync_ >= options_.sync_every) {
    return "a round where models are to be averaged";
  }
  if (!Overdue().empty()) return "passes somebody over too often";
  taking_part_ = Arrived();
  for (const GroupShare& member : group.members) {
    const Worker& worker = workers_[member.rank];
    const double share = 1.0 / static_cast<double>(workers_.size());
    if (member.weight != (worker.owed > 0 ? share : 0)) return "wrong weight";
    if (worker.owed > 0) taking_part_.insert(member.rank);
  }
  return CheckStart(group);
}

std::string EagerModel::CheckStart(const FormGroup& group) {
  const std::set<Rank> arrived = Arrived();
  if (options_.quorum != EagerOptions::kMajority) {
    const auto all = static_cast<std::int64_t>(workers_.size());
    const auto needed = static_cast<std::size_t>(std::min(options_.quorum, all));
    return arrived.size() >= needed ? "" : "too few have arrived";
  }
  const Rank initiator = RankAfter(group.reason, "majority: rank ");
  if (!arrived.contains(initiator)) return "the initiator has not arrived";
  if (drawn_ != kNoRank && drawn_ != initiator) return "drawn again for no reason";
  drawn_ = kNoRank;
  return "";
}

// Nothing was decided: is there a reason not to?
std::string EagerModel::CheckNothing(const Applied& applied) {
  if (running_) return "";
  const std::set<Rank> arrived = Arrived();
  if (arrived.empty()) return "";
  if (arrived.size() == workers_.size()) return "all have arrived, and nothing happens";
  const std::string why = engine_->Explain(applied.now, *arrived.begin());
  if (why.empty()) return "a worker waits without a reason";
  if (options_.sync_every > 0 && done_ - last_sync_ >= options_.sync_every) return "";
  if (!Overdue().empty()) {
    ++holds_;
    return why.starts_with("waits for rank") ? "" : "holds, and says: " + why;
  }
  if (std::all_of(workers_.begin(), workers_.end(),
                  [](const auto& entry) { return entry.second.owed == 0; })) {
    return "";
  }
  if (options_.quorum != EagerOptions::kMajority) {
    return arrived.size() < static_cast<std::size_t>(options_.quorum) ? "" : "a round is missing";
  }
  const Rank drawn = RankAfter(why, "waits for rank ");
  if (!workers_.contains(drawn) || arrived.contains(drawn)) return "does not wait for: " + why;
  if (drawn_ != kNoRank && drawn_ != drawn) return "drawn again for no reason";
  drawn_ = drawn;
  return "";
}

}  // namespace prd
