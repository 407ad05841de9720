#include "tests/standin/device.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace prd::testing {

struct StandInDevice::Stream {
  std::size_t number = 0;
  std::deque<Operation> operations;
  bool running = false;
  int held = 0;
};

Result<std::shared_ptr<StandInDevice>> StandInDevice::Create(Options options) {
  Result<std::unique_ptr<Arena>> arena = Arena::Create(options.memory);
  if (!arena.ok()) return arena.status();
  if (options.problems == nullptr) options.problems = std::make_shared<Problems>();
  return std::shared_ptr<StandInDevice>(
      new StandInDevice(std::move(options), std::move(arena).value()));
}

StandInDevice::StandInDevice(Options options, std::unique_ptr<Arena> arena)
    : options_(std::move(options)), arena_(std::move(arena)), prng_(options_.seed) {
  streams_.push_back(std::make_unique<Stream>());
  if (options_.threaded) thread_ = std::thread([this] { Loop(); });
}

StandInDevice::~StandInDevice() {
  stop_ = true;
  Wake();
  if (thread_.joinable()) thread_.join();
  for (Event* event : events_) delete event;
}

// ---- driving ----

void StandInDevice::Wake() {
  ++wakes_;
  wakes_.notify_all();
}

void StandInDevice::Loop() {
  while (!stop_) {
    const std::uint32_t seen = wakes_;
    if (!Turn() && !stop_) wakes_.wait(seen);
  }
}

// All but what runs at this moment.
void StandInDevice::Drop() {
  for (const auto& stream : streams_) {
    while (stream->operations.size() > (stream->running ? 1 : 0)) {
      for (const Use& use : stream->operations.back().uses) arena_->Unuse(use.data);
      stream->operations.pop_back();
    }
  }
}

// One of what may run now, as it is to be called with nothing locked.
std::function<void()> StandInDevice::Take() {
  if (!error_.ok()) Drop();
  std::vector<Stream*> able;
  for (const auto& stream : streams_) {
    if (stream->running || stream->operations.empty()) continue;
    const Operation& next = stream->operations.front();
    if (next.ready == nullptr || next.ready()) able.push_back(stream.get());
  }
  const bool task = !background_.empty() && !in_background_;
  const std::size_t choices = able.size() + (task ? 1 : 0);
  if (choices == 0) return nullptr;
  const std::size_t choice = options_.seed == 0 ? 0 : prng_.Below(choices);
  if (choice == able.size()) {
    in_background_ = true;
    return [this, run = std::move(background_.front())] {
      run();
      const std::lock_guard lock(mutex_);
      background_.pop_front();
      in_background_ = false;
    };
  }
  Stream* stream = able[choice];
  const Status failed = FailIfDue(&fail_operation_, ++operations_);
  if (!failed.ok()) return [] {};
  stream->running = true;
  return [this, stream, run = std::move(stream->operations.front().run)]() mutable {
    run();
    run = nullptr;  // with what it holds
    const std::lock_guard lock(mutex_);
    stream->running = false;
    for (const Use& use : stream->operations.front().uses) arena_->Unuse(use.data);
    stream->operations.pop_front();
  };
}

bool StandInDevice::Turn() {
  std::function<void()> run;
  {
    const std::lock_guard lock(mutex_);
    run = Take();
  }
  if (run == nullptr) return false;
  if (options_.threaded && options_.delay_us > 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(options_.delay_us));
  }
  run();
  Wake();
  return true;
}

void StandInDevice::Advance() {
  while (Turn()) {
  }
}

std::size_t StandInDevice::queued() const {
  const std::lock_guard lock(mutex_);
  std::size_t count = background_.size();
  for (const auto& stream : streams_) count += stream->operations.size();
  return count;
}

bool StandInDevice::RunUntil(const std::function<bool()>& done) {
  while (true) {
    const std::uint32_t seen = wakes_;
    if (done()) return true;
    if (options_.threaded) {
      wakes_.wait(seen);
    } else if (!Turn() && !(options_.others && options_.others())) {
      return done();
    }
  }
}

void StandInDevice::InBackground(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    background_.push_back(std::move(task));
  }
  Wake();
}

// ---- faults ----

