#include "engines/prague/prague.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "common/base/prng.h"
#include "common/base/static_schedule.h"
#include "engines/prague/division.h"
#include "engines/words.h"

namespace prd {

namespace {

// Counts beyond it come from a damaged snapshot.
constexpr std::int64_t kMaxRequests = std::int64_t{1} << 62;

constexpr std::size_t kShownSlow = 8;

}  // namespace

std::string PragueOptions::Paces(int workers) const {
  if (generator == Generator::kStatic) {
    return "generator \"static\": its schedule waits for every worker in turn; \"smart\" leaves "
           "out "
           "those that are slow";
  }
  if (overlap) return {};
  if (generator == Generator::kRandom) {
    return "generator \"random\" without overlap: groups wait for slow workers and for one "
           "another; "
           "overlap, or \"smart\", does not";
  }
  // One division of all: nobody comes ahead of a slow worker, so that it is never left out.
  const std::int64_t groups = workers / group_size;
  if (groups > 1) return {};
  const std::string of = "group_size " + std::to_string(group_size) + " of " +
                         std::to_string(workers) +
                         " workers is one group of all, which waits for "
                         "the slowest worker; overlap does not";
  return workers < 4 ? of : of + ", nor does " + std::to_string(workers / 2) + " or less";
}

std::unique_ptr<Engine> PragueOptions::Make() const { return std::make_unique<Prague>(*this); }

Plan Prague::plan() const {
  const auto run_ahead = static_cast<std::uint32_t>(options_.overlap_steps);
  return {.every = static_cast<std::uint32_t>(options_.section_length),
          .by = GroupPlan{
              .members = Is(Generator::kStatic) ? Membership::kSchedule : Membership::kAhead,
              .any_time = options_.overlap,
              .run_ahead = options_.overlap ? run_ahead : 0}};
}

bool Prague::Joined(Rank rank) const {
  return rank >= 0 && static_cast<std::size_t>(rank) < workers_.size() && At(rank).joined;
}

std::int32_t Prague::HostOf(Rank rank) const {
  return options_.workers_per_host > 0 ? rank / options_.workers_per_host : At(rank).host;
}

void Prague::Step(Instant now, const Event& event, GroupId* next_group, Effects* out) {
  if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    OnReady(now, *ready, next_group, out);
  } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
    OnFinished(now, *finished, next_group);
  } else if (const auto* ended = std::get_if<EndedEvent>(&event)) {
    OnEnded(*ended, next_group);
  } else if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    OnJoined(now, *joined);
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    OnLeft(now, *left, next_group);
  } else if (const auto* link = std::get_if<LinkEvent>(&event)) {
    OnLink(*link, next_group);
  } else {
    OnDeadline(next_group, out);
  }
  FormRunnable(out);
}

// ---- events ----

void Prague::OnJoined(Instant now, const JoinedEvent& event) {
  PRD_CHECK(event.rank >= 0 && !Joined(event.rank));
  const std::size_t ranks = static_cast<std::size_t>(event.rank) + 1;
  if (ranks > workers_.size()) workers_.resize(ranks);
  At(event.rank) = {.iteration = event.iteration,
                    .since = now,
                    .requests = most_requests_,
                    .host = hosts_.Add(event.host),
                    .joined = true};
  joined_.insert(std::lower_bound(joined_.begin(), joined_.end(), event.rank), event.rank);
  UpdateIdle(event.rank);
  const bool ahead = Is(Generator::kRandom) && options_.request_ahead;
  if ((ahead || Is(Generator::kStatic)) && !settles_) settles_ = now + kSettle;
}

void Prague::OnReady(Instant now, const ReadyEvent& event, GroupId* next_group, Effects* out) {
  queue_.Prefetch(event.rank);
  PRD_CHECK(Joined(event.rank));
  Worker& worker = At(event.rank);
  PRD_CHECK(!worker.waiting);
  worker.iteration = event.ready.iteration;
  worker.since = now;
  CountRequest(event.rank);
  if (worker.served > 0) {
    --worker.served;
    out->emplace_back(
        QueryAnswered{.rank = event.rank, .reason = "served by a group since its last request"});
    return DrawAhead(event.rank, "", next_group);
  }
  worker.waiting = true;
  if (Is(Generator::kRandom)) {
    // What failed is drawn again when it has ended.
    if (worker.own == kNoGroup && worker.failing == 0) DrawRandom(event.rank, "", next_group);
  } else if (Is(Generator::kSmart) && queue_.Empty(event.rank)) {
    Divide(event.rank, "", next_group);
  }
}

