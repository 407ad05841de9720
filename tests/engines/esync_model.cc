#include "tests/engines/esync_model.h"

#include <algorithm>
#include <cmath>

namespace prd {

void EsyncModel::Drop(Instant now, Rank rank) {
  due_.insert(rank);
  Record& record = records_[rank];
  record.base.reset();
  record.copies = true;
  record.ready = record.stands = false;
  record.k = 0;
  record.untimed = record.c.has_value();
  record.last_finish = now;
}

// Whoever has counted, and trains on an older model than the newest, is dropped.
void EsyncModel::DropOlder(Instant now) {
  for (const auto& [rank, record] : records_) newest_ = std::max(newest_, record.base.value_or(0));
  for (const auto& [rank, record] : records_) {
    const bool first = !record.counts && !record.c;
    if (record.base && *record.base < newest_ && !first && !record.failed) Drop(now, rank);
  }
}

Rank EsyncModel::Slowest() const {
  Rank slowest = kNoRank;
  for (const auto& [rank, record] : records_) {
    if (!record.counts) continue;
    const bool slower = slowest == kNoRank || !record.c || *record.c > *records_.at(slowest).c;
    if (slower) slowest = rank;
    if (!record.c) break;
  }
  return slowest;
}

// One that catches up keeps nobody from being ready for longer than it may be overdue.
void EsyncModel::ForgetTheOverdue(Instant now) {
  while (options_.stall_factor > 0) {
    Record& of = records_[Slowest()];
    const Instant overdue = of.last_finish + options_.stall_factor * of.longest;
    if (!of.copies || !of.c || now < overdue) return;
    of.counts = false;
  }
}

// The line numbers are those of Algorithm 2.
bool EsyncModel::QueryState(Instant now, Rank rank) const {
  const Record& current = records_.at(rank);
  const Rank slowest = Slowest();  // 4
  if (running_ && *current.base == newest_) return false;
  const Record& of = records_.at(slowest);
  if (current.k == 0 || !of.c || of.reduces || of.failed || of.copies) return false;  // 5-6
  const DurationNs rest = *of.c - (now - of.last_finish);                             // 7-8
  return rank == slowest || of.ready || of.stands ||
         *current.c + options_.margin_ms * kMillisecond > rest;  // 9
}

void EsyncModel::Query(Instant now, Rank rank, const Ready& ready) {
  Record& record = records_[rank];
  const std::int64_t steps = ready.local_steps - record.k;
  const bool ends = !record.untimed && steps > 0 && !(Delayed() && ready.waiting);
  if (now > record.last_finish && (ends || !record.c)) {
    record.c = (now - record.last_finish) / std::max<std::int64_t>(1, steps) +
               (Delayed() ? ready.rtt_ns : 0);
    record.longest = std::max(record.longest, *record.c);
  }
  begun_ = true;
  record.k = ready.local_steps;
  record.last_finish = now;
  record.untimed = record.copies = false;
  record.base = ready.iteration - 1;
  record.counts = true;
  if (*record.base < newest_) return Drop(now, rank);
  if (!running_ && *record.base > newest_) DropOlder(now);
  ForgetTheOverdue(now);
  const bool told = record.ready;
  const bool is_ready = told || QueryState(now, rank);
  if (!Delayed() || (is_ready && !told && !ready.waiting)) answer_ = is_ready;
  record.ready = is_ready;
  record.stands = ready.waiting && (is_ready || Delayed());
  if (record.stands) record.ready = true;
}

void EsyncModel::Follow(Instant now, const Event& event) {
  if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    const bool there = std::any_of(records_.begin(), records_.end(),
                                   [this](const auto& of) { return of.second.base == newest_; });
    if (records_.empty()) newest_ = joined->iteration;
    Record& record = records_[joined->rank];
    record.base = joined->iteration;
    record.last_finish = now;
    record.counts = !begun_;
    if (!running_ && joined->iteration < newest_ && !there) newest_ = 0;
    if (!running_ && joined->iteration > newest_) DropOlder(now);
  } else if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    Query(now, ready->rank, ready->ready);
  } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
    Record& record = records_[finished->rank];
    record.reduces = record.ready = record.stands = false;
    record.failed = !finished->ok;
    record.last_finish = now;
    if (!finished->ok) return;
    record.base = round_;
    record.k = 0;
    record.longest = std::max(*record.c, record.longest - record.longest / 8);
  } else if (const auto* ended = std::get_if<EndedEvent>(&event)) {
    running_ = false;
    const bool known = std::any_of(records_.begin(), records_.end(), [&](const auto& of) {
      return of.second.base && !(of.second.failed && ended->ok);
    });
    for (auto& [rank, record] : records_) {
      if (!record.failed) continue;
      record.untimed = true;
      record.last_finish = now;
      if (ended->ok) record.base.reset();
      record.copies = ended->ok;
      record.ready = !ended->ok;
    }
    newest_ = ended->ok ? round_ : known ? 0 : newest_;
    DropOlder(now);
    for (auto& [rank, record] : records_) record.failed = false;
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    records_.erase(left->rank);
    if (records_.empty()) begun_ = false;
  } else {
    TakeOut(now);
  }
}