Status StandInDevice::FailIfDue(std::optional<std::uint64_t>* due, std::uint64_t count) {
  if (!due->has_value() || count < **due) return Status::Ok();
  due->reset();
  error_ = ordered_;
  Drop();
  Wake();
  return error_;
}

void StandInDevice::FailCall(std::uint64_t k, Status status) {
  const std::lock_guard lock(mutex_);
  fail_call_ = calls_ + k;
  ordered_ = std::move(status);
}

void StandInDevice::FailOperation(std::uint64_t k, Status status) {
  const std::lock_guard lock(mutex_);
  fail_operation_ = operations_ + k;
  ordered_ = std::move(status);
}

void StandInDevice::FailMalloc(std::uint64_t k) {
  const std::lock_guard lock(mutex_);
  fail_malloc_ = mallocs_ + k;
}

std::uint64_t StandInDevice::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}
std::uint64_t StandInDevice::operations() const {
  const std::lock_guard lock(mutex_);
  return operations_;
}
std::uint64_t StandInDevice::mallocs() const {
  const std::lock_guard lock(mutex_);
  return mallocs_;
}

Status StandInDevice::Call() {
  const std::lock_guard lock(mutex_);
  ++calls_;
  PRD_RETURN_IF_ERROR(error_);
  return FailIfDue(&fail_call_, calls_);
}

Status StandInDevice::Wrong(const std::string& what) {
  problems().Add(what);
  return {Code::kInternal, "stand-in: " + what};
}

// ---- memory ----

Result<std::byte*> StandInDevice::Malloc(std::size_t bytes, bool device) {
  const std::lock_guard lock(mutex_);
  if (++mallocs_ == fail_malloc_) {
    fail_malloc_.reset();
    return Status(Code::kResourceExhausted, "stand-in: out of memory, as was ordered");
  }
  return device ? arena_->Malloc(bytes) : arena_->MallocHost(bytes);
}

void StandInDevice::Free(std::byte* data, bool device) {
  const std::lock_guard lock(mutex_);
  if (data == nullptr) return;
  if (arena_->InUse(data)) problems().Add("memory is freed that queued work uses");
  races_.Freed(data, arena_->BytesOf(data));
  if (!arena_->Free(data, device)) problems().Add("Free of what is no allocation of that kind");
}

Result<std::byte*> StandInDevice::Operand(const std::string& what, const void* data,
                                          std::size_t bytes, Place place) {
  const Arena::Kind kind = KindOf(data, bytes);
  if (kind == Arena::Kind::kNone) {
    return Wrong(what + " is not inside memory of the device, nor inside pinned memory");
  }
  if (place == Place::kDevice && kind != Arena::Kind::kDevice) {
    return Wrong(what + " is pinned memory, not the device's");
  }
  if (place == Place::kPinned && kind != Arena::Kind::kPinned) {
    return Wrong(what + " is the device's memory, not pinned memory");
  }
  const std::lock_guard lock(mutex_);
  return arena_->Resolve(data);
}

Arena::Kind StandInDevice::KindOf(const void* data, std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  return arena_->KindOf(data, bytes);
}

std::size_t StandInDevice::allocations() const {
  const std::lock_guard lock(mutex_);
  return arena_->allocations();
}

std::size_t StandInDevice::free_memory() const {
  const std::lock_guard lock(mutex_);
  return arena_->free_bytes();
}

// ---- streams and events ----

StandInDevice::Stream* StandInDevice::Find(void* stream) {
  if (stream == nullptr) return streams_.front().get();
  const auto it = std::find_if(streams_.begin() + 1, streams_.end(),
                               [stream](const auto& known) { return known.get() == stream; });
  return it == streams_.end() ? nullptr : it->get();
}

void* StandInDevice::CreateStream() {
  const std::lock_guard lock(mutex_);
  streams_.push_back(std::make_unique<Stream>());
  streams_.back()->number = streams_made_++;
  return streams_.back().get();
}

void StandInDevice::DestroyStream(void* stream) {
  Stream* found = nullptr;
  {
    const std::lock_guard lock(mutex_);
    found = stream == nullptr ? nullptr : Find(stream);
  }
  if (found == nullptr) return problems().Add("DestroyStream of what is no stream");
  const bool dry = RunUntil([&] {
    const std::lock_guard lock(mutex_);
    return !found->running && (found->operations.empty() || !error_.ok());
  });
  if (!dry) problems().Add("DestroyStream blocks for ever");
  const std::lock_guard lock(mutex_);
  std::erase_if(streams_, [found](const auto& known) { return known.get() == found; });
}

