#include "worker/mesh/shards.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "worker/memory/kernels.h"

namespace prd {
namespace {

constexpr std::size_t kUnit = 8;  // layout.h

}  // namespace

ByteRange ShardRange(std::size_t bytes, std::uint32_t shards, std::uint32_t shard) {
  PRD_CHECK(shard < shards);
  const std::size_t units = bytes / kUnit + (bytes % kUnit != 0 ? 1 : 0);
  const auto begin_of = [&](std::size_t i) {
    const std::size_t unit = i * (units / shards) + std::min(i, units % shards);
    return std::min(unit * kUnit, bytes);
  };
  const std::size_t begin = begin_of(shard);
  return {begin, begin_of(std::size_t{shard} + 1) - begin};
}

void Shards::Reset(bool lockstep) {
  lockstep_ = lockstep;
  count_ = 0;
  kept_.clear();
  delta_.reset();
}

void Shards::Cut(std::uint32_t shards) {
  if (shards == count_) return;
  Reset(lockstep_);
  count_ = shards;
}

ByteRange Shards::RangeOf(std::uint32_t shard) const {
  return ShardRange(store_->parameters.bytes(), count_, shard);
}

std::size_t Shards::StateBytes(std::uint32_t shard) const {
  return (lockstep_ ? 2 : 1) * RangeOf(shard).length;
}

Shards::Shard& Shards::At(std::uint32_t shard) {
  const auto it = kept_.find(shard);
  PRD_CHECK(it != kept_.end());
  return it->second;
}

void Shards::TakeDelta(double share) {
  delta_ = buffers_->Get(store_->parameters.bytes());  // the one before may be on its way still
  const std::lock_guard lock(store_->mutex);
  delta_->Expect(store_->TakeDelta(share, Memory::InHost(delta_->data(), delta_)));
}

void Shards::Keep(std::uint32_t shard, std::shared_ptr<Buffer> state) {
  const ByteRange range = RangeOf(shard);
  const std::size_t bytes = StateBytes(shard);
  if (state == nullptr) {
    state = buffers_->Get(bytes);
    PRD_CHECK(store_->base.size() == store_->parameters.bytes());
    const Memory::Place to = Memory::InHost(state->data(), state);
    const Memory::Input from = {Memory::In(store_->base, range.begin)};
    state->Expect(store_->memory->Combine(store_->parameters, range.begin, range.length,
                                          std::span(&to, 1), std::span(&from, 1)));
    state->Wait();
    state->Expect(nullptr);  // which was of a part of it
    std::fill(state->data() + range.length, state->data() + bytes, std::byte{0});
  }
  PRD_CHECK(state->size() == bytes);
  kept_[shard] = {.row = std::move(state), .values = {}, .state = {}};
}

// row += factor * delta, both of the shard's size.
void Shards::AddTo(std::uint32_t shard, std::byte* row, const std::byte* delta, double factor) {
  const ByteRange range = RangeOf(shard);
  const Weight weight = {factor, static_cast<float>(factor)};
  store_->parameters.ForEach(
      range.begin, range.length,
      [&](DType dtype, const std::byte*, std::size_t length, std::size_t at) {
        AddScaled(dtype, row + at, delta + at, length, weight);
      });
}

void Shards::Add(std::uint32_t shard, const Buffer* delta, double factor, bool pending) {
  PRD_CHECK(!pending || lockstep_);
  const ByteRange range = RangeOf(shard);
  const std::byte* from = nullptr;
  if (delta != nullptr) {
    PRD_CHECK(delta->size() == range.length);
    from = delta->data();
  } else {
    PRD_CHECK(delta_ != nullptr);
    delta_->Wait();
    from = delta_->data() + range.begin;
  }
  Shard& kept = At(shard);
  AddTo(shard, kept.row->data() + (pending ? range.length : 0), from, factor);
  kept.state.reset();
  if (!pending) kept.values.reset();
}

void Shards::Merge(std::uint32_t shard) {
  PRD_CHECK(lockstep_);
  Shard& kept = At(shard);
  std::byte* values = kept.row->data();
  std::byte* pending = values + RangeOf(shard).length;
  AddTo(shard, values, pending, 1);
  std::fill(pending, kept.row->data() + kept.row->size(), std::byte{0});
  kept.values.reset();
  kept.state.reset();
}

void Shards::Read(std::uint32_t shard, std::shared_ptr<const Buffer> values, bool keeps_move) {
  const ByteRange range = RangeOf(shard);
  // A device reads it later, when the shard itself may have changed.
  if (values == nullptr && store_->memory->device()) values = Values(shard).buffer;
  if (values == nullptr) values = At(shard).row;
  PRD_CHECK(values->size() >= range.length);
  const std::lock_guard lock(store_->mutex);
  PRD_CHECK(store_->base.size() == store_->parameters.bytes());
  store_->AboutToChange();
  const Memory::Place to[] = {Memory::Tensors(), Memory::In(store_->base, range.begin)};
  const Memory::Input read = {Memory::InHost(values->data(), values)};
  const auto combine = [&](std::span<const Memory::Place> into,
                           std::initializer_list<Memory::Input> from) {
    store_->memory->Combine(store_->parameters, range.begin, range.length, into, from);
  };
  if (keeps_move) {
    combine(std::span(to, 1), {{to[0]}, {to[1], {-1, -1}}, read});
    combine(std::span(to + 1, 1), {read});
  } else {
    combine(to, {read});
  }
  store_->averaged.Written();
}

Slice Shards::Delta(std::uint32_t shard) const {
  if (delta_ == nullptr) return {};
  return {delta_, RangeOf(shard)};
}

std::shared_ptr<const Buffer> Shards::Copy(const Shard& shard, std::size_t bytes) {
  const std::shared_ptr<Buffer> copy = buffers_->Get(bytes);
  std::memcpy(copy->data(), shard.row->data(), bytes);
  return copy;
}

Slice Shards::Values(std::uint32_t shard) {
  if (!Kept(shard)) return {};
  Shard& kept = At(shard);
  const std::size_t bytes = RangeOf(shard).length;
  std::shared_ptr<const Buffer> copy = kept.values.lock();
  if (copy == nullptr) copy = kept.state.lock();  // begins with the values
  if (copy == nullptr) copy = Copy(kept, bytes);
  kept.values = copy;
  return {std::move(copy), {0, bytes}};
}

Slice Shards::State(std::uint32_t shard) {
  if (!Kept(shard)) return {};
  Shard& kept = At(shard);
  const std::size_t bytes = StateBytes(shard);
  std::shared_ptr<const Buffer> copy = kept.state.lock();
  if (copy == nullptr && !lockstep_) copy = kept.values.lock();  // they are the same
  if (copy == nullptr) copy = Copy(kept, bytes);
  kept.state = copy;
  return {std::move(copy), {0, bytes}};
}

}  // namespace prd
