#include "engines/ad_psgd/ad_psgd.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/prng.h"
#include "engines/words.h"

namespace prd {

namespace {

Rank Other(const GroupQueue::Group& group, Rank rank) {
  return group.members[0] == rank ? group.members[1] : group.members[0];
}

// The group with this id in a worker's line, or null.
const GroupQueue::Group* Find(const GroupQueue& queue, Rank rank, GroupId id) {
  for (std::size_t i = 0; i < queue.Length(rank); ++i) {
    if (queue.At(rank, i).id == id) return &queue.At(rank, i);
  }
  return nullptr;
}

// Where this worker is among the group's members.
std::size_t PlaceOf(const GroupQueue::Group& group, Rank rank) {
  return static_cast<std::size_t>(std::find(group.members.begin(), group.members.end(), rank) -
                                  group.members.begin());
}

}  // namespace

std::unique_ptr<Engine> AdPsgdOptions::Make() const { return std::make_unique<AdPsgd>(*this); }

AdPsgd::AdPsgd(const AdPsgdOptions& options)
    : options_(options),
      draws_(Prng(static_cast<std::uint64_t>(options.seed)).Next()),
      neighbours_(options.graph) {}

Plan AdPsgd::plan() const {
  const auto run_ahead = static_cast<std::uint32_t>(options_.overlap_steps);
  return {.every = static_cast<std::uint32_t>(options_.section_length),
          .by = GroupPlan{.members = Membership::kAhead,
                          .any_time = true,
                          .run_ahead = options_.overlap ? run_ahead : 0}};
}

bool AdPsgd::Joined(Rank rank) const {
  return rank >= 0 && static_cast<std::size_t>(rank) < workers_.size() && At(rank).joined;
}

void AdPsgd::Step(Instant now, const Event& event, GroupId* next_group, Effects* out) {
  if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    PRD_CHECK(Joined(ready->rank) && At(ready->rank).asked == kNoGroup);
    At(ready->rank).iteration = ready->ready.iteration;
    At(ready->rank).since = now;
    Draw(ready->rank, "", next_group, out);
  } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
    OnFinished(*finished);
  } else if (const auto* ended = std::get_if<EndedEvent>(&event)) {
    const auto failed = failed_.find(ended->group);
    if (failed == failed_.end()) return;
    const Rank rank = failed->second;
    failed_.erase(failed);
    Draw(rank, "; again, as group " + std::to_string(ended->group) + " failed", next_group, out);
  } else if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    return OnJoined(*joined);
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    OnLeft(*left, next_group, out);
  } else if (const auto* link = std::get_if<LinkEvent>(&event)) {
    OnLink(*link, next_group, out);
  }
  FormRunnable(out);
}

void AdPsgd::OnJoined(const JoinedEvent& event) {
  PRD_CHECK(event.rank >= 0 && !Joined(event.rank));
  const std::size_t ranks = static_cast<std::size_t>(event.rank) + 1;
  if (ranks > workers_.size()) workers_.resize(ranks);
  At(event.rank) = {.iteration = event.iteration,
                    .since = {},
                    .asked = kNoGroup,
                    .host = hosts_.Add(event.host),
                    .joined = true};
  neighbours_.Join(event.rank);
}

void AdPsgd::OnFinished(const FinishedEvent& event) {
  PRD_CHECK(Joined(event.rank));
  Worker& worker = At(event.rank);
  queue_.Done(event.rank, event.group);
  if (worker.asked != event.group) return;  // it was passive
  if (event.ok) {
    worker.asked = kNoGroup;
  } else {
    failed_[event.group] = event.rank;
  }
}

void AdPsgd::OnLeft(const LeftEvent& event, GroupId* next_group, Effects* out) {
  PRD_CHECK(Joined(event.rank));
  failed_.erase(At(event.rank).asked);
  hosts_.Remove(At(event.rank).host);
  At(event.rank) = {};
  neighbours_.Leave(event.rank);
  links_.Forget(event.rank);
  for (const GroupQueue::Group& group : queue_.Leave(event.rank)) {
    if (group.caller == event.rank) continue;
    Draw(group.caller,
         "; again, as " + RankName(event.rank) + " left before " + GroupName(group.id) + " ran",
         next_group, out);
  }
}

void AdPsgd::OnLink(const LinkEvent& event, GroupId* next_group, Effects* out) {
  PRD_CHECK(Joined(event.a) && Joined(event.b));
  links_.Set(event.a, event.b, event.works);
  if (event.works) return;
  std::vector<std::pair<GroupId, Rank>> drawn;  // and for whom
  for (std::size_t i = 0; i < queue_.Length(event.a); ++i) {
    const GroupQueue::Group& group = queue_.At(event.a, i);
    if (!group.formed && Other(group, event.a) == event.b)
      drawn.emplace_back(group.id, group.caller);
  }
  for (const auto& [id, caller] : drawn) queue_.Drop(event.a, id);
  for (const auto& [id, caller] : drawn) {
    Draw(caller, "; again, as the link of group " + std::to_string(id) + " is broken", next_group,
         out);
  }
}