void Prague::OnFinished(Instant now, const FinishedEvent& event, GroupId* next_group) {
  queue_.Prefetch(event.rank);
  PRD_CHECK(Joined(event.rank) && !queue_.Empty(event.rank));
  Worker& worker = At(event.rank);
  const bool passive = queue_.Front(event.rank).Passive(event.rank);
  queue_.Done(event.rank, event.group);
  UpdateIdle(event.rank);
  if (passive) return;
  worker.own = kNoGroup;
  if (!event.ok) {
    ++worker.failing;
    failed_[event.group].push_back(event.rank);
  } else if (worker.waiting) {
    worker.waiting = false;
    worker.since = now;
    DrawAhead(event.rank, "", next_group);
  } else {
    ++worker.served;
  }
}

void Prague::OnEnded(const EndedEvent& event, GroupId* next_group) {
  const auto found = failed_.find(event.group);
  if (found == failed_.end()) return;
  const std::vector<Rank> ranks = std::move(found->second);
  failed_.erase(found);
  for (const Rank rank : ranks) --At(rank).failing;
  Redraw(ranks, "as group " + std::to_string(event.group) + " failed", next_group);
}

void Prague::OnLeft(Instant now, const LeftEvent& event, GroupId* next_group) {
  PRD_CHECK(Joined(event.rank));
  if (Is(Generator::kStatic) && !settles_) settles_ = now + kSettle;
  const std::vector<GroupQueue::Group> dropped = queue_.Leave(event.rank);
  if (At(event.rank).failing > 0) {
    for (auto& [id, ranks] : failed_) std::erase(ranks, event.rank);
    std::erase_if(failed_, [](const auto& entry) { return entry.second.empty(); });
  }
  hosts_.Remove(At(event.rank).host);
  links_.Forget(event.rank);
  At(event.rank).joined = false;
  UpdateIdle(event.rank);
  At(event.rank) = {};
  joined_.erase(std::lower_bound(joined_.begin(), joined_.end(), event.rank));
  Redraw(Release(dropped), "as rank " + std::to_string(event.rank) + " is gone", next_group);
}

std::vector<Rank> Prague::Release(const std::vector<GroupQueue::Group>& dropped) {
  std::vector<Rank> asked;
  for (const GroupQueue::Group& group : dropped) {
    for (const Rank rank : group.members) {
      if (!Joined(rank)) continue;
      UpdateIdle(rank);
      if (group.Passive(rank)) continue;
      At(rank).own = kNoGroup;
      asked.push_back(rank);
    }
  }
  return asked;
}

void Prague::OnLink(const LinkEvent& event, GroupId* next_group) {
  PRD_CHECK(Joined(event.a) && Joined(event.b));
  links_.Set(event.a, event.b, event.works);
  if (event.works) return;
  std::vector<GroupQueue::Group> dropped;
  for (std::size_t i = 0; i < queue_.Length(event.a); ++i) {
    const GroupQueue::Group& group = queue_.At(event.a, i);
    const auto& members = group.members;
    if (group.formed || std::find(members.begin(), members.end(), event.b) == members.end())
      continue;
    dropped.push_back(group);
  }
  for (const GroupQueue::Group& group : dropped) queue_.Drop(event.a, group.id);
  Redraw(Release(dropped),
         "as ranks " + std::to_string(event.a) + " and " + std::to_string(event.b) +
             " do not reach each other",
         next_group);
}

void Prague::OnDeadline(GroupId* next_group, Effects* out) {
  settles_.reset();
  if (Is(Generator::kStatic)) return SetSchedules(next_group, out);
  for (const Rank rank : joined_) DrawAhead(rank, "", next_group);
}

// ---- groups ----

void Prague::UpdateIdle(Rank rank) {
  if (!Is(Generator::kSmart)) return;
  const bool idle = At(rank).joined && queue_.Empty(rank);
  if (idle == idle_.Has(rank)) return;
  idle ? idle_.Add(rank, At(rank).requests) : idle_.Remove(rank, At(rank).requests);
}

void Prague::CountRequest(Rank rank) {
  if (!Is(Generator::kSmart)) return;
  Worker& worker = At(rank);
  if (idle_.Has(rank)) {
    idle_.Remove(rank, worker.requests);
    idle_.Add(rank, worker.requests + 1);
  }
  ++worker.requests;
  most_requests_ = std::max(most_requests_, worker.requests);
}

