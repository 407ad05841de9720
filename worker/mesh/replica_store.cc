#include "worker/mesh/replica_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "worker/mesh/kernels.h"

namespace prd {
namespace {

// Of rows that several operations go over: as much as stays in the cache meanwhile.
constexpr std::size_t kBlockBytes = 32 << 10;

// Calls f(offset, length) for the blocks of a row.
template <typename F>
void ForEachBlock(std::size_t bytes, F&& f) {
  for (std::size_t at = 0; at < bytes; at += kBlockBytes) f(at, std::min(kBlockBytes, bytes - at));
}

// acc += share * row, both rows of `layout`.
void AddRow(const Layout& layout, std::byte* acc, const std::byte* row, double share) {
  const Weight weight = {share, static_cast<float>(share)};
  layout.ForEach(0, layout.bytes(),
                 [&](DType dtype, const std::byte*, std::size_t length, std::size_t at) {
                   AddScaled(dtype, acc + at, row + at, length, weight);
                 });
}

// Of exactly this size, its memory given back if that is 0.
void Size(std::vector<std::byte>* row, std::size_t bytes) {
  if (row->size() != bytes) std::vector<std::byte>(bytes).swap(*row);
}

}  // namespace

void ReplicaStore::Prepare(const Plan& plan) {
  const bool eager = plan.strategy == Strategy::kEagerGradients;
  const bool local = plan.strategy == Strategy::kLocalSteps;
  const std::lock_guard lock(mutex);
  background = plan.strategy == Strategy::kAverageModels && plan.background;
  const std::size_t both = eager ? gradients.bytes() : background ? parameters.bytes() : 0;
  Empty();
  Size(&outbox, local ? parameters.bytes() : both);
  Size(&inbox, both);
  Size(&base, 0);
}

void ReplicaStore::Empty() {
  owes = false;
  inbox_rounds = 0;
  inbox_gain = 0;
}

void ReplicaStore::Deposit() {
  if (outbox.size() != gradients.bytes()) {
    outbox.resize(gradients.bytes());
    owes = false;
  }
  if (owes) {
    const Weight one = {1, 1};
    gradients.ForEach(0, outbox.size(),
                      [&](DType dtype, const std::byte* data, std::size_t length, std::size_t at) {
                        AddScaled(dtype, outbox.data() + at, data, length, one);
                      });
  } else {
    gradients.Read(0, outbox.size(), outbox.data());
  }
  owes = true;
}

bool ReplicaStore::TakeInbox() {
  if (inbox_rounds == 0) return false;
  PRD_CHECK(inbox.size() == gradients.bytes());
  gradients.Write(0, inbox.size(), inbox.data());
  inbox_rounds = 0;
  return true;
}

void ReplicaStore::AddToInbox(const std::byte* result, Iteration round, bool latest_only) {
  const bool newest = inbox_rounds == 0 || round > inbox_iteration;
  if (inbox_rounds == 0 || (latest_only && newest)) {
    Size(&inbox, gradients.bytes());
    std::copy_n(result, inbox.size(), inbox.data());
  } else if (!latest_only) {
    AddRow(gradients, inbox.data(), result, 1);
  }
  ++inbox_rounds;
  // A result that failed here at first may come after those of later rounds.
  if (newest) inbox_iteration = std::max(round, iteration.load());
}

std::int64_t ReplicaStore::AddInbox() {
  if (!background || inbox_rounds == 0) return 0;
  PRD_CHECK(inbox.size() == parameters.bytes());
  const Weight one = {1, 1};
  parameters.ForEach(0, inbox.size(),
                     [&](DType dtype, std::byte* data, std::size_t length, std::size_t at) {
                       AddScaled(dtype, data, inbox.data() + at, length, one);
                     });
  iteration += std::exchange(inbox_gain, 0);
  return std::exchange(inbox_rounds, 0);
}

void ReplicaStore::ReadVirtual(std::byte* row) const {
  parameters.Read(0, parameters.bytes(), row);
  if (inbox_rounds != 0) AddRow(parameters, row, inbox.data(), 1);
}

void ReplicaStore::TakeVirtual() {
  Size(&outbox, parameters.bytes());
  ReadVirtual(outbox.data());
  owes = true;
}

void ReplicaStore::AddDifference(const std::byte* average, Iteration gain) {
  PRD_CHECK(owes && outbox.size() == parameters.bytes());
  AddRow(parameters, outbox.data(), average, -1);
  owes = false;
  Size(&inbox, outbox.size());
  if (inbox_rounds++ == 0) std::fill(inbox.begin(), inbox.end(), std::byte{0});
  AddRow(parameters, inbox.data(), outbox.data(), -1);
  inbox_gain += gain;
}

void ReplicaStore::TakeDifference() {
  PRD_CHECK(base.size() == parameters.bytes());
  Size(&outbox, base.size());
  parameters.Read(0, outbox.size(), outbox.data());
  AddRow(parameters, outbox.data(), base.data(), -1);
}

void ReplicaStore::AddToBase(const std::byte* mean, double share) {
  PRD_CHECK(base.size() == parameters.bytes());
  AddRow(parameters, base.data(), mean, share);
  parameters.Write(0, base.size(), base.data());
}

void ReplicaStore::TakeDelta(double share, std::byte* delta) const {
  PRD_CHECK(base.size() == parameters.bytes());
  // Nothing is nothing, whatever the parameters are (not a number times 0 is not).
  if (share == 0) return static_cast<void>(std::memset(delta, 0, base.size()));
  const Weight factor = {share, static_cast<float>(share)};
  ForEachBlock(base.size(), [&](std::size_t offset, std::size_t length) {
    parameters.ForEach(offset, length,
                       [&](DType dtype, const std::byte* data, std::size_t run, std::size_t at) {
                         std::byte* to = delta + offset + at;
                         std::memcpy(to, data, run);
                         AddScaled(dtype, to, base.data() + offset + at, run, {-1, -1});
                         Scale(dtype, to, to, run, factor);
                       });
  });
}

void ReplicaStore::Mix(double own_weight, std::span<const Weighted> others) {
  std::vector<double> exact = {own_weight};
  for (const Weighted& other : others) exact.push_back(other.weight);
  const std::vector<Weight> weights = RoundWeights(exact);
  ForEachBlock(parameters.bytes(), [&](std::size_t offset, std::size_t length) {
    parameters.ForEach(offset, length,
                       [&](DType dtype, std::byte* data, std::size_t run, std::size_t at) {
                         Scale(dtype, data, data, run, weights[0]);
                         for (std::size_t i = 0; i < others.size(); ++i) {
                           AddScaled(dtype, data, others[i].row + offset + at, run, weights[i + 1]);
                         }
                       });
  });
}

void ReplicaStore::SetBase() {
  Size(&base, parameters.bytes());
  parameters.Read(0, base.size(), base.data());
}

}  // namespace prd