void AdPsgd::Draw(Rank rank, const std::string& again, GroupId* next_group, Effects* out) {
  Worker& worker = At(rank);
  std::size_t count = neighbours_.Count(rank);
  std::vector<Rank> reached;  // where not all are
  bool some = false;
  if (links_.HasAny(rank)) {
    reached = neighbours_.Of(rank);
    some = std::erase_if(reached, [&](Rank other) { return links_.Has(rank, other); }) > 0;
    count = reached.size();
  }
  if (count == 0) {
    worker.asked = kNoGroup;
    out->push_back(QueryAnswered{
        .rank = rank,
        .ready = false,
        .reason = (some ? "reaches no neighbour: goes on alone" : "no neighbour: goes on alone") +
                  again});
    return;
  }
  worker.asked = (*next_group)++;
  const auto index = static_cast<std::size_t>(Prng(draws_ + worker.asked).Below(count));
  const Rank other = some ? reached[index] : neighbours_.At(rank, index);
  std::string reason = RankName(rank) + " drew " + RankName(other) + " of " +
                       std::to_string(count) + (count == 1 ? " neighbour" : " neighbours");
  if (some) reason += " that it reaches";
  reason += again;
  queue_.Draw(worker.asked, rank, {rank, other}, false, std::move(reason));
}

std::vector<GroupShare> AdPsgd::Shares(const GroupQueue::Group& group) const {
  std::vector<GroupShare> shares;
  shares.reserve(group.members.size());
  for (const Rank rank : group.members) {
    shares.push_back({.rank = rank,
                      .weight = 0.5,
                      .iteration = At(rank).iteration,
                      .passive = group.Passive(rank)});
  }
  std::sort(shares.begin(), shares.end(), InRingOrder([this](Rank rank) { return At(rank).host; }));
  return shares;
}

void AdPsgd::FormRunnable(Effects* out) {
  for (const GroupQueue::Group* group : queue_.TakeRunnable()) {
    auto& form = std::get<GroupFormed>(out->emplace_back(GroupFormed{}));
    form.id = group->id;
    form.members = Shares(*group);
    form.iteration = std::max(form.members[0].iteration, form.members[1].iteration);
    form.reason = group->reason;
    if (group->behind != kNoGroup) {
      form.reason += "; waited behind group " + std::to_string(group->behind);
    }
    form.conflict = group->conflict;
  }
}

// A member of this unformed group that is in an earlier one.
Rank AdPsgd::Busy(const GroupQueue::Group& group) const {
  const Rank rank = group.members[0];
  return queue_.Front(rank).id != group.id ? rank : group.members[1];
}

// What a group that is not formed waits for: the group before it, and the one that runs.
std::string AdPsgd::WhatIsFirst(const GroupQueue::Group& group) const {
  const Rank busy = Busy(group);
  const GroupQueue::Group* first = &queue_.Front(busy);
  std::string text =
      RankName(busy) + " is in " + GroupName(first->id) + " of " + words::Ranks(first->members);
  if (first->formed) return text;
  while (!first->formed) first = &queue_.Front(Busy(*first));  // ids descend
  return text + ", and before that runs " + GroupName(first->id) + " of " +
         words::Ranks(first->members);
}

std::string AdPsgd::Explain(Instant now, Rank rank) const {
  if (!Joined(rank) || At(rank).asked == kNoGroup) return "";
  const Worker& worker = At(rank);
  const std::string age = words::Duration(now - worker.since);
  const GroupQueue::Group* group = Find(queue_, rank, worker.asked);
  if (group == nullptr) {
    return "its group " + std::to_string(worker.asked) +
           " failed; it gets another neighbour once the other member has said so, too";
  }
  const Rank other = Other(*group, rank);
  const std::string with = " with " + RankName(other) + " (" + GroupName(group->id) + ")";
  if (group->formed) {
    return "averages" + with + "; asked " + age + " ago" +
           (queue_.Waits(*group, PlaceOf(*group, other)) ? ""
                                                         : "; " + RankName(other) + " is through");
  }
  return "waiting " + age + " for its average" + with + ": " + WhatIsFirst(*group);
}

std::vector<Engine::Drawn> AdPsgd::DrawnGroups() const {
  std::vector<Drawn> drawn;
  for (const GroupQueue::Group* group : queue_.All()) {
    if (group->formed) continue;
    drawn.push_back({.id = group->id,
                     .members = Shares(*group),
                     .pending = true,
                     .reason = group->reason + "; " + WhatIsFirst(*group)});
  }
  return drawn;
}

void AdPsgd::Archive(StateArchive& ar) {
  ar(workers_, hosts_, failed_, links_);
  queue_.Archive(ar, workers_.size());
  neighbours_.Archive(ar, workers_.size());
  if (!ar.saving() && !Consistent()) ar.Fail();
}

bool AdPsgd::Consistent() const {
  for (const GroupQueue::Group* group : queue_.All()) {
    if (group->shared || group->members.size() != 2) return false;
    for (std::size_t i = 0; i < 2; ++i) {
      const Rank rank = group->members[i];
      if (static_cast<std::size_t>(rank) >= workers_.size()) return false;
      if (!queue_.Waits(*group, i)) continue;
      if (!Joined(rank)) return false;
      if (rank == group->caller && At(rank).asked != group->id) return false;
    }
  }
  for (const auto& [id, rank] : failed_) {
    if (!Joined(rank) || At(rank).asked != id) return false;
  }
  for (Rank rank = 0; static_cast<std::size_t>(rank) < workers_.size(); ++rank) {
    const Worker& worker = At(rank);
    if (worker.joined != neighbours_.Has(rank)) return false;
    if (!worker.joined) continue;
    if (!hosts_.Has(worker.host) || worker.iteration < 0 || worker.since.ns < 0) return false;
    if (worker.asked == kNoGroup || failed_.contains(worker.asked)) continue;
    const GroupQueue::Group* group = Find(queue_, rank, worker.asked);
    if (group == nullptr || group->caller != rank) return false;
  }
  return true;
}

}  // namespace prd