void Prague::DrawAhead(Rank rank, const std::string& why, GroupId* next_group) {
  const Worker& worker = At(rank);
  const bool due = worker.waiting || (options_.request_ahead && worker.served == 0);
  if (!Is(Generator::kRandom) || !due) return;
  if (worker.own == kNoGroup && worker.failing == 0) DrawRandom(rank, why, next_group);
}

void Prague::DrawRandom(Rank rank, const std::string& why, GroupId* next_group) {
  Prng random(Prng(static_cast<std::uint64_t>(options_.seed)).Next() + ++draws_);
  const auto size = static_cast<std::size_t>(options_.group_size);
  std::vector<Rank> members = links_.empty()
                                  ? RandomGroup(&random, joined_, rank, size)
                                  : RandomGroupAround(&random, joined_, rank, size, links_);
  const bool fewer = members.size() < std::min(size, joined_.size());
  for (const Rank member : members) {
    __builtin_prefetch(&At(member));
    queue_.Prefetch(member);
  }
  std::sort(members.begin(), members.end(), RingOrder());
  const GroupId id = (*next_group)++;
  At(rank).own = id;
  const bool alone = fewer && members.size() == 1;
  queue_.Draw(id, rank, std::move(members), false,
              (why.empty() ? "drawn for rank " : "drawn again for rank ") + std::to_string(rank) +
                  (why.empty() ? "" : ", ") + why +
                  (alone   ? "; reaches nobody: trains alone"
                   : fewer ? "; no others reach all of them"
                           : ""));
}

void Prague::Divide(Rank caller, const std::string& why, GroupId* next_group) {
  Prng random(Prng(static_cast<std::uint64_t>(options_.seed)).Next() + ++draws_);
  const std::int64_t requests = At(caller).requests;
  const std::vector<Rank> ranks = idle_.TakeAbove(requests - options_.slowdown_threshold);
  std::string reason = (why.empty() ? "" : "again, ") + why + (why.empty() ? "" : ": ") +
                       "division of " + std::to_string(ranks.size()) + " idle by rank " +
                       std::to_string(caller) + " (c=" + std::to_string(requests) + ")";
  if (idle_.size() > 0) {
    reason += ": " + words::Ranks(idle_.First(kShownSlow), idle_.size()) + " excluded as slow";
  }
  const auto size = static_cast<std::size_t>(options_.group_size);
  const bool one_host = std::all_of(
      ranks.begin(), ranks.end(), [&](Rank rank) { return HostOf(rank) == HostOf(ranks.front()); });
  if (!options_.inter_intra || one_host) {
    DrawDivided(caller, RandomDivision(&random, ranks, size), reason, next_group);
  } else {
    InterIntraGroups groups = InterIntraDivision(
        &random, ranks, [this](Rank rank) { return HostOf(rank); }, size);
    DrawDivided(caller, std::move(groups.heads), reason + "; inter: heads of hosts", next_group);
    DrawDivided(caller, std::move(groups.others), reason + "; inter: within a host", next_group);
    DrawDivided(caller, std::move(groups.intra), reason + "; intra: all of a host", next_group);
  }
  if (links_.empty()) return;
  if (queue_.Empty(caller)) {
    queue_.Draw((*next_group)++, caller, {caller}, true,
                reason + "; alone: reaches nobody who is idle");
  }
  for (const Rank rank : ranks) UpdateIdle(rank);
}

void Prague::DrawDivided(Rank caller, std::vector<std::vector<Rank>> groups,
                         const std::string& reason, GroupId* next_group) {
  const auto is_parted = [this](const auto& group) { return links_.Among(group).has_value(); };
  if (!links_.empty() && std::any_of(groups.begin(), groups.end(), is_parted)) {
    Part(&groups, links_);
  }
  for (std::vector<Rank>& members : groups) {
    std::sort(members.begin(), members.end(), RingOrder());
    queue_.Draw((*next_group)++, caller, std::move(members), true, reason);
  }
}

void Prague::Redraw(const std::vector<Rank>& ranks, const std::string& why, GroupId* next_group) {
  for (const Rank rank : ranks) {
    DrawAhead(rank, why, next_group);
    const bool stands = Is(Generator::kSmart) && At(rank).waiting && queue_.Empty(rank);
    if (stands) Divide(rank, why, next_group);
  }
}

GroupShare Prague::ShareOf(const GroupQueue::Group& group, Rank rank) const {
  return {.rank = rank,
          .weight = 1.0 / static_cast<double>(group.members.size()),
          .iteration = At(rank).iteration,
          .passive = group.Passive(rank)};
}