// When every one of those that the round waits for is overdue.
std::optional<Instant> EsyncModel::Deadline() const {
  if (running_ || options_.stall_factor == 0) return std::nullopt;
  bool anybody = false;
  std::optional<Instant> last;
  for (const auto& [rank, record] : records_) {
    if (!record.counts) continue;
    anybody = anybody || record.stands;
    if (record.stands) continue;
    if (!record.c || record.reduces) return std::nullopt;
    const Instant overdue = record.last_finish + options_.stall_factor * record.longest;
    last = last ? std::max(*last, overdue) : overdue;
  }
  return anybody ? last : std::nullopt;
}

void EsyncModel::TakeOut(Instant now) {
  const std::optional<Instant> deadline = Deadline();
  if (!deadline || now < *deadline) return;
  for (auto& [rank, record] : records_) {
    if (record.stands || !record.counts) continue;
    record.counts = false;
    ++taken_out_;
  }
}

std::string EsyncModel::Check(const Applied& applied) {
  due_.clear();
  answer_.reset();
  Follow(applied.now, applied.event);
  std::set<Rank> caught_up;
  std::optional<bool> answer;
  const FormGroup* formed = nullptr;
  for (const Effect& effect : applied.effects) {
    if (const auto* late = std::get_if<CatchUp>(&effect)) {
      if (formed != nullptr || !caught_up.insert(late->rank).second) return "dropped out of order";
    } else if (const auto* group = std::get_if<FormGroup>(&effect)) {
      if (formed != nullptr) return "two rounds at once";
      formed = group;
    } else {
      answer = std::get<Answer>(effect).ready;
    }
  }
  if (answer != answer_) return "another answer";
  if (caught_up != due_) return "others than those that are behind are dropped";
  dropped_ += static_cast<int>(due_.size());
  bool due = !running_;
  bool anybody = false;
  for (const auto& [rank, record] : records_) {
    due = due && (record.stands || !record.counts);
    anybody = anybody || record.stands;
  }
  due = due && anybody;
  if (due != (formed != nullptr)) return due ? "a round is missing" : "a round too many";
  if (due) {
    if (auto wrong = CheckGroup(*formed); !wrong.empty()) return wrong;
  }
  for (const auto& [rank, record] : records_) {
    const bool explained = !engine_->Explain(applied.now, rank).empty();
    if (explained != record.stands) return "explains who does not wait, or not who does";
  }
  return engine_->NextDeadline() == Deadline() ? "" : "another deadline";
}

std::string EsyncModel::CheckGroup(const FormGroup& group) {
  std::set<Rank> members;
  const double weight = 1 / static_cast<double>(group.members.size());
  for (const GroupShare& member : group.members) {
    members.insert(member.rank);
    if (std::abs(member.weight - weight) > 1e-12) return "unequal weights";
    if (member.iteration != newest_ + 1) return "a member of another round";
  }
  if (members.size() != group.members.size()) return "a member twice";
  for (auto& [rank, record] : records_) {
    if (members.contains(rank) != record.stands) return "not all that wait are members";
    if (!record.stands) continue;
    record.stands = record.ready = false;
    record.reduces = true;
    local_steps_ += record.k > 1 ? 1 : 0;
  }
  if (group.iteration != newest_ + 1 || group.kind != GroupKind::kTrain) return "another round";
  running_ = true;
  round_ = group.iteration;
  ++rounds_;
  return "";
}

}  // namespace prd
