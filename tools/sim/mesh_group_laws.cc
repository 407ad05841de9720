#include "tools/sim/mesh_group_laws.h"

#include <algorithm>
#include <cmath>

#include "engines/violation.h"

namespace prd::sim::mesh {
namespace {

double StepsOf(const Formed& formed) { return static_cast<double>(formed.members.size()) + 3; }

std::string NameOf(const Formed& formed) { return "group " + std::to_string(formed.group.id); }

}  // namespace

const Layout& MeshGroupLaws::ShapeOf(const Worker& worker, GroupKind kind) const {
  const ReplicaStore& store = *worker.replica.store();
  if (kind == GroupKind::kInitial) return *store.BeginsWith();
  return NeedsGradients(world_->setting.plan) ? store.gradients : store.parameters;
}

Bytes MeshGroupLaws::LandingOf(const Worker& worker, GroupKind kind) const {
  const ReplicaStore& store = *worker.replica.store();
  worker.replica.Settle();
  if (kind == GroupKind::kInitial) return Read(*store.BeginsWith());
  switch (ReducedInTraining(world_->setting.plan).landing) {
    case Landing::kParameters:
      return Read(store.parameters);
    case Landing::kGradients:
      return Read(store.gradients);
    case Landing::kBase:
      return CopyOf(store.base);
    case Landing::kInbox:
      return store.inbox.rounds == 0 ? Bytes() : InboxOf(store);
  }
  return {};
}

void MeshGroupLaws::Begins(const Worker& worker, const Formed& formed, Taking* member) const {
  const Plan& plan = world_->setting.plan;
  const ReplicaStore& store = *worker.replica.store();
  const GroupKind kind = formed.group.kind;
  const bool initial = kind == GroupKind::kInitial;
  const Reduced what = initial ? Reduced() : ReducedInTraining(plan);
  const Layout& layout = ShapeOf(worker, kind);
  member->before = LandingOf(worker, kind);
  member->landed = !initial && Landed(store, formed.group.iteration);
  const std::vector<double> values = Values(layout, Read(layout));
  if (what.payload == Payload::kParameters && what.landing != Landing::kInbox) {
    member->gave = values;
  } else if (what.payload == Payload::kChange) {
    member->holds = values;
    if (!member->was) member->was = values;
    if (!member->gave) member->gave = Values(layout, ChangeOf(store));
  } else if (what.landing == Landing::kGradients) {
    member->holds = values;
    if (!member->gave) member->gave = member->was = values;
  } else if (TrainsInRounds(plan)) {
    member->gave = member->weight != 0 ? Values(layout, CopyOf(store.outbox))
                                       : std::vector<double>(values.size());
  }
}

std::vector<Part> MeshGroupLaws::PartsOf(const Formed& formed) {
  std::vector<Part> parts;
  for (const Taking& member : formed.members) {
    parts.push_back({member.weight, member.gave ? &*member.gave : nullptr,
                     member.was ? &*member.was : nullptr, member.holds ? &*member.holds : nullptr,
                     member.landed});
  }
  return parts;
}

Due MeshGroupLaws::SumOf(const Formed& formed, const Layout& layout) {
  for (const Taking& member : formed.members) {
    if (member.weight == 0 || member.gave) continue;
    throw Violation("contributed", NameOf(formed) + " succeeds, and " +
                                       WorkerName(static_cast<std::uint32_t>(member.worker)) +
                                       " has not begun it");
  }
  Due due = mesh::SumOf(PartsOf(formed));
  due.sum.resize(Epsilons(layout).size());
  due.size.resize(due.sum.size());
  return due;
}

void MeshGroupLaws::HoldToEarlier(const Formed& formed, const std::vector<double>& values,
                                  const std::vector<double>& before, Due* due) {
  const std::optional<std::size_t> wrong = mesh::HoldToEarlier(
      PartsOf(formed), formed.group.ring_only, values, before, &due->sum, &world_->result.held);
  if (!wrong) return;
  throw Violation("one-average", "element " + std::to_string(*wrong) + " of " + NameOf(formed) +
                                     " is not what a member had of it");
}

void MeshGroupLaws::AddBase(const std::vector<double>& base, Due* due) const {
  for (std::size_t j = 0; j < due->sum.size(); ++j) {
    due->size[j] = due->size[j] * 2 + 20 + std::abs(base[j]);
    due->sum[j] = base[j] + OuterRate(world_->setting.plan) * due->sum[j];
  }
}

void MeshGroupLaws::CheckUntouched(Worker* worker, const Formed& formed, const Taking& member,
                                   const std::string& why) {
  const Setting& setting = world_->setting;
  const bool initial = formed.group.kind == GroupKind::kInitial;
  if (AveragesInBackground(setting.plan) && !initial) return CheckFolded(worker, formed, member);
  Bytes after = LandingOf(*worker, formed.group.kind);
  const Reduced what = ReducedInTraining(setting.plan);
  const bool changes = !initial && what.landing == Landing::kBase && after == member.before;
  if (!changes && after == member.before) return;
  const Layout& layout = ShapeOf(*worker, formed.group.kind);
  if (changes) after = Read(layout);
  if (changes && Values(layout, after) == *member.holds) return;
  const bool torn = worker->replica.store()->torn;
  const bool lands =
      initial ? torn : changes || what == Reduced() || what.landing == Landing::kGradients;
  const bool whole = std::all_of(formed.members.begin(), formed.members.end(),
                                 [](const Taking& each) { return each.weight == 0 || each.gave; });
  const std::string who = WorkerName(worker->number);
  if (!lands || !whole) {
    throw Violation("untouched",
                    who + " is changed by " + NameOf(formed) + ", which failed: " + why);
  }
  Due due = SumOf(formed, layout);
  const std::vector<double> before = changes ? *member.holds : Values(layout, member.before);
  const std::vector<double> values = Values(layout, after);
  if (changes) AddBase(Values(layout, member.before), &due);
  if (formed.result) {  // and then bit for bit
    due.sum = Values(layout, *formed.result);
  } else {
    HoldToEarlier(formed, values, before, &due);
  }
  for (std::size_t j = 0; j < values.size(); ++j) {
    if (values[j] == before[j]) due.sum[j] = values[j];
  }
  CheckNear("untouched", who, layout, after, due, StepsOf(formed),
            (setting.exact && !changes) || formed.result);
  ++world_->result.landed_in_part;
  if (!torn) world_->SetVersion(worker);
}

// Some elements of an inbox that was folded may be the result already.
void MeshGroupLaws::CheckFolded(Worker* worker, const Formed& formed, const Taking& member) {
  const ReplicaStore& store = *worker->replica.store();
  if (!store.fold.there || !member.gave) return;
  const Layout& layout = store.parameters;
  const std::vector<double> row = Values(layout, CopyOf(store.inbox.row));
  if (row != *member.gave) {
    Due due = SumOf(formed, layout);
    for (std::size_t j = 0; j < row.size(); ++j) {
      if (row[j] == member.gave->at(j)) due.sum[j] = row[j];
    }
    CheckNear("untouched", WorkerName(worker->number), layout, CopyOf(store.inbox.row), due,
              StepsOf(formed));
    ++world_->result.landed_in_part;
  }
  SetInbox(*worker);
  world_->SetVersion(worker);
}

void MeshGroupLaws::CheckResult(const Worker& worker, Formed* formed, const Taking& member) {
  const GroupKind kind = formed->group.kind;
  const Layout& layout = ShapeOf(worker, kind);
  const std::string who = WorkerName(worker.number);
  Due due = SumOf(*formed, layout);
  const Bytes after = LandingOf(worker, kind);
  const Landing landing = kind == GroupKind::kInitial
                              ? Landing::kParameters
                              : ReducedInTraining(world_->setting.plan).landing;
  const double steps = StepsOf(*formed);
  if (landing == Landing::kParameters || landing == Landing::kGradients) {
    if (landing == Landing::kGradients) HoldToEarlier(*formed, Values(layout, after), {}, &due);
    CheckNear("result", who, layout, after, due, steps, world_->setting.exact);
    if (formed->result && *formed->result != after) {
      throw Violation("result", who + " has other bits of " + NameOf(*formed) + " than others");
    }
    formed->result = after;
  } else if (landing == Landing::kBase) {
    AddBase(Values(layout, member.before), &due);
    HoldToEarlier(*formed, Values(layout, after), {}, &due);
    CheckNear("result", who, layout, after, due, steps);
    if (after != Read(worker.replica.store()->parameters)) {
      throw Violation("result", who + "'s parameters are not its base");
    }
  } else {
    CheckInbox(worker, *formed, member, due, after, steps);
  }
  world_->Hash(after);
}

void MeshGroupLaws::CheckInbox(const Worker& worker, const Formed& formed, const Taking& member,
                               const Due& due, const Bytes& after, double steps) {
  Due& inbox = inboxes_[worker.number];
  inbox.sum.resize(due.sum.size());
  inbox.size.resize(due.sum.size());
  if (member.before.empty()) {
    std::fill(inbox.sum.begin(), inbox.sum.end(), 0.0);
    std::fill(inbox.size.begin(), inbox.size.end(), 0.0);
  }
  const bool background = AveragesInBackground(world_->setting.plan);
  for (std::size_t j = 0; j < due.sum.size(); ++j) {
    const double gave = background ? member.gave->at(j) : 0;
    inbox.sum[j] += due.sum[j] - gave;
    inbox.size[j] += due.size[j] + std::abs(gave);
  }
  if (worker.replica.applying()) return;  // the inbox may be on its way into the parameters
  const bool one = worker.replica.store()->inbox.rounds == 1;
  CheckNear("result", WorkerName(worker.number), ShapeOf(worker, formed.group.kind), after, inbox,
            4 * steps, world_->setting.exact && !background && one);
}

void MeshGroupLaws::SetInbox(const Worker& worker) {
  const ReplicaStore& store = *worker.replica.store();
  Due& inbox = inboxes_[worker.number];
  inbox.sum = Values(store.background ? store.parameters : store.gradients, InboxOf(store));
  inbox.size.assign(inbox.sum.size(), 100);
}

void MeshGroupLaws::CheckOutbox(const Worker& worker, const Formed& formed,
                                const Taking& member) const {
  if (formed.group.kind != GroupKind::kRound || member.weight == 0) return;
  const ReplicaStore& store = *worker.replica.store();
  const bool kept = store.owes && Values(store.gradients, CopyOf(store.outbox)) == *member.gave;
  if (member.ok ? !store.owes : kept) return;
  throw Violation("untouched", WorkerName(worker.number) + "'s outbox is not as round " +
                                   std::to_string(formed.group.id) + " leaves it");
}

void MeshGroupLaws::CheckFetched(Worker* worker, const Formed& formed) {
  const ReplicaStore& store = *worker->replica.store();
  const Due due = SumOf(formed, store.gradients);
  Due& inbox = inboxes_[worker->number];
  if (inbox.sum.empty()) inbox.size.clear();
  inbox.sum.resize(due.sum.size());
  inbox.size.resize(due.sum.size());
  for (std::size_t j = 0; j < due.sum.size(); ++j) {
    inbox.sum[j] += due.sum[j];
    inbox.size[j] += due.size[j];
  }
  CheckNear("torn", WorkerName(worker->number), store.gradients, CopyOf(store.inbox.row), inbox,
            4.0 * StepsOf(formed), world_->setting.exact && store.inbox.rounds == 1);
  world_->SetVersion(worker);
}

}  // namespace prd::sim::mesh