StandInDevice::Event* StandInDevice::CreateEvent() {
  const std::lock_guard lock(mutex_);
  return *events_.insert(new Event).first;
}

bool StandInDevice::Known(Event* event) const { return events_.contains(event); }

void StandInDevice::DestroyEvent(Event* event) {
  const std::lock_guard lock(mutex_);
  if (events_.erase(event) == 0) return problems().Add("DestroyEvent of what is no event");
  delete event;
}

void StandInDevice::LookForRaces(const Stream& stream, const Operation& operation) {
  const std::string race = races_.Enqueued(stream.number, operation.what, operation.uses);
  if (!race.empty()) problems().Add(race + " use the same bytes in no order");
}

Status StandInDevice::EnqueueLocked(void* stream, Operation operation) {
  Stream* found = Find(stream);
  if (found == nullptr) return Wrong(operation.what + ": there is no such stream");
  if (found->held > 0) {
    problems().Add(operation.what + " on the stream of a communicator that is busy");
  }
  for (const Use& use : operation.uses) arena_->Use(use.data);
  if (options_.find_races) LookForRaces(*found, operation);
  found->operations.push_back(std::move(operation));
  return Status::Ok();
}

Status StandInDevice::Enqueue(void* stream, Operation operation) {
  {
    const std::lock_guard lock(mutex_);
    PRD_RETURN_IF_ERROR(EnqueueLocked(stream, std::move(operation)));
  }
  Wake();
  return Status::Ok();
}

void StandInDevice::Hold(void* stream) {
  const std::lock_guard lock(mutex_);
  if (Stream* found = Find(stream)) ++found->held;
}

void StandInDevice::Unhold(void* stream) {
  const std::lock_guard lock(mutex_);
  if (Stream* found = Find(stream)) --found->held;
}

Status StandInDevice::Record(Event* event, void* stream) {
  {
    const std::lock_guard lock(mutex_);
    if (!Known(event)) return Wrong("Record of what is no event");
    auto token = std::make_shared<Token>();
    PRD_RETURN_IF_ERROR(EnqueueLocked(
        stream,
        {.what = "Record", .ready = nullptr, .run = [token] { token->done = true; }, .uses = {}}));
    token->clock = races_.Recorded(Find(stream)->number);
    event->token = std::move(token);
  }
  Wake();
  return Status::Ok();
}

Status StandInDevice::Wait(void* stream, Event* event) {
  {
    const std::lock_guard lock(mutex_);
    if (!Known(event)) return Wrong("Wait for what is no event");
    if (event->token == nullptr) return Status::Ok();
    if (Stream* found = Find(stream)) races_.Waited(found->number, event->token->clock);
    PRD_RETURN_IF_ERROR(
        EnqueueLocked(stream, {.what = "Wait",
                               .ready = [token = event->token] { return token->done.load(); },
                               .run = [] {},
                               .uses = {}}));
  }
  Wake();
  return Status::Ok();
}

Result<bool> StandInDevice::Done(Event* event) {
  const std::lock_guard lock(mutex_);
  if (!Known(event)) return Wrong("Done of what is no event");
  if (event->token == nullptr) return true;
  const bool done = event->token->done;
  if (done) races_.Seen(event->token->clock);
  return done;
}

Status StandInDevice::Synchronize(Event* event) {
  std::shared_ptr<Token> token;
  {
    const std::lock_guard lock(mutex_);
    if (!Known(event)) return Wrong("Synchronize with what is no event");
    token = event->token;
  }
  const auto failure = [this] {
    const std::lock_guard lock(mutex_);
    return error_;
  };
  if (!RunUntil([&] { return token == nullptr || token->done || !failure().ok(); })) {
    return Wrong("Synchronize blocks for ever");
  }
  if (token != nullptr && token->done) {
    const std::lock_guard lock(mutex_);
    races_.Seen(token->clock);
  }
  return failure();
}

}  // namespace prd::testing
