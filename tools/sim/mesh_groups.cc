#include "tools/sim/mesh_groups.h"

#include <algorithm>
#include <utility>

#include "engines/violation.h"
#include "tools/sim/mesh_copies.h"
#include "tools/sim/mesh_pulls.h"

namespace prd::sim::mesh {

// ---- who is in which ----

Worker* MeshGroups::MakeInitial() {
  Formed formed;
  formed.group = {.id = ++last_, .kind = GroupKind::kInitial, .iteration = 0};
  std::vector<Worker*> all;
  for (Worker& worker : world_->workers) {
    const bool busy = Has(worker) || copies_->Copying(worker) || worker.replica.applying() ||
                      pulls_->Waits(worker);
    if (worker.mesh != nullptr && !busy) all.push_back(&worker);
  }
  if (all.empty()) return nullptr;
  Worker* source = all[world_->prng.Below(all.size())];
  if (source->replica.store()->torn) return source;
  for (Worker* worker : all) {
    Join(&formed, *worker, worker == source ? 1 : 0);
    worker->started = false;
  }
  Launch(std::move(formed));
  return nullptr;
}

void MeshGroups::MakeGroup() {
  const Plan& plan = world_->setting.plan;
  std::vector<Worker*> free;
  for (Worker& worker : world_->workers) {
    const bool can =
        worker.mesh != nullptr && worker.started && !Has(worker) && !copies_->Copying(worker);
    if (can) free.push_back(&worker);
  }
  if (free.empty()) return;
  Prng& prng = world_->prng;
  for (std::size_t i = free.size(); i > 1; --i) std::swap(free[i - 1], free[prng.Below(i)]);
  free.resize(1 + prng.Below(free.size()));
  Formed formed;
  const bool rounds = TrainsInRounds(plan);
  formed.group = {.id = ++last_,
                  .kind = rounds ? GroupKind::kRound : GroupKind::kTrain,
                  .iteration = ++rounds_};
  formed.group.ring_only = prng.Below(6) == 0;
  for (Worker* worker : free) Join(&formed, *worker, DrawWeight(rounds || plan.every == 1));
  Launch(std::move(formed));
}

double MeshGroups::DrawWeight(bool nulls) {
  Prng& prng = world_->prng;
  const double weight =
      world_->setting.exact ? 0.25 * static_cast<double>(1 + prng.Below(2)) : 0.05 + prng.Unit();
  return nulls && prng.Below(4) == 0 ? 0 : weight;
}

void MeshGroups::TryAgain(GroupId id) {
  Formed& before = formed_[id];
  const bool failed = std::all_of(before.members.begin(), before.members.end(),
                                  [](const Taking& member) { return member.over && !member.ok; });
  if (!failed || before.tries == kMostTries || std::exchange(before.tried_again, true)) return;
  Formed formed;
  formed.group = {.id = ++last_,
                  .kind = GroupKind::kTrain,
                  .iteration = before.group.iteration,
                  .ring_only = world_->prng.Below(6) == 0};
  for (const Taking& each : before.members) {
    const Worker& worker = world_->workers[each.worker];
    const bool others = each.begun ? sides_[each.worker].offered_to != id : each.gave.has_value();
    if (!worker.Is(each.life) || !worker.started || Has(worker) || copies_->Copying(worker) ||
        others) {
      continue;  // or its gradients are others by now
    }
    Join(&formed, worker, DrawWeight(world_->prng.Below(2) == 0));
    formed.members.back().gave = each.gave;
    formed.members.back().was = each.was;
  }
  formed.tries = before.tries + 1;
  if (!formed.members.empty()) Launch(std::move(formed));
}

void MeshGroups::Join(Formed* formed, const Worker& worker, double weight) {
  GroupMember member = world_->MemberOf(worker);
  member.weight = weight;
  formed->group.members.push_back(member);
  formed->members.push_back({.worker = worker.number, .life = worker.life, .weight = weight});
  sides_[worker.number].group = formed->group.id;
}

void MeshGroups::Launch(Formed formed) {
  const GroupId id = formed.group.id;
  const std::size_t count = formed.members.size();
  formed_[id] = std::move(formed);
  for (std::size_t i = 0; i < count; ++i) {
    const DurationNs late = world_->DelayNs(world_->prng.Below(10) == 0 ? 2e9 : 5e6);
    world_->After(world_->last ? world_->DelayNs(5e6) : late, [this, id, i] { Begin(id, i); });
  }
}

void MeshGroups::Leave(const Worker& worker) {
  sides_[worker.number].group.reset();
  sides_[worker.number].reducing = false;
}

// ---- its members ----

void MeshGroups::Begin(GroupId id, std::size_t index) {
  Formed& formed = formed_[id];
  Taking& member = formed.members[index];
  Worker* worker = &world_->workers[member.worker];
  const MeshReplica& replica = worker->replica;
  if (member.over || !worker->Is(member.life) || replica.Failed()) return;
  const bool initial = formed.group.kind == GroupKind::kInitial;
  if (initial || InPlace()) world_->EndApply(worker);  // it calls the library after that
  const Instant now = world_->now();
  replica.Settle();
  const std::string who = WorkerName(worker->number);
  Prng& prng = world_->prng;
  if (!world_->last && prng.Below(25) == 0) {
    world_->Say(who + " does not begin group " + std::to_string(id));
    worker->mesh->CallOff(id);
    member.over = true;
    Leave(*worker);
    world_->Wake(worker);
    return;
  }
  Prepare(worker, formed, &member);
  member.begun = true;
  sides_[worker->number].reducing = true;
  laws_->Begins(*worker, formed, &member);
  world_->Say(who + " begins group " + std::to_string(id) + " of " +
              std::to_string(formed.members.size()) + ", weight " + std::to_string(member.weight) +
              (formed.group.ring_only ? ", along the ring alone" : ""));
  NoteVirtual(*worker);
  const bool in_place =
      initial && member.weight == 0 && (replica.store()->torn || prng.Below(2) == 0);
  const Reduced what = initial ? Reduced() : ReducedInTraining(world_->setting.plan);
  replica.MayFail(true);
  worker->mesh->StartReduce(now, formed.group, what, 1, in_place);
  replica.MayFail(false);
  world_->Wake(worker);
  if (!world_->last && prng.Below(25) == 0) CallOffSoon(worker, id, index);
}

void MeshGroups::Prepare(Worker* worker, const Formed& formed, Taking* member) {
  if (formed.group.kind == GroupKind::kInitial) return;
  const Plan& plan = world_->setting.plan;
  const Reduced what = ReducedInTraining(plan);
  const MeshReplica& replica = worker->replica;
  GroupId& offered_to = sides_[worker->number].offered_to;
  if (what.payload == Payload::kChange && offered_to == kNoGroup) member->gave = member->was = {};
  if (what.payload != Payload::kParameters) offered_to = formed.group.id;
  if (what.payload == Payload::kGradients) {
    if (!member->gave) replica.RefillGradients(&world_->prng);
    if (TrainsInRounds(plan) && member->weight != 0) replica.store()->Deposit();
    replica.Settle();
  }
  if (world_->setting.exact && what.landing == Landing::kParameters) {
    replica.store()->BeforeApply();
    replica.Settle();
    replica.RefillParameters(&world_->prng);
    ++replica.store()->iteration;
    world_->SetVersion(worker);
  }
}

void MeshGroups::CallOffSoon(Worker* worker, GroupId id, std::size_t index) {
  const bool give_up = world_->prng.Below(2) == 0;
  world_->After(world_->DelayNs(1e6), [this, worker, life = worker->life, id, index, give_up] {
    const Side& side = sides_[worker->number];
    if (!worker->Is(life) || !side.reducing || side.group != id) return;
    if (worker->replica.Lost()) return;  // what its rows hold then is nobody's
    if (give_up) {
      worker->mesh->GiveUpReduce("the run calls it off");
    } else {
      worker->mesh->CancelReduce();
      Taking& member = formed_[id].members[index];
      member.over = true;
      laws_->CheckUntouched(worker, formed_[id], member, "it was called off");
      Leave(*worker);
      world_->After(world_->DelayNs(1e6), [this, id] { TryAgain(id); });
    }
    world_->Wake(worker);
  });
}

void MeshGroups::NoteVirtual(const Worker& worker) {
  const Side& side = sides_[worker.number];
  const MeshReplica& replica = worker.replica;
  if (replica.applying() || !side.reducing || InPlace() || replica.Failed()) return;
  Formed& formed = formed_[*side.group];
  if (formed.group.kind == GroupKind::kInitial) return;
  for (Taking& member : formed.members) {
    if (member.worker != worker.number || member.gave) continue;
    member.gave = Values(replica.store()->parameters, SharedOf(*replica.store()));
  }
}

void MeshGroups::OnReduced(Worker* worker, GroupId id, const Status& status,
                           const std::vector<Rank>& unreachable) {
  if (worker->replica.Lost()) return;
  Formed& formed = formed_[id];
  const std::string who = WorkerName(worker->number);
  const auto at =
      std::find_if(formed.members.begin(), formed.members.end(), [&](const Taking& member) {
        return member.worker == worker->number && member.life == worker->life;
      });
  if (at == formed.members.end() || !at->begun || at->over) {
    throw Violation("once",
                    who + " ends group " + std::to_string(id) + " that it is not in, or no more");
  }
  world_->Say(who + " ends group " + std::to_string(id) + ": " + status.ToString());
  Taking& member = *at;
  member.over = true;
  member.ok = status.ok();
  Leave(*worker);
  ++world_->result.groups;
  MeshWorld::CheckHonest(*worker, status);
  laws_->CheckOutbox(*worker, formed, member);
  for (const Rank rank : unreachable) faults_->CheckAccused(*worker, rank, id);
  const Plan& plan = world_->setting.plan;
  if (!status.ok()) {
    laws_->CheckUntouched(worker, formed, member, status.ToString());
    FetchResult(worker, formed, member.weight != 0);
    const Landing landing = ReducedInTraining(plan).landing;
    const bool notes = landing == Landing::kGradients || landing == Landing::kBase;
    if (formed.group.kind == GroupKind::kTrain && notes) {
      world_->After(world_->DelayNs(1e6), [this, id] { TryAgain(id); });
    }
    return;
  }
  ++world_->result.succeeded;
  if (worker->replica.on_device()) ++world_->result.on_devices;
  laws_->CheckResult(*worker, &formed, member);
  if (formed.group.kind == GroupKind::kInitial) {
    worker->started = true;
    laws_->EmptyInbox(*worker);
  }
  world_->SetVersion(worker);
  if (TrainsInRounds(plan) && world_->prng.Below(3) != 0) TakeInbox(worker);
}

void MeshGroups::TakeInbox(Worker* worker) {
  if (worker->replica.applying() || !worker->replica.store()->TakeInbox()) return;
  worker->replica.Settle();
  laws_->EmptyInbox(*worker);
  world_->SetVersion(worker);
}

void MeshGroups::FetchResult(Worker* worker, const Formed& formed, bool contributed) {
  if (formed.group.kind != GroupKind::kRound || copies_->Copying(*worker)) return;
  const auto has =
      std::find_if(formed.members.begin(), formed.members.end(), [&](const Taking& member) {
        return member.ok && world_->workers[member.worker].Is(member.life);
      });
  if (has == formed.members.end()) return;
  copies_->FetchResult(worker, world_->workers[has->worker], formed.group.id, contributed);
}

// ---- what becomes of a worker ----

bool MeshGroups::KeepsFromApply(const Worker& worker) const {
  const Side& side = sides_[worker.number];
  return side.reducing && (InPlace() || formed_.at(*side.group).group.kind == GroupKind::kInitial);
}

void MeshGroups::ForgetChanges(const Worker& worker) {
  const Plan& plan = world_->setting.plan;
  if (!TrainsInGroups(plan) || !RowsOf(plan).base) return;
  worker.replica.store()->partly_averaged.cells.clear();
  sides_[worker.number].offered_to = kNoGroup;
}

void MeshGroups::Copied(const Worker& worker) {
  ForgetChanges(worker);
  laws_->EmptyInbox(worker);
  if (!worker.replica.newest().inbox.empty()) laws_->SetInbox(worker);
}

void MeshGroups::WatchPrompt(const Worker& worker) {
  if (!Has(worker)) return;
  const GroupId id = *sides_[worker.number].group;
  const Formed& formed = formed_[id];
  // A member that gave up in silence keeps the others waiting, whoever dies.
  const bool all =
      std::all_of(formed.members.begin(), formed.members.end(),
                  [](const Taking& each) { return each.begun && (each.ok || !each.over); });
  if (!all || (!InPlace() && formed.group.kind == GroupKind::kTrain)) return;
  world_->After(kLease / 2, [this, id, killed = worker.number] {
    for (const Taking& member : formed_[id].members) {
      const Worker& other = world_->workers[member.worker];
      if (member.over || other.life != member.life || member.worker == killed) continue;
      throw Violation("prompt", WorkerName(other.number) + " is in group " + std::to_string(id) +
                                    " half a lease after the end of " + WorkerName(killed));
    }
  });
}

void MeshGroups::Ended(const Worker& worker) {
  if (!Has(worker)) return;
  for (Taking& member : formed_[*sides_[worker.number].group].members) {
    if (member.worker == worker.number) member.over = true;
  }
  Leave(worker);
}

void MeshGroups::CheckOver(const Worker& worker) const {
  const Side& side = sides_[worker.number];
  if (!side.reducing) return;
  throw Violation(
      "hang", WorkerName(worker.number) + " is in group " + std::to_string(*side.group) + " still");
}

bool MeshGroups::LastIsOver() {
  const std::vector<Taking>& members = formed_[last_].members;
  return std::all_of(members.begin(), members.end(),
                     [](const Taking& member) { return member.over; });
}

void MeshGroups::CheckLast() {
  for (const Taking& member : formed_[last_].members) {
    if (member.ok || world_->setting.early_bytes == 0) continue;  // too little may be kept
    throw Violation("recovers", WorkerName(static_cast<std::uint32_t>(member.worker)) +
                                    " has no result of the last group, " + std::to_string(last_));
  }
}

}  // namespace prd::sim::mesh
