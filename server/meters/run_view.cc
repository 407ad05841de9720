#include "server/meters/run_view.h"

#include <utility>

#include "engines/event.h"
#include "engines/run_end.h"

namespace prd::meters {

void Moved::Leave() {
  if (StaysInJob(went->why)) return;
  gone = true;
  lost = went->why != LeftReason::kLeft;
  gradients_lost = went->gradients;
}

const char* HowEnded(const std::string& reason) {
  return reason.find(kJobIsDone) != std::string::npos ? "finished" : "left";
}

RunView::Change RunView::Apply(const Record& record) {
  if (record.run != run_) {
    *this = RunView();
    run_ = record.run;
  }
  if (record.index == 0) start_ = record.now;
  Change change(record.body);
  if (const auto* from = std::get_if<FromWorker>(&record.body)) {
    const WorkerEnvelope& envelope = from->envelope;
    if (const auto* ready = std::get_if<Ready>(&envelope.body)) {
      OnReady(record.now, envelope.rank, *ready);
    } else if (const auto* finished = std::get_if<Finished>(&envelope.body)) {
      OnReport(record.now, envelope.rank, *finished);
    } else if (const auto* adopted = std::get_if<Adopted>(&envelope.body)) {
      OnAdopted(record.now, envelope.rank, *adopted);
    }
  } else if (const auto* started = std::get_if<RunStarted>(&record.body)) {
    plan_ = PlanOf(*started);
  } else if (change.came != nullptr) {
    training_[change.came->rank] = computing_[change.came->rank] = record.now;
  } else if (change.went != nullptr) {
    OnWent(record.now, change);
  } else if (const auto* order = std::get_if<AdoptOrdered>(&record.body)) {
    if (order->result == kNoGroup) return change;
    fetching_[order->rank] = order->result;
    if (MemberRow* member = Find(order->result, order->rank)) member->fetched_from = order->source;
  } else if (const auto* dropped = std::get_if<UpdateDropped>(&record.body)) {
    signals_.erase(dropped->rank);
  } else if (const auto* answer = std::get_if<QueryAnswered>(&record.body)) {
    const auto signal = signals_.find(answer->rank);
    const bool waits = answer->ready && signal != signals_.end() && signal->second.ready.waiting;
    if (waits) return change;
    signals_.erase(answer->rank);
    computing_[answer->rank] = record.now;
  } else if (const auto* formed = std::get_if<GroupFormed>(&record.body)) {
    OnForm(record, *formed);
    change.formed = &running_.at(formed->id);
  } else if (const auto* ended = std::get_if<GroupEnded>(&record.body)) {
    OnEnd(record, *ended, &change);
  }
  return change;
}

void RunView::OnReady(Instant now, Rank rank, const Ready& ready) {
  Signal& signal = signals_[rank] = {now, ready};
  signal.ready.step_ns = Possible(ready.step_ns, now - start_);
  const auto in = ahead_.find(rank);
  if (in == ahead_.end()) return;
  MemberRow* member = Find(in->second, rank);
  if (member == nullptr || member->came) return;
  member->came = now;
  if (member->passive) return;
  member->ready = now;
  member->step_ns = signal.ready.step_ns;
}

void RunView::OnWent(Instant now, const Moved& moved) {
  const Rank rank = moved.went->rank;
  training_.erase(rank);
  signals_.erase(rank);
  fetching_.erase(rank);
  computing_.erase(rank);
  const auto in = ahead_.find(rank);
  if (in == ahead_.end()) return;
  if (moved.gone) {
    ahead_.erase(in);
  } else if (moved.went->why == LeftReason::kFinished) {
    // It computes no more: groups that wait for its training loop need not.
    MemberRow* member = Find(in->second, rank);
    if (member != nullptr && !member->came) member->came = now;
  }
}

void RunView::OnEnd(const Record& record, const GroupEnded& ended, Change* change) {
  const auto found = running_.find(ended.id);
  if (found == running_.end()) return;
  change->ended = std::move(found->second);
  running_.erase(found);
  GroupRow& group = *change->ended;
  group.ended = record.now;
  group.ok = ended.ok;
  group.failure = ended.reason;
  if (group.kind != GroupKind::kRound && group.kind != GroupKind::kAverage) return;
  const bool answers = group.kind == GroupKind::kRound && group.AnyResult();
  for (const MemberRow& member : group.members) {
    const auto signal = signals_.find(member.rank);
    if (signal == signals_.end()) continue;
    if (answers && signal->second.ready.iteration <= group.iteration) {
      signals_.erase(signal);
    } else if (member.ready) {
      signal->second.at = record.now;  // what it waited for until now is told with this group
    }
  }
}

MemberRow* RunView::Find(GroupId group, Rank rank) {
  const auto found = running_.find(group);
  if (found == running_.end()) return nullptr;
  for (MemberRow& member : found->second.members) {
    if (member.rank == rank) return &member;
  }
  return nullptr;
}

void RunView::OnAdopted(Instant now, Rank rank, const Adopted& adopted) {
  const auto fetch = fetching_.find(rank);
  if (fetch == fetching_.end()) {
    signals_.erase(rank);
    return;
  }
  if (MemberRow* member = Find(fetch->second, rank)) {
    member->reported = now;
    member->detail = adopted.detail;
    if (adopted.ok) member->outcome = Outcome::kOk;
    member->included = adopted.included;
  }
  fetching_.erase(fetch);
}

namespace {

// Whether the worker of this signal waits for the group.
bool Waits(const Ready& ready, const GroupFormed& formed) {
  switch (formed.kind) {
    case GroupKind::kInitial:
    case GroupKind::kFinal:
      return false;
    case GroupKind::kTrain:
    case GroupKind::kAverage:
      return ready.waiting;
    case GroupKind::kRound:
      return ready.waiting && ready.iteration <= formed.iteration;
  }
  return false;
}

}  // namespace

void RunView::OnForm(const Record& record, const GroupFormed& formed) {
  GroupRow row{.id = formed.id,
               .kind = formed.kind,
               .formed = record.now,
               .iteration = formed.iteration,
               .initial_weight = formed.initial_weight,
               .reason = formed.reason,
               .conflict = formed.conflict};
  const bool train = formed.kind == GroupKind::kTrain;
  const bool ahead = train && DrawnAhead(plan_);
  row.held = ahead && !AveragesInBackground(plan_);
  if (train) ++train_groups_;
  if (formed.conflict) ++conflicts_;
  for (const GroupShare& share : formed.members) {
    MemberRow member{.rank = share.rank,
                     .weight = share.weight,
                     .passive = share.passive,
                     .iteration = share.iteration};
    if (ahead) {
      OnFormAhead(share, &member);
      ahead_[share.rank] = formed.id;
      row.members.push_back(std::move(member));
      continue;
    }
    const auto signal = signals_.find(share.rank);
    if (signal != signals_.end() && Waits(signal->second.ready, formed)) {
      member.ready = signal->second.at;
      member.step_ns = signal->second.ready.step_ns;
      member.local_steps = signal->second.ready.local_steps;
    }
    // A round answers once it has ended, an average never.
    if (train) signals_.erase(share.rank);
    row.members.push_back(std::move(member));
  }
  running_.insert_or_assign(formed.id, std::move(row));
}

// A signal stands until a group of which its worker is an active member has succeeded.
void RunView::OnFormAhead(const GroupShare& share, MemberRow* member) {
  const auto signal = signals_.find(share.rank);
  if (signal == signals_.end()) {
    const auto since = computing_.find(share.rank);
    if (since != computing_.end()) member->computing = since->second;
    return;
  }
  member->came = signal->second.at;
  if (share.passive) return;
  member->ready = signal->second.at;
  member->step_ns = signal->second.ready.step_ns;
}

void RunView::OnReportAhead(Instant now, Rank rank, MemberRow* member) {
  ahead_.erase(rank);
  if (member->passive) {
    member->wait_ns = 0;
    return;
  }
  const auto signal = signals_.find(rank);
  if (signal == signals_.end()) return;
  if (member->outcome == Outcome::kOk) {
    signals_.erase(signal);
    computing_[rank] = now;
  } else {
    signal->second.at = now;  // what it waited for until now is told with this group
  }
}

void RunView::OnReport(Instant now, Rank rank, const Finished& finished) {
  MemberRow* member = Find(finished.group, rank);
  if (member == nullptr) return;
  member->outcome = finished.outcome;
  member->reported = now;
  member->wait_ns = Possible(finished.wait_ns, now - start_);
  member->reduce_ns = Possible(finished.reduce_ns, now - start_);
  member->bytes = finished.bytes;
  member->detail = finished.detail;
  member->included = finished.included;
  const auto in = ahead_.find(rank);
  if (in != ahead_.end() && in->second == finished.group) OnReportAhead(now, rank, member);
}

}  // namespace prd::meters