void Prague::FormRunnable(Effects* out) {
  for (GroupQueue::Group* group : queue_.TakeRunnable()) {
    GroupFormed form{.id = group->id, .members = {}, .reason = std::move(group->reason)};
    group->reason.clear();
    form.members.reserve(group->members.size());
    for (const Rank rank : group->members) {
      form.members.push_back(ShareOf(*group, rank));
      form.iteration = std::max(form.iteration, At(rank).iteration);
    }
    if (group->behind != kNoGroup)
      form.reason += "; waited behind group " + std::to_string(group->behind);
    form.conflict = group->conflict;
    out->push_back(std::move(form));
  }
}

std::vector<std::int32_t> Prague::Hosts() const {
  std::vector<std::int32_t> hosts;
  for (const Rank rank : joined_) hosts.push_back(HostOf(rank));
  return hosts;
}

void Prague::SetSchedules(GroupId* next_group, Effects* out) {
  if (joined_.empty()) return;
  ScheduleSet set{.first = *next_group, .members = joined_, .hosts = Hosts(), .reason = {}};
  std::vector<std::int32_t> distinct = set.hosts;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  set.reason = "static schedule of " + std::to_string(joined_.size()) + " workers on " +
               std::to_string(distinct.size()) + (distinct.size() == 1 ? " host" : " hosts");
  *next_group += kScheduleSpan;
  out->push_back(std::move(set));
}

std::vector<Engine::Drawn> Prague::DrawnGroups() const {
  std::vector<Drawn> drawn;
  for (const GroupQueue::Group* group : queue_.All()) {
    if (group->formed) continue;
    Drawn& one = drawn.emplace_back();
    one.id = group->id;
    one.reason = group->reason;
    for (const Rank rank : group->members) {
      one.members.push_back(ShareOf(*group, rank));
      // A request is for the first group that answers it.
      const bool next = group->shared ? queue_.Front(rank).id == group->id : rank == group->caller;
      one.pending = one.pending || (next && At(rank).waiting);
    }
  }
  return drawn;
}

// ---- state ----

void Prague::Archive(StateArchive& ar) {
  ar(workers_, hosts_, most_requests_, draws_, settles_, failed_, links_);
  queue_.Archive(ar, workers_.size());
  idle_.Archive(ar, workers_.size());
  if (ar.saving()) return;
  joined_.clear();
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].joined) joined_.push_back(static_cast<Rank>(i));
  }
  if (!Consistent()) ar.Fail();
}

bool Prague::ConsistentWorker(Rank rank) const {
  const Worker& worker = At(rank);
  if (!worker.joined) {
    return queue_.Empty(rank) && worker.own == kNoGroup && worker.failing == 0 && !worker.waiting;
  }
  if (!hosts_.Has(worker.host) || worker.iteration < 0) return false;
  if (worker.requests < 0 || worker.requests > most_requests_) return false;
  GroupId own = kNoGroup;
  for (std::size_t i = 0; i < queue_.Length(rank); ++i) {
    const GroupQueue::Group& group = queue_.At(rank, i);
    if (group.shared != Is(Generator::kSmart)) return false;
    if (group.Passive(rank) || group.shared) continue;
    if (own != kNoGroup) return false;
    own = group.id;
  }
  return own == worker.own;
}

bool Prague::Consistent() const {
  if (most_requests_ < 0 || most_requests_ > kMaxRequests) return false;
  std::map<Rank, std::uint32_t> failing;
  for (const auto& [id, ranks] : failed_) {
    if (ranks.empty()) return false;
    for (const Rank rank : ranks) {
      if (!Joined(rank) || ++failing[rank] > At(rank).failing) return false;
    }
  }
  std::size_t idle = 0;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const auto rank = static_cast<Rank>(i);
    const auto fails = failing.find(rank);
    if (At(rank).failing != (fails == failing.end() ? 0 : fails->second)) return false;
    if (!ConsistentWorker(rank)) return false;
    idle += Is(Generator::kSmart) && workers_[i].joined && queue_.Empty(rank) ? 1 : 0;
  }
  for (const auto& [requests, ranks] : idle_.by_requests()) {
    for (const Rank rank : ranks) {
      if (!Joined(rank) || !queue_.Empty(rank) || At(rank).requests != requests) return false;
    }
  }
  for (const GroupQueue::Group* group : queue_.All()) {
    for (std::size_t i = 0; i < group->members.size(); ++i) {
      if (queue_.Waits(*group, i) && !Joined(group->members[i])) return false;
    }
    if (Is(Generator::kStatic)) return false;
  }
  return idle_.size() == idle;
}

}  // namespace prd
