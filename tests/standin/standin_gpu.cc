// The CUDA half; standin_nccl.cc is the other, standin_launch.cc the kernels.
#include "tests/standin/standin_gpu.h"

#include <unistd.h>

#include <cstring>
#include <utility>

#include "tests/standin/standin_comm.h"

namespace prd::testing {
namespace {

StandInDevice::Event* Of(Gpu::Event event) {
  return reinterpret_cast<StandInDevice::Event*>(event);
}

using Place = StandInDevice::Place;

}  // namespace

Result<std::shared_ptr<StandInGpu>> StandInGpu::Create(StandInOptions options) {
  if (options.on == nullptr) {
    Result<std::shared_ptr<StandInDevice>> device = StandInDevice::Create(options.make);
    if (!device.ok()) return device.status();
    options.on = *device;
  }
  return std::make_shared<StandInGpu>(std::move(options));
}

StandInGpu::StandInGpu(StandInOptions options)
    : options_(std::move(options)),
      device_(options_.on),
      background_(std::make_shared<Background>()) {}

StandInGpu::~StandInGpu() {
  if (comms() != 0) device_->problems().Add("a communicator was never aborted");
  if (handles() != 0) device_->problems().Add("a stream or an event was never destroyed");
}

std::vector<std::byte> StandInGpu::Read(const void* data, std::size_t bytes) const {
  std::vector<std::byte> read(bytes);
  const Result<std::byte*> from = device_->Operand("Read", data, bytes, Place::kEither);
  if (from.ok() && bytes != 0) std::memcpy(read.data(), *from, bytes);
  return read;
}

void StandInGpu::Write(void* data, const void* from, std::size_t bytes) {
  const Result<std::byte*> to = device_->Operand("Write", data, bytes, Place::kEither);
  if (to.ok() && bytes != 0) std::memcpy(*to, from, bytes);
}

std::size_t StandInGpu::handles() const {
  const std::lock_guard lock(mutex_);
  return streams_.size() + events_.size();
}

std::string StandInGpu::name() const {
  return "stand-in for a GPU (cuda:" + std::to_string(options_.device) + ")";
}

Status StandInGpu::CheckPointer(const void* data) const {
  const Arena::Kind kind = device_->KindOf(data, 1);
  if (kind == Arena::Kind::kDevice) return Status::Ok();
  return {Code::kInvalidArgument,
          kind == Arena::Kind::kPinned ? "found pinned host memory" : "found host memory"};
}

// ---- memory ----

Result<std::byte*> StandInGpu::Malloc(std::size_t bytes) {
  PRD_RETURN_IF_ERROR(device_->Call());
  return device_->Malloc(bytes, true);
}

Result<std::byte*> StandInGpu::MallocHost(std::size_t bytes) {
  PRD_RETURN_IF_ERROR(device_->Call());
  return device_->Malloc(bytes, false);
}

Result<std::size_t> StandInGpu::FreeMemory() {
  PRD_RETURN_IF_ERROR(device_->Call());
  return device_->free_memory();
}

Status StandInGpu::Copy(void* to, const void* from, std::size_t bytes, Stream stream) {
  PRD_RETURN_IF_ERROR(device_->Call());
  const Result<std::byte*> target = device_->Operand("Copy's target", to, bytes, Place::kEither);
  if (!target.ok()) return target.status();
  const Result<std::byte*> source = device_->Operand("Copy's source", from, bytes, Place::kEither);
  if (!source.ok()) return source.status();
  if (*target < *source + bytes && *source < *target + bytes && bytes != 0) {
    return device_->Wrong("Copy's target and source overlap");
  }
  return device_->Enqueue(stream, {.what = "Copy",
                                   .ready = nullptr,
                                   .run = [target = *target, source = *source,
                                           bytes] { std::memcpy(target, source, bytes); },
                                   .uses = {{to, bytes, true}, {from, bytes, false}}});
}

Status StandInGpu::Zero(std::byte* data, std::size_t bytes, Stream stream) {
  PRD_RETURN_IF_ERROR(device_->Call());
  const Result<std::byte*> target = device_->Operand("Zero", data, bytes, Place::kDevice);
  if (!target.ok()) return target.status();
  return device_->Enqueue(stream,
                          {.what = "Zero",
                           .ready = nullptr,
                           .run = [target = *target, bytes] { std::memset(target, 0, bytes); },
                           .uses = {{data, bytes, true}}});
}

// ---- streams and events ----

Result<Gpu::Stream> StandInGpu::CreateStream() {
  PRD_RETURN_IF_ERROR(device_->Call());
  const Stream stream = device_->CreateStream();
  const std::lock_guard lock(mutex_);
  streams_.insert(stream);
  return stream;
}

void StandInGpu::DestroyStream(Stream stream) {
  device_->DestroyStream(stream);
  const std::lock_guard lock(mutex_);
  streams_.erase(stream);
}

Result<Gpu::Event> StandInGpu::CreateEvent() {
  PRD_RETURN_IF_ERROR(device_->Call());
  const Event event = reinterpret_cast<Event>(device_->CreateEvent());
  const std::lock_guard lock(mutex_);
  events_.insert(event);
  return event;
}

void StandInGpu::DestroyEvent(Event event) {
  device_->DestroyEvent(Of(event));
  const std::lock_guard lock(mutex_);
  events_.erase(event);
}

Status StandInGpu::Record(Event event, Stream stream) {
  PRD_RETURN_IF_ERROR(device_->Call());
  return device_->Record(Of(event), stream);
}

Status StandInGpu::Wait(Stream stream, Event event) {
  PRD_RETURN_IF_ERROR(device_->Call());
  return device_->Wait(stream, Of(event));
}

Result<bool> StandInGpu::Done(Event event) {
  PRD_RETURN_IF_ERROR(device_->Call());
  return device_->Done(Of(event));
}

Status StandInGpu::Synchronize(Event event) {
  PRD_RETURN_IF_ERROR(device_->Call());
  return device_->Synchronize(Of(event));
}

Status StandInGpu::Notify(Stream stream, int eventfd) {
  PRD_RETURN_IF_ERROR(device_->Call());
  return device_->Enqueue(stream, {.what = "Notify",
                                   .ready = nullptr,
                                   .run =
                                       [device = device_.get(), eventfd] {
                                         const std::uint64_t one = 1;
                                         if (write(eventfd, &one, sizeof one) != sizeof one) {
                                           device->problems().Add("Notify: no eventfd");
                                         }
                                       },
                                   .uses = {}});
}

Status StandInGpu::Decide(const std::uint32_t* flag, std::uint32_t* word, std::uint32_t* said,
                          Stream stream) {
  PRD_RETURN_IF_ERROR(device_->Call());
  const Result<std::byte*> from =
      device_->Operand("Decide's flag", flag, sizeof *flag, Place::kPinned);
  if (!from.ok()) return from.status();
  const Result<std::byte*> to =
      device_->Operand("Decide's word", word, sizeof *word, Place::kDevice);
  if (!to.ok()) return to.status();
  const Result<std::byte*> tells =
      device_->Operand("Decide's answer", said, sizeof *said, Place::kPinned);
  if (!tells.ok()) return tells.status();
  return device_->Enqueue(
      stream,
      {.what = "Decide",
       .ready = nullptr,
       .run =
           [from = *from, to = *to, tells = *tells] {
             const std::uint32_t value =
                 __atomic_load_n(reinterpret_cast<const std::uint32_t*>(from), __ATOMIC_SEQ_CST);
             std::memcpy(to, &value, sizeof value);
             __atomic_store_n(reinterpret_cast<std::uint32_t*>(tells), value + 1, __ATOMIC_SEQ_CST);
           },
       .uses = {
           {flag, sizeof *flag, false}, {word, sizeof *word, true}, {said, sizeof *said, true}}});
}

}  // namespace prd::testing
