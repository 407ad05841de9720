#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/standin/standin_comm.h"
#include "tests/standin/standin_gpu.h"

namespace prd::testing {
namespace {

using Place = StandInDevice::Place;
constexpr int kMostRanks = 4096;
constexpr std::byte kAnything{0xff};  // NaN in every dtype

// Whether the weight is a number of the dtype: has no more digits than it.
bool IsOf(DType dtype, Weight weight) {
  if (dtype != DType::kF16 && dtype != DType::kBF16) return true;
  std::uint32_t bits = 0;
  std::memcpy(&bits, &weight.single, sizeof bits);
  const std::uint32_t lost = dtype == DType::kBF16 ? 0xffffu : 0x1fffu;
  return (bits & lost) == 0;
}

}  // namespace

std::string StandInGpu::nccl_version() const {
  return options_.hub == nullptr ? "" : "0 (stand-in)";
}

Status StandInGpu::nccl() const {
  if (options_.hub != nullptr) return Status::Ok();
  return {Code::kUnavailable, "stand-in: it is made without NCCL"};
}

std::size_t StandInGpu::comms() const {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const auto& [comm, the] : comms_) count += the->aborted ? 0 : 1;
  return count;
}

void StandInGpu::FailComm(Comm comm) {
  const std::lock_guard lock(mutex_);
  for (const auto& [handle, the] : comms_) {
    if (comm == nullptr || comm == handle) {
      the->error = Status(Code::kAborted, "stand-in: a remote error that was ordered");
    }
  }
}

// ---- making and ending ----

void StandInGpu::MakeUniqueId() {
  {
    const std::lock_guard lock(background_->mutex);
    if (std::exchange(background_->making, true)) {
      device_->problems().Add("MakeUniqueId before the last one was taken");
      return;
    }
  }
  device_->InBackground([background = background_, hub = options_.hub, status = nccl()] {
    auto id = std::make_unique<Id>();
    id->status = status;
    if (status.ok()) {
      const Result<UniqueId> made = hub->MakeId();
      id->status = made.status();
      if (made.ok()) id->id = *made;
    }
    const std::lock_guard lock(background->mutex);
    background->id = std::move(id);
  });
}

std::unique_ptr<Gpu::Id> StandInGpu::TakeUniqueId() {
  const std::lock_guard lock(background_->mutex);
  if (background_->id != nullptr) background_->making = false;
  return std::move(background_->id);
}

Gpu::Comm StandInGpu::CommInit(int ranks, const UniqueId& id, int rank) {
  auto the = std::make_shared<TheComm>();
  the->ranks = ranks;
  the->rank = rank;
  the->busy_polls = options_.busy_polls;
  the->hangs = hang_init_.exchange(false);
  the->error = device_->Call();
  if (the->error.ok()) the->error = nccl();
  if (ranks < 1 || ranks > kMostRanks || rank < 0 || rank >= ranks) {
    the->error = device_->Wrong("CommInit with ranks that cannot be");
  }
  if (fail_init_.exchange(false)) {
    the->error = Status(Code::kAborted, "stand-in: a communicator's making fails, as was ordered");
  }
  if (the->error.ok() && !the->hangs) {
    const auto changed = [device = std::weak_ptr<StandInDevice>(device_)] {
      if (const auto alive = device.lock()) alive->Wake();
    };
    Result<std::unique_ptr<Hub::Member>> member =
        options_.hub->Join(device_.get(), ranks, id, rank, changed);
    the->error = member.status();
    if (member.ok()) the->member = std::move(member).value();
  }
  const std::lock_guard lock(mutex_);
  const Comm comm = reinterpret_cast<Comm>(the.get());
  comms_[comm] = std::move(the);
  return comm;
}

std::shared_ptr<StandInGpu::TheComm> StandInGpu::Find(Comm comm) const {
  const std::lock_guard lock(mutex_);
  const auto it = comms_.find(comm);
  if (it == comms_.end()) {
    device_->problems().Add("NCCL: there is no such communicator");
    return nullptr;
  }
  if (it->second->aborted) {
    device_->problems().Add("NCCL: a communicator is used after CommAbort");
    return nullptr;
  }
  return it->second;
}

