#include "worker/mesh/replica_store.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "worker/device/plane.h"

namespace prd {
namespace {

constexpr Weight kMinus = {-1, -1};

const std::byte* FirstOf(const Layout& layout) {
  return layout.pieces().empty() ? nullptr : layout.pieces().front().data;
}

}  // namespace

std::size_t ReplicaStore::TrainingRow(const Plan& plan) const {
  if (!TrainsInGroups(plan) || !NeedsGradients(plan)) return 0;
  const bool stays = keeps_gradients && !TrainsInRounds(plan);
  return memory->device() || stays ? gradients.bytes() : 0;
}

ReplicaStore::RowBytes ReplicaStore::TrainingBytes(const Plan& plan) const {
  const Rows rows = RowsOf(plan);
  const std::size_t row = NeedsGradients(plan) ? gradients.bytes() : parameters.bytes();
  const int moved =
      int{KeepsOutbox(plan)} + int{rows.inbox && !AveragesInBackground(plan)} + int{rows.base};
  RowBytes bytes;
  (memory->device() && !memory->rows_on_host() ? bytes.device : bytes.host) =
      static_cast<std::size_t>(moved) * row;
  std::size_t& here = memory->device() ? bytes.device : bytes.host;
  here += averaged.bytes() + (rows.initial ? row : 0);
  if (ContributesFromHost(plan)) {
    bytes.host += row;
    return bytes;
  }
  std::size_t results = TrainingRow(plan);
  // On a device, what replaces something goes by windows; of models only where all members are
  // there (OwnPart::Commits).
  const bool replaces = TrainsInGroups(plan) && results == 0;
  const bool late = DrawnAhead(plan) && !AveragesInBackground(plan);
  if (memory->device() && replaces) results = late ? row : std::min(row, DevicePlane::kWindowBytes);
  here += results;
  return bytes;
}

// What is small may still want one.
bool ReplicaStore::KeepsOutbox(const Plan& plan) const {
  const Rows rows = RowsOf(plan);
  return rows.outbox && (memory->device() || !rows.base);
}

void ReplicaStore::Prepare(const Plan& plan) {
  const Rows rows = RowsOf(plan);
  const std::size_t bytes = NeedsGradients(plan) ? gradients.bytes() : parameters.bytes();
  const std::lock_guard lock(mutex);
  AboutToChange();
  background = AveragesInBackground(plan);
  averaged.SetMixesFirst(HasNeighbours(plan) && !AppliesFirst(plan));
  Empty();
  memory->Size(&outbox, MemoryUse::kOutbox, KeepsOutbox(plan) ? bytes : 0);
  memory->Size(&inbox.row, MemoryUse::kInbox, rows.inbox && !background ? bytes : 0);
  memory->Size(&arriving, MemoryUse::kInbox, 0);
  if (!base.empty()) partly_averaged.cells.clear();  // of the parameters
  memory->Size(&base, MemoryUse::kBase, 0);
}

Status ReplicaStore::Whole() const {
  if (!torn) return Status::Ok();
  return Status(Code::kDataLoss,
                "parameters and state of this worker are partly those of a peer, because copying "
                "them did not "
                "end: load them again, as from a checkpoint, and attach anew");
}

void ReplicaStore::UseMemory(std::unique_ptr<Memory> other) {
  const std::lock_guard lock(mutex);
  Empty();
  for (Row* row : {&initial, &outbox, &inbox.row, &base, &fold.before}) *row = Row();
  outbox_written.reset();
  averaged.Forget();
  kept.Forget();
  other->UseMeter(memory->meter());
  memory = std::move(other);
}

void ReplicaStore::SetTensors(const std::vector<Tensor>& model,
                              const std::vector<Tensor>& model_gradients,
                              const std::vector<StateTensor>& state) {
  const std::lock_guard lock(mutex);
  AboutToChange();
  std::vector<Tensor> mean, others, all = model;
  for (const StateTensor& tensor : state) {
    (tensor.average ? mean : others).push_back({tensor.data, tensor.count, tensor.dtype});
  }
  const std::vector<Tensor> shadows = averaged.Set(memory.get(), mean);
  all.insert(all.end(), shadows.begin(), shadows.end());
  trained = Layout(model);
  gradients = Layout(model_gradients);
  const std::byte* const first = FirstOf(parameters);
  parameters = Layout(all);
  torn = torn && FirstOf(parameters) == first;  // others are whole
  kept.Set(others);
  all.insert(all.end(), others.begin(), others.end());
  whole = Layout(all);
  TakeAveraged();
}

void ReplicaStore::SetGradients(const std::vector<Tensor>& model_gradients) {
  const std::lock_guard lock(mutex);
  gradients = Layout(model_gradients);
}

void ReplicaStore::BeginCall(bool step) {
  partly_averaged.cells.clear();
  kept.BeginCall();
  TakeAveraged(step);
}

void ReplicaStore::EndCall() {
  GiveAveraged();
  if (!kept.CopyIsDue()) return;
  AboutToChange();
  kept.Copy(memory.get());
}

void ReplicaStore::GiveBack() {
  const std::lock_guard lock(mutex);
  if (kept.changes_outside()) AboutToChange();
  kept.lent = false;
}

void ReplicaStore::TakeAveraged(bool step_begins) {
  if (averaged.bytes() == 0) return;
  AboutToChange();
  averaged.Take(memory.get(), step_begins);
}

void ReplicaStore::GiveAveraged() {
  if (averaged.bytes() != 0 && averaged.Give(memory.get())) TakeAveraged();
}

void ReplicaStore::Empty() {
  owes = fold.there = false;
  fold.before = Row();
  inbox.rounds = 0;
  inbox.gain = 0;
}

void ReplicaStore::Deposit() {
  if (outbox.size() != gradients.bytes()) {
    memory->Size(&outbox, MemoryUse::kOutbox, gradients.bytes());
    owes = false;
  }
  const Memory::Place sum = Memory::In(outbox);
  outbox_written = owes ? memory->Combine(gradients, sum, {{sum}, {Memory::Tensors()}})
                        : memory->Combine(gradients, sum, {{Memory::Tensors()}});
  owes = true;
}

bool ReplicaStore::TakeInbox() {
  if (inbox.rounds == 0) return false;
  PRD_CHECK(inbox.row.size() == gradients.bytes());
  memory->Combine(gradients, Memory::Tensors(), {{Memory::In(inbox.row)}});
  inbox.rounds = 0;
  return true;
}

void ReplicaStore::AddToInbox(const Memory::Place& result, Iteration round, bool latest_only) {
  const bool newest = inbox.rounds == 0 || round > inbox.iteration;
  if (inbox.rounds == 0 || (latest_only && newest)) {
    memory->Size(&inbox.row, MemoryUse::kInbox, gradients.bytes());
    memory->Combine(gradients, Memory::In(inbox.row), {{result}});
  } else if (!latest_only) {
    const Memory::Place sum = Memory::In(inbox.row);
    memory->Combine(gradients, sum, {{sum}, {result}});
  }
  ++inbox.rounds;
  // A result that failed here at first may come after those of later rounds.
  if (newest) inbox.iteration = std::max(round, iteration.load());
}

std::byte* ReplicaStore::MakeRoom() {
  if (inbox.rounds == 0 && arriving.empty()) std::swap(arriving, inbox.row);
  memory->Size(&arriving, MemoryUse::kInbox, gradients.bytes());
  return arriving.data();
}

const std::byte* ReplicaStore::LandArriving(Iteration round, bool latest_only) {
  const bool newest = inbox.rounds == 0 || round > inbox.iteration;
  const bool replaces = inbox.rounds == 0 || (latest_only && newest);
  if (!replaces) {
    AddToInbox(Memory::In(arriving), round, latest_only);
    return arriving.data();
  }
  std::swap(arriving, inbox.row);
  ++inbox.rounds;
  inbox.iteration = std::max(round, iteration.load());
  return inbox.row.data();
}

std::optional<std::int64_t> ReplicaStore::AddInbox() {
  if (!background || inbox.rounds == 0) return 0;
  PRD_CHECK(inbox.row.size() == parameters.bytes());
  Unfold();
  if (fold.there) return std::nullopt;
  AboutToChange();
  memory->Combine(parameters, Memory::Tensors(), {{Memory::Tensors()}, {Memory::In(inbox.row)}});
  averaged.Written();
  iteration += std::exchange(inbox.gain, 0);
  return inbox.rounds.exchange(0);
}

std::shared_ptr<Transfer> ReplicaStore::ReadVirtual(const Memory::Place& row) const {
  const Memory::Input now = {Memory::Tensors()};
  if (inbox.rounds == 0) return memory->Combine(parameters, row, {now});
  const Memory::Input changes = {Memory::In(inbox.row)};  // first: `row` may be there
  if (!fold.there) return memory->Combine(parameters, row, {changes, now});
  if (fold.before.empty()) return memory->Combine(parameters, row, {changes});
  memory->Combine(parameters, row, {changes, {Memory::In(fold.before), kMinus}});  // as Unfold
  return memory->Combine(parameters, row, {{row}, now});
}

std::shared_ptr<Transfer> ReplicaStore::ReadShared(const Memory::Place& row) const {
  const std::optional<Memory::Place> place = SharedPlace();
  return place ? memory->Combine(parameters, row, {{*place}}) : ReadVirtual(row);
}

std::optional<Memory::Place> ReplicaStore::SharedPlace() const {
  if (!base.empty()) return Memory::In(base);
  if (background && inbox.rounds != 0) return std::nullopt;
  return Memory::Tensors();
}

void ReplicaStore::SwapBoxes() {
  std::swap(outbox, inbox.row);
  memory->Use(&outbox, MemoryUse::kOutbox);
  memory->Use(&inbox.row, MemoryUse::kInbox);
}

void ReplicaStore::TakeVirtual() {
  Unfold();
  if (inbox.rounds != 0 && !memory->device()) {
    ReadVirtual(Memory::In(inbox.row));
    owes = fold.there = fold.open = true;
    return;
  }
  if (outbox.empty() && inbox.rounds == 0) SwapBoxes();
  memory->Size(&outbox, MemoryUse::kOutbox, parameters.bytes());
  outbox_written = ReadVirtual(Memory::In(outbox));
  owes = true;
}

void ReplicaStore::TakeChange(const Memory::Place& average, Weight initial_share) {
  PRD_CHECK(owes && outbox.size() == parameters.bytes());
  const Memory::Place own = Memory::In(outbox);
  memory->Combine(parameters, own,
                  {{own, kMinus}, {average}, {Memory::In(initial), initial_share}});
}

void ReplicaStore::LandChange(Iteration gain) {
  PRD_CHECK(owes && (fold.there ? inbox.row : outbox).size() == parameters.bytes());
  owes = false;
  if (fold.there) {
    fold.open = false;
    Unfold();
    ++inbox.rounds;
  } else if (inbox.rounds++ == 0) {
    SwapBoxes();
  } else {
    const Memory::Place sum = Memory::In(inbox.row);
    memory->Combine(parameters, sum, {{sum}, {Memory::In(outbox)}});
  }
  inbox.gain += gain;
}

void ReplicaStore::Unfold() {
  if (!fold.there || fold.open) return;
  const Memory::Place row = Memory::In(inbox.row);
  const Memory::Place start = fold.before.empty() ? Memory::Tensors() : Memory::In(fold.before);
  memory->Combine(parameters, row, {{row}, {start, kMinus}});
  owes = fold.there = false;
  fold.before = Row();
}

// The parameters are about to change.
void ReplicaStore::KeepBefore() {
  Unfold();
  if (!fold.there || !fold.before.empty()) return;
  memory->Size(&fold.before, MemoryUse::kOutbox, parameters.bytes());
  memory->Combine(parameters, Memory::In(fold.before), {{Memory::Tensors()}});
}

void ReplicaStore::TakeDifference() {
  PRD_CHECK(base.size() == parameters.bytes());
  memory->Size(&outbox, MemoryUse::kOutbox, base.size());
  outbox_written = memory->Combine(parameters, Memory::In(outbox),
                                   {{Memory::Tensors()}, {Memory::In(base), kMinus}});
}

void ReplicaStore::AddToBase(const Memory::Place& mean, double share) {
  PRD_CHECK(base.size() == parameters.bytes());
  AboutToChange();
  const Memory::Place start = Memory::In(base);
  const Memory::Place to[] = {start, Memory::Tensors()};
  const Memory::Input from[] = {{start}, {mean, WeightOf(share)}};
  memory->Combine(parameters, 0, parameters.bytes(), to, from);
  averaged.Written();
}

std::shared_ptr<Transfer> ReplicaStore::TakeDelta(double share, const Memory::Place& delta) const {
  PRD_CHECK(base.size() == parameters.bytes());
  return memory->Combine(parameters, delta, {{Memory::Tensors()}, {Memory::In(base), kMinus}},
                         WeightOf(share));
}

void ReplicaStore::Mix(double own_weight, std::span<const Weighted> others) {
  std::vector<double> exact = {own_weight};
  for (const Weighted& other : others) exact.push_back(other.weight);
  const std::vector<Weight> weights = RoundWeights(exact);
  std::vector<Memory::Input> from = {{Memory::Tensors(), weights[0]}};
  for (std::size_t i = 0; i < others.size(); ++i) from.push_back({others[i].row, weights[i + 1]});
  const Memory::Place to = Memory::Tensors();
  AboutToChange();
  memory->Combine(parameters, 0, parameters.bytes(), std::span(&to, 1), from);
  averaged.Written();
}

void ReplicaStore::SetParameters(const Memory::Place& row, Weight initial_share) {
  AboutToChange();
  memory->Combine(parameters, Memory::Tensors(), {{row}, {Memory::In(initial), initial_share}});
  ReplacedParameters();
}

void ReplicaStore::ReplacedParameters() { averaged.Replaced(); }

void ReplicaStore::SetWhole(const Memory::Place& row) {
  AboutToChange();
  memory->Combine(whole, Memory::Tensors(), {{row}});
  ReplacedParameters();
}

void ReplicaStore::KeepInitial() {
  AboutToChange();
  memory->Size(&initial, MemoryUse::kInitial, parameters.bytes());
  memory->Combine(parameters, Memory::In(initial), {{Memory::Tensors()}});
}

void ReplicaStore::SetBase() {
  AboutToChange();
  partly_averaged.cells.clear();
  memory->Size(&base, MemoryUse::kBase, parameters.bytes());
  memory->Combine(parameters, Memory::In(base), {{Memory::Tensors()}});
}

}  // namespace prd
