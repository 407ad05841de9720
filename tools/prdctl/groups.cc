#include "tools/prdctl/groups.h"

#include <algorithm>

namespace prd::ctl {

bool GroupRow::Has(Rank rank) const {
  return std::any_of(members.begin(), members.end(),
                     [&](const MemberRow& member) { return member.rank == rank; });
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

GroupTracker::Change GroupTracker::Add(const Record& record) {
  Change change;
  if (record.index == 0) start_ = record.now;
  if (const auto* from = std::get_if<FromWorker>(&record.body)) {
    const WorkerEnvelope& envelope = from->envelope;
    if (const auto* ready = std::get_if<Ready>(&envelope.body)) {
      Signal& signal = signals_[envelope.rank] = {record.now, *ready};
      signal.ready.step_ns = Possible(ready->step_ns, record.now - start_);
    } else if (const auto* finished = std::get_if<Finished>(&envelope.body)) {
      OnReport(record.now, envelope.rank, *finished);
    } else if (std::holds_alternative<Adopted>(envelope.body)) {
      signals_.erase(envelope.rank);
    }
  } else if (const auto* left = std::get_if<WorkerLeft>(&record.body)) {
    signals_.erase(left->rank);
  } else if (const auto* formed = std::get_if<GroupFormed>(&record.body)) {
    OnForm(record, *formed);
    change.formed = &running_.at(formed->id);
  } else if (const auto* ended = std::get_if<GroupEnded>(&record.body)) {
    const auto found = running_.find(ended->id);
    if (found == running_.end()) return change;
    change.ended = std::move(found->second);
    running_.erase(found);
    change.ended->ended = record.now;
    change.ended->ok = ended->ok;
    change.ended->failure = ended->reason;
  }
  return change;
}

void GroupTracker::OnForm(const Record& record, const GroupFormed& formed) {
  GroupRow row{.id = formed.id,
               .kind = formed.kind,
               .formed = record.now,
               .iteration = formed.iteration,
               .initial_weight = formed.initial_weight,
               .reason = formed.reason};
  for (const GroupShare& share : formed.members) {
    MemberRow member{.rank = share.rank, .weight = share.weight, .iteration = share.iteration};
    const auto signal = signals_.find(share.rank);
    if (formed.kind == GroupKind::kTrain && signal != signals_.end()) {
      member.ready = signal->second.at;
      member.step_ns = signal->second.ready.step_ns;
      signals_.erase(signal);
    }
    row.members.push_back(std::move(member));
  }
  running_.insert_or_assign(formed.id, std::move(row));
}

void GroupTracker::OnReport(Instant now, Rank rank, const Finished& finished) {
  const auto group = running_.find(finished.group);
  if (group == running_.end()) return;
  for (MemberRow& member : group->second.members) {
    if (member.rank != rank) continue;
    member.outcome = finished.outcome;
    member.reported = now;
    member.wait_ns = Possible(finished.wait_ns, now - start_);
    member.reduce_ns = Possible(finished.reduce_ns, now - start_);
    member.bytes = finished.bytes;
    member.detail = finished.detail;
  }
}

bool GroupFilter::Lets(const GroupRow& group) const {
  if (rank && !group.Has(*rank)) return false;
  if (kind && group.kind != *kind) return false;
  if (since && group.formed < *since) return false;
  return !failed || (group.ended && !group.ok);
}

}  // namespace prd::ctl