Result<bool> StandInGpu::CommBusy(Comm comm) {
  PRD_RETURN_IF_ERROR(device_->Call());
  const std::shared_ptr<TheComm> the = Find(comm);
  if (the == nullptr) return Status(Code::kInternal, "stand-in: there is no such communicator");
  std::shared_ptr<Calls> handed;
  {
    const std::lock_guard lock(mutex_);
    if (!the->error.ok()) return the->error;
    if (the->hangs || !the->member->Ready()) return true;
    if (the->busy_polls > 0) {
      --the->busy_polls;
      return true;
    }
    handed = std::exchange(the->pending, nullptr);
  }
  if (handed != nullptr) {
    device_->Unhold(handed->stream);
    Put(handed);
  }
  return false;
}

void StandInGpu::CommAbort(Comm comm) {
  const std::shared_ptr<TheComm> the = Find(comm);
  if (the == nullptr) return;
  std::shared_ptr<Calls> dropped;
  {
    const std::lock_guard lock(mutex_);
    the->aborted = true;
    dropped = std::exchange(the->pending, nullptr);
  }
  if (dropped != nullptr) device_->Unhold(dropped->stream);
  {
    const std::lock_guard lock(background_->mutex);
    ++background_->aborting;
  }
  device_->InBackground([the, background = background_, device = device_.get()] {
    if (the->member != nullptr) the->member->Leave();
    the->over = true;
    {
      const std::lock_guard lock(background->mutex);
      --background->aborting;
    }
    device->Wake();
  });
}

std::size_t StandInGpu::aborting() const {
  const std::lock_guard lock(background_->mutex);
  return background_->aborting;
}

// ---- calls ----

Status StandInGpu::AllReduce(Comm comm, const std::byte* from, std::byte* to, std::size_t count,
                             DType dtype, std::optional<Weight> weight, Stream stream) {
  PRD_RETURN_IF_ERROR(device_->Call());
  const std::size_t bytes = count * DTypeSize(dtype);
  const Result<std::byte*> source =
      device_->Operand("AllReduce's input", from, bytes, Place::kDevice);
  if (!source.ok()) return source.status();
  const Result<std::byte*> target =
      device_->Operand("AllReduce's output", to, bytes, Place::kDevice);
  if (!target.ok()) return target.status();
  if (from != to && from < to + bytes && to < from + bytes) {
    return device_->Wrong("NCCL: AllReduce whose operands overlap, and are not the same");
  }
  if (weight && !IsOf(dtype, *weight)) {
    return device_->Wrong("NCCL: AllReduce with a weight that is no number of its dtype");
  }
  return Ask(comm,
             {.call = {.kind = HubCall::Kind::kAllReduce,
                       .dtype = dtype,
                       .weight = weight.value_or(Weight{1, 1}),
                       .weighted = weight.has_value(),
                       .bytes = bytes,
                       .data = {}},
              .from = *source,
              .to = *target,
              .uses = {{from, bytes, false}, {to, bytes, true}}},
             stream);
}

Status StandInGpu::Send(Comm comm, const std::byte* from, std::size_t bytes, int to,
                        Stream stream) {
  PRD_RETURN_IF_ERROR(device_->Call());
  const Result<std::byte*> source = device_->Operand("Send's input", from, bytes, Place::kDevice);
  if (!source.ok()) return source.status();
  return Ask(comm,
             {.call = {.kind = HubCall::Kind::kSend, .peer = to, .bytes = bytes, .data = {}},
              .from = *source,
              .to = nullptr,
              .uses = {{from, bytes, false}}},
             stream);
}

Status StandInGpu::Receive(Comm comm, std::byte* to, std::size_t bytes, int from, Stream stream) {
  PRD_RETURN_IF_ERROR(device_->Call());
  const Result<std::byte*> target = device_->Operand("Receive's output", to, bytes, Place::kDevice);
  if (!target.ok()) return target.status();
  return Ask(comm,
             {.call = {.kind = HubCall::Kind::kReceive, .peer = from, .bytes = bytes, .data = {}},
              .from = nullptr,
              .to = *target,
              .uses = {{to, bytes, true}}},
             stream);
}

Status StandInGpu::GroupStart() {
  PRD_RETURN_IF_ERROR(device_->Call());
  const std::lock_guard lock(mutex_);
  if (std::exchange(grouping_, true)) return device_->Wrong("NCCL: GroupStart within a group");
  group_.clear();
  group_comm_ = nullptr;
  return Status::Ok();
}

