// MeshRun: groups, what becomes of them, and rounds.
#include <algorithm>
#include <cmath>

#include "engines/violation.h"
#include "tools/sim/mesh_world.h"

namespace prd::sim::mesh {

// ---- groups ----

void MeshRun::MakeInitial() {
  Formed formed;
  formed.group = {.id = ++last_group_, .kind = GroupKind::kInitial, .iteration = 0};
  std::vector<Worker*> all;
  for (Worker& worker : workers_) {
    if (worker.mesh == nullptr || worker.reserved || worker.copying || worker.applying) continue;
    if (!worker.pulls.empty()) continue;
    all.push_back(&worker);
  }
  if (all.empty()) return;
  const std::size_t source = prng_.Below(all.size());
  if (all[source]->store->torn) return Kill(all[source]);  // nobody has what it wants
  for (std::size_t i = 0; i < all.size(); ++i) {
    Join(&formed, all[i], i == source ? 1 : 0);
    all[i]->started = false;
  }
  Launch(std::move(formed));
}

void MeshRun::MakeGroup() {
  std::vector<Worker*> free;
  for (Worker& worker : workers_) {
    const bool can =
        worker.mesh != nullptr && worker.started && !worker.reserved && !worker.copying;
    if (can) free.push_back(&worker);
  }
  if (free.empty()) return;
  for (std::size_t i = free.size(); i > 1; --i) std::swap(free[i - 1], free[prng_.Below(i)]);
  free.resize(1 + prng_.Below(free.size()));
  Formed formed;
  const bool rounds = TrainsInRounds(setting_.plan);
  formed.group = {.id = ++last_group_,
                  .kind = rounds ? GroupKind::kRound : GroupKind::kTrain,
                  .iteration = ++rounds_};
  formed.group.ring_only = prng_.Below(6) == 0;
  const bool nulls = rounds || setting_.plan.every == 1;
  for (Worker* worker : free) Join(&formed, worker, DrawWeight(nulls));
  Launch(std::move(formed));
}

double MeshRun::DrawWeight(bool nulls) {
  const double weight =
      setting_.exact ? 0.25 * static_cast<double>(1 + prng_.Below(2)) : 0.05 + prng_.Unit();
  return nulls && prng_.Below(4) == 0 ? 0 : weight;
}

void MeshRun::TryAgain(GroupId id) {
  Formed& before = FormedOf(id);
  const bool failed = std::all_of(before.members.begin(), before.members.end(),
                                  [](const Taking& member) { return member.over && !member.ok; });
  if (!failed || before.tries == kMostTries || std::exchange(before.tried_again, true)) return;
  Formed formed;
  formed.group = {.id = ++last_group_,
                  .kind = GroupKind::kTrain,
                  .iteration = before.group.iteration,
                  .ring_only = prng_.Below(6) == 0};
  for (const Taking& each : before.members) {
    Worker* worker = &workers_[each.worker];
    if (worker->life != each.life || worker->mesh == nullptr || !worker->started ||
        worker->reserved || worker->copying ||
        (each.begun ? worker->offered_to != id : each.gave.has_value())) {
      continue;  // or its gradients are others by now
    }
    Join(&formed, worker, DrawWeight(prng_.Below(2) == 0));
    formed.members.back().gave = each.gave;
    formed.members.back().was = each.was;
  }
  formed.tries = before.tries + 1;
  if (!formed.members.empty()) Launch(std::move(formed));
}

void MeshRun::Join(Formed* formed, Worker* worker, double weight) {
  GroupMember member = MemberOf(*worker);
  member.weight = weight;
  formed->group.members.push_back(member);
  formed->members.push_back({.worker = worker->number, .life = worker->life, .weight = weight});
  worker->reserved = formed->group.id;
}

void MeshRun::Launch(Formed formed) {
  const GroupId id = formed.group.id;
  const std::size_t count = formed.members.size();
  formed_[id] = std::move(formed);
  for (std::size_t i = 0; i < count; ++i) {
    const DurationNs late = DelayNs(prng_.Below(10) == 0 ? 2e9 : 5e6);
    After(last_ ? DelayNs(5e6) : late, [this, id, i] { Begin(id, i); });
  }
}

void MeshRun::Begin(GroupId id, std::size_t index) {
  Formed& formed = FormedOf(id);
  Taking& member = formed.members[index];
  Worker* worker = &workers_[member.worker];
  if (member.over || worker->life != member.life || worker->mesh == nullptr || Failed(*worker)) {
    return;
  }
  if (worker->applying && formed.group.kind == GroupKind::kInitial) EndApply(worker);
  if (worker->applying && InPlace()) EndApply(worker);  // it calls the library after that
  const Instant now = network_.now();
  Settle(*worker);
  if (!last_ && prng_.Below(25) == 0) {
    Say(Name(worker->number) + " does not begin group " + std::to_string(id));
    worker->mesh->CallOff(id);
    member.over = true;
    worker->reserved.reset();
    Wake(worker);
    return;
  }
  const bool initial = formed.group.kind == GroupKind::kInitial;
  ReplicaStore& store = *worker->store;
  const Reduced what = initial ? Reduced() : ReducedInTraining(setting_.plan);
  if (what.payload == Payload::kChange && worker->offered_to == kNoGroup) {
    member.gave = member.was = {};
  }
  if (what.payload != Payload::kParameters) worker->offered_to = id;
  if (!initial && what.payload == Payload::kGradients) {
    if (!member.gave) Refill(&worker->gradients);
    if (TrainsInRounds(setting_.plan) && member.weight != 0) store.Deposit();
    Settle(*worker);
  }
  if (!initial && setting_.exact && what.landing == Landing::kParameters) {
    store.BeforeApply();
    Settle(*worker);
    Refill(&worker->parameters);
    ++store.iteration;
    SetVersion(worker);
  }
  member.begun = true;
  worker->reducing = true;
  const Layout& layout = ShapeOf(*worker, formed.group.kind);
  member.before = LandingOf(*worker, formed.group.kind);
  member.landed = !initial && Landed(store, formed.group.iteration);
  if (what.payload == Payload::kParameters && what.landing != Landing::kInbox) {
    member.gave = Values(layout, Read(layout));
  } else if (what.payload == Payload::kChange) {
    member.holds = Values(layout, Read(layout));
    if (!member.was) member.was = member.holds;
    if (!member.gave) member.gave = Values(layout, ChangeOf(store));
  } else if (what.landing == Landing::kGradients) {
    member.holds = Values(layout, Read(layout));
    if (!member.gave) member.gave = member.was = member.holds;
  } else if (TrainsInRounds(setting_.plan)) {
    member.gave = member.weight != 0 ? Values(layout, CopyOf(store.outbox))
                                     : std::vector<double>(Values(layout, Read(layout)).size());
  }
  Say(Name(worker->number) + " begins group " + std::to_string(id) + " of " +
      std::to_string(formed.members.size()) + ", weight " + std::to_string(member.weight) +
      (formed.group.ring_only ? ", along the ring alone" : ""));
  NoteVirtual(worker);
  const bool in_place = initial && member.weight == 0 && (store.torn || prng_.Below(2) == 0);
  MayFail(*worker, true);
  worker->mesh->StartReduce(now, formed.group, what, 1, in_place);
  MayFail(*worker, false);
  Wake(worker);
  if (!last_ && prng_.Below(25) == 0) {
    const std::uint64_t life = worker->life;
    const bool give_up = prng_.Below(2) == 0;
    After(DelayNs(1e6), [this, worker, life, id, index, give_up] {
      if (worker->life != life || worker->mesh == nullptr || !worker->reducing ||
          worker->reserved != id) {
        return;
      }
      if (give_up) {
        worker->mesh->GiveUpReduce("the run calls it off");
      } else {
        worker->mesh->CancelReduce();
        Taking& taking = FormedOf(id).members[index];
        taking.over = true;
        CheckUntouched(worker, FormedOf(id), taking, "it was called off");
        worker->reducing = false;
        worker->reserved.reset();
        After(DelayNs(1e6), [this, id] { TryAgain(id); });
      }
      Wake(worker);
    });
  }
}

const Layout& MeshRun::ShapeOf(const Worker& worker, GroupKind kind) const {
  const ReplicaStore& store = *worker.store;
  if (kind == GroupKind::kInitial) return *store.BeginsWith();
  return NeedsGradients(setting_.plan) ? store.gradients : store.parameters;
}

Bytes MeshRun::LandingOf(const Worker& worker, GroupKind kind) const {
  const ReplicaStore& store = *worker.store;
  Settle(worker);
  if (kind == GroupKind::kInitial) return Read(*store.BeginsWith());
  switch (ReducedInTraining(setting_.plan).landing) {
    case Landing::kParameters:
      return Read(store.parameters);
    case Landing::kGradients:
      return Read(store.gradients);
    case Landing::kBase:
      return CopyOf(store.base);
    case Landing::kInbox:
      return store.inbox_rounds == 0 ? Bytes() : CopyOf(store.inbox);
  }
  return {};
}

void MeshRun::NoteVirtual(Worker* worker) {
  if (worker->applying || !worker->reducing || !AveragesInBackground(setting_.plan)) return;
  if (Failed(*worker)) return;
  Formed& formed = FormedOf(*worker->reserved);
  if (formed.group.kind == GroupKind::kInitial) return;
  for (Taking& member : formed.members) {
    if (member.worker != worker->number || member.gave) continue;
    member.gave = Values(worker->store->parameters, SharedOf(*worker->store));
  }
}

void MeshRun::EndMember(Worker* worker) {
  if (!worker->reserved) return;
  for (Taking& member : FormedOf(*worker->reserved).members) {
    if (member.worker == worker->number) member.over = true;
  }
}

void MeshRun::OnReduced(Worker* worker, GroupId id, const Status& status,
                        const std::vector<Rank>& unreachable) {
  if (Lost(*worker)) return;
  Formed& formed = FormedOf(id);
  const auto at =
      std::find_if(formed.members.begin(), formed.members.end(), [&](const Taking& member) {
        return member.worker == worker->number && member.life == worker->life;
      });
  if (at == formed.members.end() || !at->begun || at->over) {
    throw Violation("once", Name(worker->number) + " ends group " + std::to_string(id) +
                                " that it is not in, or no more");
  }
  Say(Name(worker->number) + " ends group " + std::to_string(id) + ": " + status.ToString());
  Taking& member = *at;
  member.over = true;
  member.ok = status.ok();
  worker->reducing = false;
  worker->reserved.reset();
  ++result_.groups;
  CheckHonest(worker, status);
  CheckOutbox(worker, formed, member);
  for (const Rank rank : unreachable) CheckAccused(worker, static_cast<std::size_t>(rank), id);
  if (!status.ok()) {
    CheckUntouched(worker, formed, member, status.ToString());
    FetchResult(worker, &formed, member.weight != 0);
    if (formed.group.kind == GroupKind::kTrain && NotesWhatLands()) {
      After(DelayNs(1e6), [this, id] { TryAgain(id); });
    }
    return;
  }
  ++result_.succeeded;
  if (worker->device != nullptr) ++result_.on_devices;
  CheckResult(worker, &formed, &member);
  if (formed.group.kind == GroupKind::kInitial) {
    worker->started = true;
    worker->inbox.clear();
  }
  SetVersion(worker);
  if (TrainsInRounds(setting_.plan) && prng_.Below(3) != 0) TakeInbox(worker);
}

std::vector<Part> MeshRun::PartsOf(const Formed& formed) {
  std::vector<Part> parts;
  for (const Taking& member : formed.members) {
    parts.push_back({member.weight, member.gave ? &*member.gave : nullptr,
                     member.was ? &*member.was : nullptr, member.holds ? &*member.holds : nullptr,
                     member.landed});
  }
  return parts;
}

void MeshRun::HoldToEarlier(const Formed& formed, const std::vector<double>& values,
                            const std::vector<double>& before, std::vector<double>* sum) {
  const std::optional<std::size_t> wrong = mesh::HoldToEarlier(
      PartsOf(formed), formed.group.ring_only, values, before, sum, &result_.held);
  if (!wrong) return;
  throw Violation("one-average", "element " + std::to_string(*wrong) + " of group " +
                                     std::to_string(formed.group.id) +
                                     " is not what a member had of it");
}

bool MeshRun::NotesWhatLands() const {
  const Landing landing = ReducedInTraining(setting_.plan).landing;
  return landing == Landing::kGradients || landing == Landing::kBase;
}

// A group that failed has changed nothing. Where averages land in place, it may have replaced some
// elements by what its result is to make of them.
void MeshRun::CheckUntouched(Worker* worker, const Formed& formed, const Taking& member,
                             const std::string& why) {
  const bool initial = formed.group.kind == GroupKind::kInitial;
  if (AveragesInBackground(setting_.plan) && !initial) return;
  Bytes after = LandingOf(*worker, formed.group.kind);
  const Reduced what = ReducedInTraining(setting_.plan);
  const bool changes = !initial && what.landing == Landing::kBase && after == member.before;
  if (!changes && after == member.before) return;
  const Layout& layout = ShapeOf(*worker, formed.group.kind);
  if (changes) after = Read(layout);
  if (changes && Values(layout, after) == *member.holds) return;
  const bool lands = initial ? worker->store->torn
                             : changes || what == Reduced() || what.landing == Landing::kGradients;
  const bool whole = std::all_of(formed.members.begin(), formed.members.end(),
                                 [](const Taking& each) { return each.weight == 0 || each.gave; });
  if (!lands || !whole) {
    throw Violation("untouched", Name(worker->number) + " is changed by group " +
                                     std::to_string(formed.group.id) + ", which failed: " + why);
  }
  auto [sum, size] = SumOf(formed);
  const std::vector<double> before = changes ? *member.holds : Values(layout, member.before);
  const std::vector<double> values = Values(layout, after);
  if (changes) AddBase(Values(layout, member.before), &sum, &size);
  sum.resize(values.size());
  size.resize(values.size());
  if (formed.result) sum = Values(layout, *formed.result);  // and then bit for bit
  if (!formed.result) HoldToEarlier(formed, values, before, &sum);
  for (std::size_t j = 0; j < values.size(); ++j) {
    if (values[j] == before[j]) sum[j] = values[j];
  }
  CheckNear("untouched", worker, layout, after, sum, size,
            static_cast<double>(formed.members.size()) + 3,
            (setting_.exact && !changes) || formed.result);
  ++result_.landed_in_part;
  if (!worker->store->torn) SetVersion(worker);
}

void MeshRun::CheckHonest(Worker* worker, const Status& status) {
  if (status.code() != Code::kDataLoss) return;
  throw Violation("honest", Name(worker->number) + " says " + status.ToString());
}

void MeshRun::CheckAccused(Worker* worker, std::size_t accused, GroupId id) {
  if (setting_.network.attacks > 0) return;
  const auto disturbed = disturbed_.find(std::minmax(worker->number, accused));
  if (disturbed != disturbed_.end() && disturbed->second >= network_.now()) return;
  throw Violation("accused", Name(worker->number) + " says of group " + std::to_string(id) +
                                 " that " + Name(accused) +
                                 " is out of reach, and nothing is wrong with it");
}

Due MeshRun::SumOf(const Formed& formed) const {
  for (const Taking& member : formed.members) {
    if (member.weight == 0 || member.gave) continue;
    throw Violation("contributed", "group " + std::to_string(formed.group.id) + " succeeds, and " +
                                       Name(member.worker) + " has not begun it");
  }
  return mesh::SumOf(PartsOf(formed));
}

void MeshRun::CheckResult(Worker* worker, Formed* formed, Taking* member) {
  const GroupKind kind = formed->group.kind;
  const Layout& layout = ShapeOf(*worker, kind);
  auto [sum, size] = SumOf(*formed);
  const Bytes after = LandingOf(*worker, kind);
  if (sum.empty()) sum.resize(Values(layout, Read(layout)).size());
  size.resize(sum.size());
  const Landing landing =
      kind == GroupKind::kInitial ? Landing::kParameters : ReducedInTraining(setting_.plan).landing;
  const double steps = static_cast<double>(formed->members.size()) + 3;
  if (landing == Landing::kParameters || landing == Landing::kGradients) {
    if (landing == Landing::kGradients) HoldToEarlier(*formed, Values(layout, after), {}, &sum);
    CheckNear("result", worker, layout, after, sum, size, steps, setting_.exact);
    if (formed->result && *formed->result != after) {
      throw Violation("result", Name(worker->number) + " has other bits of group " +
                                    std::to_string(formed->group.id) + " than others");
    }
    formed->result = after;
  } else if (landing == Landing::kBase) {
    AddBase(Values(layout, member->before), &sum, &size);
    HoldToEarlier(*formed, Values(layout, after), {}, &sum);
    CheckNear("result", worker, layout, after, sum, size, steps, false);
    if (after != Read(worker->store->parameters)) {
      throw Violation("result", Name(worker->number) + "'s parameters are not its base");
    }
  } else {
    CheckInbox(worker, *formed, *member, sum, size, after, steps);
  }
  Hash(after);
}

// What is to become of the base, of which the sum is that of the changes.
void MeshRun::AddBase(const std::vector<double>& base, std::vector<double>* sum,
                      std::vector<double>* size) const {
  for (std::size_t j = 0; j < sum->size(); ++j) {
    (*size)[j] = (*size)[j] * 2 + 20 + std::abs(base[j]);
    (*sum)[j] = base[j] + OuterRate(setting_.plan) * (*sum)[j];
  }
}

void MeshRun::CheckInbox(Worker* worker, const Formed& formed, const Taking& member,
                         const std::vector<double>& sum, const std::vector<double>& size,
                         const Bytes& after, double steps) {
  const Layout& layout = ShapeOf(*worker, formed.group.kind);
  worker->inbox.resize(sum.size());
  worker->inbox_size.resize(sum.size());
  if (member.before.empty() || worker->inbox.empty()) {
    std::fill(worker->inbox.begin(), worker->inbox.end(), 0.0);
    std::fill(worker->inbox_size.begin(), worker->inbox_size.end(), 0.0);
  }
  const bool background = AveragesInBackground(setting_.plan);
  for (std::size_t j = 0; j < sum.size(); ++j) {
    const double gave = background ? member.gave->at(j) : 0;
    worker->inbox[j] += sum[j] - gave;
    worker->inbox_size[j] += size[j] + std::abs(gave);
  }
  if (worker->applying) return;  // the inbox may be on its way into the parameters
  const bool one = worker->store->inbox_rounds == 1;
  CheckNear("result", worker, layout, after, worker->inbox, worker->inbox_size, 4 * steps,
            setting_.exact && !background && one);
}

void MeshRun::CheckNear(const char* law, Worker* worker, const Layout& layout, const Bytes& row,
                        const std::vector<double>& sum, const std::vector<double>& size,
                        double steps, bool exact) const {
  const std::vector<double> values = Values(layout, row);
  const std::vector<double> epsilons = Epsilons(layout);
  for (std::size_t j = 0; j < values.size(); ++j) {
    const double off = std::abs(values[j] - sum[j]);
    if (exact ? off == 0 : off <= steps * epsilons[j] * (size[j] + 1e-4)) continue;
    throw Violation(law, Name(worker->number) + "'s element " + std::to_string(j) + " of " +
                             std::to_string(values.size()) + " is " + std::to_string(values[j]) +
                             " where " + std::to_string(sum[j]) + " is due");
  }
}

// ---- rounds ----

void MeshRun::SetInbox(Worker* worker) {
  worker->inbox = Values(worker->store->gradients, CopyOf(worker->store->inbox));
  worker->inbox_size.assign(worker->inbox.size(), 100);
}

void MeshRun::TakeInbox(Worker* worker) {
  if (worker->applying || !worker->store->TakeInbox()) return;
  Settle(*worker);
  worker->inbox.clear();
  SetVersion(worker);
}

void MeshRun::CheckOutbox(Worker* worker, const Formed& formed, const Taking& member) const {
  if (formed.group.kind != GroupKind::kRound || member.weight == 0) return;
  const ReplicaStore& store = *worker->store;
  const bool kept = store.owes && Values(store.gradients, CopyOf(store.outbox)) == *member.gave;
  if (member.ok ? !store.owes : kept) return;
  throw Violation("untouched", Name(worker->number) + "'s outbox is not as round " +
                                   std::to_string(formed.group.id) + " leaves it");
}

void MeshRun::FetchResult(Worker* worker, Formed* formed, bool contributed) {
  if (formed->group.kind != GroupKind::kRound || worker->copying) return;
  const auto has =
      std::find_if(formed->members.begin(), formed->members.end(), [&](const Taking& member) {
        const Worker& other = workers_[member.worker];
        return member.ok && other.life == member.life && other.mesh != nullptr;
      });
  if (has == formed->members.end()) return;
  ++result_.copies;
  worker->copying = {.source = has->worker,
                     .life = has->life,
                     .since = network_.now(),
                     .result = formed->group.id};
  const std::uint64_t life = worker->life;
  const Copying copying = *worker->copying;
  After(0, [this, worker, life, copying, contributed] {
    if (worker->mesh == nullptr || worker->life != life) return;
    const Worker& source = workers_[copying.source];
    if (source.mesh == nullptr || source.life != copying.life) {
      worker->copying.reset();
      return;
    }
    worker->mesh->StartFetch(network_.now(), MemberOf(source), copying.result, contributed);
    Wake(worker);
  });
}

void MeshRun::OnResultFetched(Worker* worker, const Copying& copying, const Status& status) {
  if (!status.ok()) return;
  ++result_.copied;
  const Formed& formed = FormedOf(copying.result);
  auto [sum, size] = SumOf(formed);
  const Layout& layout = worker->store->gradients;
  if (sum.empty()) sum.resize(Values(layout, Read(layout)).size());
  size.resize(sum.size());
  const bool empty = worker->inbox.empty();
  worker->inbox.resize(sum.size());
  worker->inbox_size.resize(sum.size());
  if (empty) std::fill(worker->inbox_size.begin(), worker->inbox_size.end(), 0.0);
  for (std::size_t j = 0; j < sum.size(); ++j) {
    worker->inbox[j] += sum[j];
    worker->inbox_size[j] += size[j];
  }
  CheckNear("torn", worker, layout, CopyOf(worker->store->inbox), worker->inbox, worker->inbox_size,
            4.0 * static_cast<double>(formed.members.size() + 3),
            setting_.exact && worker->store->inbox_rounds == 1);
  SetVersion(worker);
}

}  // namespace prd::sim::mesh
