#include "tools/sim/group_book.h"

#include <algorithm>
#include <cmath>

#include "engines/violation.h"
#include "tools/sim/names.h"
#include "tools/sim/world.h"

namespace prd::sim {
namespace {

using mesh::CopyOf;
using mesh::InboxOf;
using mesh::Read;
using mesh::Values;

const Layout& ShapeOf(const Group& group, const Reduced& what, const ReplicaStore& store) {
  if (group.kind == GroupKind::kInitial) return *store.BeginsWith();
  return what.payload == Payload::kGradients ? store.gradients : store.parameters;
}

bool InBackground(const Reduced& what) {
  return what == Reduced{Payload::kParameters, Landing::kInbox};
}

// Where results go that do not come to the inbox.
mesh::Bytes LandingOf(const Group& group, const Reduced& what, const ReplicaStore& store) {
  if (what.landing == Landing::kBase) return CopyOf(store.base);
  return Read(ShapeOf(group, what, store));
}

std::vector<double> Plus(std::vector<double> sum, double factor, const std::vector<double>& part) {
  for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += factor * part.at(j);
  return sum;
}

// What is to become of the base, of which the sum is that of the changes.
void AddBase(const std::vector<double>& base, double rate, mesh::Due* due) {
  due->sum = Plus(base, rate, due->sum);
  for (std::size_t j = 0; j < base.size(); ++j) due->size[j] += std::abs(base[j]);
}

}  // namespace

GroupBook::Formed* GroupBook::Find(RunId run, const StartReduce& start, const Plan& plan) {
  const std::pair key(run, start.group.id);
  const auto [begin, end] = formed_.equal_range(key);
  for (auto it = begin; it != end; ++it) {
    const Group& known = it->second.group;
    const bool same = known.kind == start.group.kind && known.members == start.group.members;
    if (same && it->second.what == start.what) return &it->second;
  }
  const std::size_t members = start.group.members.size();
  const auto added = formed_.insert({key,
                                     {.group = start.group,
                                      .what = start.what,
                                      .plan = plan,
                                      .members = std::vector<Member>(members),
                                      .result = {}}});
  return &added->second;
}

// What it gives is as it is before its mesh knows of the group; a virtual replica, when its mesh
// takes that.
void GroupBook::Begins(std::uint32_t worker, RunId run, const StartReduce& start, const Plan& plan,
                       const ReplicaStore& store) {
  Side& side = sides_[worker];
  Formed* formed = Find(run, start, plan);
  side.formed = formed;
  for (std::size_t i = 0; i < formed->members.size(); ++i) {
    if (WorkerOf(formed->group.members[i].incarnation) == worker) side.position = i;
  }
  Member& member = formed->members[side.position];
  member = {};
  const Group& group = formed->group;
  const bool weighs = group.members[side.position].weight != 0;
  const Layout& shape = ShapeOf(group, start.what, store);
  const Numbers now = Values(shape, Read(shape));
  if (start.what.landing != Landing::kInbox) {
    const Layout& where = start.what.landing == Landing::kBase ? store.parameters : shape;
    member.before = Values(where, LandingOf(group, start.what, store));
  }
  const bool base = start.what.landing == Landing::kBase;
  if (base || start.what.landing == Landing::kGradients) {
    member.holds = now;
    member.landed = mesh::Landed(store, group.iteration);
    const bool fresh = base && !member.landed;  // it may have copied another's replica
    if (fresh || !side.offered || side.offered_for != group.iteration) side.offered = now;
    side.offered_for = group.iteration;
    member.was = side.offered;
    member.gave = base ? Plus(*side.offered, -1, member.before) : *side.offered;
  } else if (start.what.payload == Payload::kGradients) {
    member.gave = weighs ? Values(shape, CopyOf(store.outbox)) : Numbers(now.size());
  } else if (!InBackground(start.what)) {
    member.gave = now;
  }
  GoesOn(worker, store);
}

void GroupBook::Copies(std::uint32_t worker, RunId run, const StartFetch& fetch) {
  sides_[worker].copies.reset();
  if (fetch.result != kNoGroup) sides_[worker].copies.emplace(run, fetch);
}

void GroupBook::GoesOn(std::uint32_t worker, const ReplicaStore& store) {
  Side& side = sides_[worker];
  const bool inbox = side.formed != nullptr && side.formed->what.landing == Landing::kInbox;
  if ((!inbox && !side.copies) || store.fold.open) return;
  const Layout& shape = store.background ? store.parameters : store.gradients;
  side.inbox.clear();
  if (store.inbox.rounds != 0) side.inbox = Values(shape, InboxOf(store));
  side.inbox_round = store.inbox.iteration;
  if (side.formed == nullptr || !InBackground(side.formed->what)) return;
  Member& member = side.formed->members[side.position];
  if (member.gave) return;
  const Numbers now = Values(shape, Read(shape));
  member.gave = side.inbox.empty() ? now : Plus(now, 1, side.inbox);
}

void GroupBook::Ends(std::uint32_t worker, bool ok, const ReplicaStore& store) {
  Side& side = sides_[worker];
  Formed* formed = side.formed;
  if (formed == nullptr) return;
  side.formed = nullptr;
  const Group& group = formed->group;
  const bool inbox = formed->what.landing == Landing::kInbox;
  const bool gave = group.members[side.position].weight != 0;
  if (inbox && !store.background && gave && store.owes == ok) {
    throw Violation("untouched", WorkerName(worker) + " owes " + (ok ? "still" : "no more") +
                                     " what it gave to " + GroupName(group.id));
  }
  if (!ok) return CheckUntouched(worker, *formed, side.position, store);
  if (!Known(*formed)) {
    throw Violation("contributed",
                    GroupName(group.id) + " succeeds before all its members have begun it");
  }
  ++results_;
  if (inbox) {
    const Numbers* own = store.background ? &*formed->members[side.position].gave : nullptr;
    CheckInbox(worker, *formed, DueOf(*formed, store), own, store);
  } else {
    CheckLanded(worker, formed, side.position, store);
  }
  ++formed->through;
  // Others may copy the result of a round later.
  if (formed->through < formed->members.size() || group.kind == GroupKind::kRound) return;
  std::erase_if(formed_, [formed](const auto& each) { return &each.second == formed; });
}

void GroupBook::Copied(std::uint32_t worker, bool ok, const ReplicaStore& store) {
  Side& side = sides_[worker];
  const auto copies = std::exchange(side.copies, std::nullopt);
  if (!copies || !ok) return;
  const auto& [run, fetch] = *copies;
  if (fetch.contributed && store.owes) {
    throw Violation("untouched",
                    WorkerName(worker) + " owes still what it gave to " + GroupName(fetch.result));
  }
  const auto [begin, end] = formed_.equal_range({run, fetch.result});
  if (begin == end || std::next(begin) != end || !Known(begin->second)) return;
  ++results_;
  CheckInbox(worker, begin->second, DueOf(begin->second, store), nullptr, store);
}

void GroupBook::Cancelled(std::uint32_t worker, const ReplicaStore& store) {
  Side& side = sides_[worker];
  Formed* formed = std::exchange(side.formed, nullptr);
  if (formed == nullptr || formed->what.landing == Landing::kInbox) return;
  CheckUntouched(worker, *formed, side.position, store);
}

std::vector<mesh::Part> GroupBook::PartsOf(const Formed& formed) {
  std::vector<mesh::Part> parts;
  for (std::size_t i = 0; i < formed.members.size(); ++i) {
    const Member& member = formed.members[i];
    parts.push_back({formed.group.members[i].weight, member.gave ? &*member.gave : nullptr,
                     member.was ? &*member.was : nullptr, member.holds ? &*member.holds : nullptr,
                     member.landed});
  }
  return parts;
}

bool GroupBook::Known(const Formed& formed) {
  const std::vector<mesh::Part> parts = PartsOf(formed);
  return std::all_of(parts.begin(), parts.end(), [](const mesh::Part& part) {
    return part.weight == 0 || part.gave != nullptr;
  });
}

mesh::Due GroupBook::DueOf(const Formed& formed, const ReplicaStore& store) const {
  mesh::Due due = mesh::SumOf(PartsOf(formed));
  const Layout& shape = ShapeOf(formed.group, formed.what, store);
  due.sum.resize(shape.bytes() / sizeof(double));
  due.size.resize(due.sum.size());
  const double share = formed.group.initial_weight;
  if (share == 0) return due;
  const Numbers initial = Values(shape, CopyOf(store.initial));
  due.sum = Plus(due.sum, share, initial);
  for (std::size_t j = 0; j < initial.size(); ++j) due.size[j] += std::abs(initial[j]);
  return due;
}

void GroupBook::CheckLanded(std::uint32_t worker, Formed* formed, std::size_t position,
                            const ReplicaStore& store) {
  const mesh::Bytes after = LandingOf(formed->group, formed->what, store);
  const bool base = formed->what.landing == Landing::kBase;
  const Layout& shape = ShapeOf(formed->group, formed->what, store);
  const Numbers values = Values(shape, after);
  mesh::Due due = DueOf(*formed, store);
  if (base) {
    AddBase(formed->members[position].before, OuterRate(formed->plan), &due);
    if (after != Read(store.parameters)) {
      throw Violation("result", WorkerName(worker) + "'s parameters are not its base after " +
                                    GroupName(formed->group.id));
    }
  }
  CheckEarlier(worker, *formed, values, {}, &due.sum);
  CheckNear("result", worker, *formed, values, due);
  if (base) return;  // each adds to its own
  if (formed->result && *formed->result != after) {
    throw Violation("result", WorkerName(worker) + " has other bits of " +
                                  GroupName(formed->group.id) + " than others");
  }
  formed->result = after;
}

void GroupBook::CheckInbox(std::uint32_t worker, const Formed& formed, mesh::Due due,
                           const Numbers* own, const ReplicaStore& store) {
  const Side& side = sides_[worker];
  const Layout& shape = ShapeOf(formed.group, formed.what, store);
  if (own != nullptr) due.sum = Plus(due.sum, -1, *own);
  if (!side.inbox.empty() && !store.background && TakesNewestOnly(formed.plan)) {
    if (formed.group.iteration <= side.inbox_round) due.sum = side.inbox;
  } else if (!side.inbox.empty()) {
    due.sum = Plus(due.sum, 1, side.inbox);
  }
  for (std::size_t j = 0; j < due.size.size(); ++j) {
    due.size[j] += own != nullptr ? std::abs(own->at(j)) : 0;
    due.size[j] += side.inbox.empty() ? 0 : std::abs(side.inbox.at(j));
  }
  CheckNear("result", worker, formed, Values(shape, CopyOf(store.inbox.row)), due);
}

void GroupBook::CheckUntouched(std::uint32_t worker, const Formed& formed, std::size_t position,
                               const ReplicaStore& store) {
  const Layout& shape = ShapeOf(formed.group, formed.what, store);
  if (formed.what.landing == Landing::kInbox) {
    const Side& side = sides_[worker];
    const bool empty = store.inbox.rounds == 0;
    const Numbers inbox = empty ? Numbers() : Values(shape, InboxOf(store));
    if (inbox == side.inbox) return;
    const std::optional<Numbers>& gave = formed.members[position].gave;
    if (store.fold.there && gave) return CheckFolded(worker, formed, *gave, store);
    throw Violation("untouched", WorkerName(worker) + "'s inbox is changed by " +
                                     GroupName(formed.group.id) + ", which failed");
  }
  const Member& member = formed.members[position];
  const bool base = formed.what.landing == Landing::kBase;
  const bool stays = !base || Values(shape, CopyOf(store.base)) == member.before;
  const Numbers values = Values(shape, Read(shape));
  const Numbers& before = base ? *member.holds : member.before;
  if (stays && values == before) return;
  const bool replaces = formed.group.kind == GroupKind::kTrain || store.torn;
  const bool lands = replaces && Known(formed) && stays;
  if (!lands) {
    throw Violation("untouched", WorkerName(worker) + " is changed by " +
                                     GroupName(formed.group.id) + ", which failed");
  }
  mesh::Due due = DueOf(formed, store);
  if (base) AddBase(member.before, OuterRate(formed.plan), &due);
  CheckEarlier(worker, formed, values, before, &due.sum);
  for (std::size_t j = 0; j < values.size(); ++j) {
    if (values[j] == before[j]) due.sum[j] = values[j];
  }
  CheckNear("untouched", worker, formed, values, due);
}

// Some elements may be the result already.
void GroupBook::CheckFolded(std::uint32_t worker, const Formed& formed, const Numbers& gave,
                            const ReplicaStore& store) {
  const Numbers values = Values(store.parameters, CopyOf(store.inbox.row));
  if (values == gave) return;
  if (!Known(formed)) {
    throw Violation("untouched", WorkerName(worker) + "'s inbox is changed by " +
                                     GroupName(formed.group.id) + ", which not all have begun");
  }
  mesh::Due due = DueOf(formed, store);
  for (std::size_t j = 0; j < values.size(); ++j) {
    if (values[j] == gave[j]) due.sum[j] = values[j];
  }
  CheckNear("untouched", worker, formed, values, due);
}

void GroupBook::CheckEarlier(std::uint32_t worker, const Formed& formed, const Numbers& values,
                             const Numbers& before, Numbers* sum) {
  const std::optional<std::size_t> wrong =
      mesh::HoldToEarlier(PartsOf(formed), formed.group.ring_only, values, before, sum, &held_);
  if (!wrong) return;
  throw Violation("one-average", WorkerName(worker) + "'s element " + std::to_string(*wrong) +
                                     " of " + GroupName(formed.group.id) +
                                     " is not what a member had of it");
}

void GroupBook::CheckNear(const char* law, std::uint32_t worker, const Formed& formed,
                          const Numbers& found, const mesh::Due& due) const {
  for (std::size_t j = 0; j < found.size(); ++j) {
    if (std::abs(found[j] - due.sum.at(j)) <= 1e-12 * (due.size.at(j) + 1e-3)) continue;
    throw Violation(law, WorkerName(worker) + "'s element " + std::to_string(j) + " of " +
                             GroupName(formed.group.id) + " is " + std::to_string(found[j]) +
                             " where " + std::to_string(due.sum[j]) + " is due");
  }
}

}  // namespace prd::sim