Status StandInGpu::Ask(Comm comm, TheCall call, Stream stream) {
  const std::shared_ptr<TheComm> the = Find(comm);
  if (the == nullptr) return {Code::kInternal, "stand-in: there is no such communicator"};
  const bool pair = call.call.kind != HubCall::Kind::kAllReduce;
  if (pair && (call.call.peer < 0 || call.call.peer >= the->ranks || call.call.peer == the->rank)) {
    return device_->Wrong("NCCL: a send or receive with a rank that is no other member");
  }
  {
    const std::lock_guard lock(mutex_);
    if (grouping_) {
      if (!group_.empty() && (group_comm_ != comm || group_stream_ != stream)) {
        return device_->Wrong("NCCL: a group of two communicators or streams");
      }
      group_comm_ = comm;
      group_stream_ = stream;
      group_.push_back(std::move(call));
      return Status::Ok();
    }
  }
  std::vector<TheCall> calls;
  calls.push_back(std::move(call));
  return Issue(the, std::move(calls), stream);
}

Status StandInGpu::GroupEnd(Comm comm) {
  std::vector<TheCall> calls;
  Stream stream = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(grouping_, false)) return device_->Wrong("NCCL: GroupEnd without a group");
    if (!group_.empty() && group_comm_ != comm) {
      return device_->Wrong("NCCL: GroupEnd of another communicator");
    }
    calls = std::exchange(group_, {});
    stream = group_stream_;
  }
  PRD_RETURN_IF_ERROR(device_->Call());
  if (calls.empty()) return Status::Ok();
  const std::shared_ptr<TheComm> the = Find(comm);
  if (the == nullptr) return {Code::kInternal, "stand-in: there is no such communicator"};
  return Issue(the, std::move(calls), stream);
}

Status StandInGpu::Issue(const std::shared_ptr<TheComm>& comm, std::vector<TheCall> calls,
                         Stream stream) {
  auto one = std::make_shared<Calls>();
  one->comm = comm;
  one->calls = std::move(calls);
  one->stream = stream;
  one->hangs = hang_collectives_;
  bool later = false;
  {
    const std::lock_guard lock(mutex_);
    if (!comm->error.ok()) return comm->error;
    if (comm->hangs || comm->pending != nullptr || comm->busy_polls > 0 || !comm->member->Ready()) {
      return device_->Wrong("NCCL: a call on a communicator that is busy");
    }
    one->number = ++comm->numbers;
    if (!std::exchange(comm->used, true)) {
      comm->busy_polls = options_.busy_polls_of_first_collective;
    }
    later = comm->busy_polls > 0;
    if (later) comm->pending = one;
  }
  if (one->calls.front().call.kind == HubCall::Kind::kAllReduce && !one->hangs) {
    comm->member->Issue(one->number);
  }
  if (later) {
    device_->Hold(stream);
  } else {
    Put(one);
  }
  return Status::Ok();
}

// Two operations: it gives what it has, and it has what it gets. In between its outputs hold
// anything.
void StandInGpu::Put(const std::shared_ptr<Calls>& calls) {
  std::vector<Use> uses;
  for (const TheCall& call : calls->calls)
    uses.insert(uses.end(), call.uses.begin(), call.uses.end());
  const auto give = [calls, device = device_.get()] {
    HubCalls given;
    for (TheCall& call : calls->calls) {
      HubCall& one = given.emplace_back(call.call);
      if (call.from != nullptr) one.data.assign(call.from, call.from + one.bytes);
      const bool zeros = std::all_of(one.data.begin(), one.data.end(),
                                     [](std::byte byte) { return byte == std::byte{0}; });
      if (one.kind == HubCall::Kind::kAllReduce && one.weight.exact == 0 && !zeros) {
        device->problems().Add("NCCL: weight 0 times what is not zeros, and may be no number");
      }
    }
    for (TheCall& call : calls->calls) {
      if (call.to != nullptr) std::fill_n(call.to, call.call.bytes, kAnything);
    }
    if (!calls->hangs && !calls->comm->over) calls->comm->member->Post(calls->number, given);
  };
  const auto ready = [calls] {
    if (calls->comm->over) return true;
    if (!calls->results && !calls->hangs) {
      calls->results = calls->comm->member->Take(calls->number);
    }
    return calls->results.has_value();
  };
  const auto get = [calls] {
    for (std::size_t i = 0; i < calls->calls.size() && calls->results; ++i) {
      const std::vector<std::byte>& result = (*calls->results)[i];
      if (calls->calls[i].to != nullptr) {
        std::copy(result.begin(), result.end(), calls->calls[i].to);
      }
    }
  };
  // An error of the device is told by the next call.
  (void)device_->Enqueue(calls->stream,
                         {.what = "NCCL", .ready = nullptr, .run = give, .uses = uses});
  (void)device_->Enqueue(calls->stream,
                         {.what = "NCCL", .ready = ready, .run = get, .uses = std::move(uses)});
}

}  // namespace prd::testing
