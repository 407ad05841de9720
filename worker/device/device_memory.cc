#include "worker/device/device_memory.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "worker/device/marks.h"

namespace prd {
namespace {

constexpr std::size_t kTables = 8;
// Small rows that are kept for the next one of their size. Larger ones are freed once the device is
// done with them, and nobody waits for that here (gpu.h, Malloc and Free;
// worker/cuda/device_pool.h).
constexpr std::size_t kSpares = 4;
constexpr std::size_t kLargestSpare = 16 << 20;
constexpr Weight kOne = {1, 1};

bool Same(const std::vector<Layout::Piece>& a, const std::vector<Layout::Piece>& b) {
  return std::equal(
      a.begin(), a.end(), b.begin(), b.end(), [](const Layout::Piece& x, const Layout::Piece& y) {
        return x.begin == y.begin && x.end == y.end && x.data == y.data && x.dtype == y.dtype;
      });
}

}  // namespace

class DeviceMemory::Core : public std::enable_shared_from_this<Core> {
 public:
  using Owners = std::vector<std::shared_ptr<const void>>;
  struct Copied {  // a piece that is on its way to host memory
    Mark mark;
    std::size_t end = 0;  // bytes from the front that are there then
  };
  // What is asked for, but for what does not count.
  struct Job {
    const Gpu::Table* table = nullptr;
    std::size_t offset = 0;
    std::size_t length = 0;
    std::span<const Place> to;
    std::vector<Input> from;  // of weight other than 0
    Weight factor;
    const Place* host_to = nullptr;
    std::size_t hosts = 0;  // host inputs
    std::deque<Copied> copied;
  };

  Core(std::shared_ptr<Gpu> device, int wake, std::size_t piece_bytes)
      : gpu(std::move(device)),
        marks_(std::make_shared<Marks>(gpu)),
        wake_(wake),
        piece_bytes_(piece_bytes) {}

  Status Open() {
    for (Gpu::Stream* stream : {&main, &in_, &out_, &bell_}) {
      const Result<Gpu::Stream> created = gpu->CreateStream();
      if (!created.ok()) return created.status();
      *stream = *created;
    }
    return Status::Ok();
  }
  void Close();

  bool Note(const Status& status);
  bool failed() const { return failed_; }
  Status failure() const {
    const std::lock_guard lock(failure_mutex_);
    return failure_;
  }

  Row Allocate(MemoryUse use, std::size_t bytes, bool host);
  void Free(std::byte* data, std::size_t bytes, bool host);
  std::shared_ptr<Transfer> Combine(const Layout& layout, Job job);
  const Gpu::Table* TableOf(const Layout& layout);
  void Sweep();

  // `later` has what is on `earlier` before it.
  Status Order(Gpu::Stream earlier, Gpu::Stream later) {
    const Result<Mark> mark = marks_->Record(earlier);
    if (!mark.ok()) return mark.status();
    return gpu->Wait(later, mark->get());
  }
  Result<Mark> RecordCaller() {
    const std::lock_guard lock(mutex);
    return marks_->Record(caller);
  }

  const std::shared_ptr<Gpu> gpu;
  Gpu::Stream main = nullptr;
  std::mutex mutex;  // of all that follows, and of who asks for something
  Gpu::Stream caller = nullptr;

 private:
  enum Side { kMain, kIn, kOut, kSides };
  struct Slot {
    std::byte* data = nullptr;
    Mark mark;  // its bytes are not needed any more
  };
  struct Kept {
    Mark mark;  // null: until the end
    Owners owners;
  };
  struct Spare {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    bool host = false;
    Mark mark;  // null: nobody knows when it is free
  };
  struct Outgoing {  // host memory that is being written
    const std::byte* begin = nullptr;
    std::size_t bytes = 0;
    Mark mark;
  };
  struct Known {
    std::vector<Layout::Piece> pieces;
    std::shared_ptr<Gpu::Table> table;
  };

  Status MakeSlots();
  Status Pieces(Job* job);
  Status Piece(Job* job, std::size_t at, std::size_t bytes);
  Status CopyIn(const Job& job, std::size_t begin, std::size_t end, std::size_t at,
                std::size_t bytes, Slot* slot);
  Status CopyOut(Job* job, std::size_t at, std::size_t bytes, Slot* slot);
  Status AwaitOutgoing(const Job& job);
  void Keep(const Job& job, bool ok);
  void KeepUntil(Side side, const Mark& mark, Owners owners);
  bool Done(const Mark& mark);
  void TakeUnused(std::vector<Owners>* owners, std::vector<Spare>* spares);
  void Release(const Spare& spare) {
    spare.host ? gpu->FreeHost(spare.data) : gpu->Free(spare.data);
  }

  const std::shared_ptr<Marks> marks_;
  const int wake_;
  const std::size_t piece_bytes_;
  Gpu::Stream in_ = nullptr;
  Gpu::Stream out_ = nullptr;
  Gpu::Stream bell_ = nullptr;  // so that no copy waits until somebody has been told of one
  bool closed_ = false;
  std::byte* slots_ = nullptr;
  std::array<Slot, kPieces> in_slots_, out_slots_;
  std::size_t next_in_ = 0, next_out_ = 0;
  std::array<std::deque<Kept>, kSides> kept_;  // by stream, in its order
  std::deque<Spare> spares_;
  std::deque<Outgoing> outgoing_;
  std::deque<Known> tables_;  // the newest first

  std::atomic<bool> failed_ = false;
  mutable std::mutex failure_mutex_;
  Status failure_;
};

// ---- what is on its way to host memory ----

class DeviceMemory::Copying : public Transfer {
 public:
  // After a failure without the pieces that were not asked for any more.
  Copying(std::shared_ptr<Core> core, std::deque<Core::Copied> pieces)
      : core_(std::move(core)), pieces_(std::move(pieces)) {}

  // Lets go of no owner: whoever asks may hold what their destructors need.
  std::size_t ready() override {
    const std::lock_guard lock(mutex_);
    while (!pieces_.empty()) {
      if (core_->failed()) break;
      const Result<bool> done = core_->gpu->Done(pieces_.front().mark.get());
      if (!core_->Note(done.status()) || !*done) break;
      ready_ = pieces_.front().end;
      pieces_.pop_front();
    }
    return ready_;
  }

  void Wait() override {
    Mark last;
    {
      const std::lock_guard lock(mutex_);
      if (!pieces_.empty()) last = pieces_.back().mark;
    }
    if (last != nullptr && !core_->failed()) core_->Note(core_->gpu->Synchronize(last.get()));
  }

 private:
  std::shared_ptr<Core> core_;
  std::mutex mutex_;
  std::deque<Core::Copied> pieces_;
  std::size_t ready_ = 0;
};

// ---- failures and the end ----

bool DeviceMemory::Core::Note(const Status& status) {
  if (status.ok()) return true;
  {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_.ok()) return false;
    failure_ = status;
    failed_ = true;
  }
  const std::uint64_t one = 1;
  if (wake_ >= 0 && write(wake_, &one, sizeof one) != sizeof one) {
    // The counter is full: whoever is told has been.
  }
  return false;
}

void DeviceMemory::Core::Close() {
  for (Gpu::Stream* stream : {&in_, &main, &out_, &bell_}) {
    if (*stream != nullptr) gpu->DestroyStream(*stream);
  }
  std::vector<Owners> owners;
  std::vector<Spare> spares;
  {
    const std::lock_guard lock(mutex);
    closed_ = true;
    for (std::deque<Kept>& side : kept_) {
      for (Kept& kept : side) owners.push_back(std::move(kept.owners));
      side.clear();
    }
    spares.assign(spares_.begin(), spares_.end());
    spares_.clear();
    outgoing_.clear();
    tables_.clear();
    in_slots_ = {};
    out_slots_ = {};
  }
  if (slots_ != nullptr) gpu->Free(slots_);
  for (const Spare& spare : spares) Release(spare);
}

// ---- rows ----

Row DeviceMemory::Core::Allocate(MemoryUse use, std::size_t bytes, bool host) {
  if (bytes == 0) return {};
  Sweep();
  const auto row = [&](std::byte* data) {
    return Row(data, bytes, [core = shared_from_this(), bytes, host](std::byte* used) {
      core->Free(used, bytes, host);
    });
  };
  {
    const std::lock_guard lock(mutex);
    const auto spare = std::find_if(spares_.begin(), spares_.end(), [&](const Spare& one) {
      return one.bytes == bytes && one.host == host && one.mark != nullptr && Done(one.mark);
    });
    if (spare != spares_.end()) {
      std::byte* data = spare->data;
      spares_.erase(spare);
      return row(data);
    }
  }
  if (!failed()) {
    const Result<std::byte*> data = host ? gpu->MallocHost(bytes) : gpu->Malloc(bytes);
    if (data.ok()) return row(*data);
    const std::string where = host ? "pinned host memory" : gpu->name();
    Note(Status(data.status().code(), where + " has no place for " + WhatFor(use, bytes) + ": " +
                                          data.status().message()));
  }
  if (!host) return Row(nullptr, bytes, [](std::byte*) {});
  return Row(new std::byte[bytes], bytes, [](std::byte* data) { delete[] data; });
}

// Called from anywhere, so it frees nothing that is in use, and lets go of no owner.
void DeviceMemory::Core::Free(std::byte* data, std::size_t bytes, bool host) {
  const std::lock_guard lock(mutex);
  if (closed_) return Release({data, bytes, host, nullptr});
  // What copies in has been waited for by what combines, and that by what copies out.
  Spare spare{data, bytes, host, nullptr};
  if (Note(Order(main, out_))) {
    Result<Mark> mark = marks_->Record(out_);
    if (Note(mark.status())) spare.mark = std::move(mark).value();
  }
  spares_.push_back(std::move(spare));
}

bool DeviceMemory::Core::Done(const Mark& mark) {
  const Result<bool> done = gpu->Done(mark.get());
  return !Note(done.status()) || *done;  // a device that has failed does nothing any more
}

void DeviceMemory::Core::TakeUnused(std::vector<Owners>* owners, std::vector<Spare>* spares) {
  for (std::deque<Kept>& side : kept_) {
    while (!side.empty() && side.front().mark != nullptr && Done(side.front().mark)) {
      owners->push_back(std::move(side.front().owners));
      side.pop_front();
    }
  }
  while (!outgoing_.empty() && Done(outgoing_.front().mark)) outgoing_.pop_front();
  const auto small = [](const Spare& spare) { return spare.bytes <= kLargestSpare; };
  std::size_t too_many =
      static_cast<std::size_t>(std::count_if(spares_.begin(), spares_.end(), small));
  too_many -= std::min(too_many, kSpares);
  for (auto spare = spares_.begin(); spare != spares_.end();) {
    const bool goes =
        (!small(*spare) || too_many != 0) && spare->mark != nullptr && Done(spare->mark);
    if (goes && small(*spare)) --too_many;
    if (goes) spares->push_back(std::move(*spare));
    spare = goes ? spares_.erase(spare) : std::next(spare);
  }
}

void DeviceMemory::Core::Sweep() {
  std::vector<Owners> owners;
  std::vector<Spare> spares;
  {
    const std::lock_guard lock(mutex);
    if (!closed_) TakeUnused(&owners, &spares);
  }
  for (const Spare& spare : spares) Release(spare);
}

// ---- combining ----

const Gpu::Table* DeviceMemory::Core::TableOf(const Layout& layout) {
  const auto found = std::find_if(tables_.begin(), tables_.end(), [&](const Known& known) {
    return Same(known.pieces, layout.pieces());
  });
  if (found != tables_.end()) {
    std::rotate(tables_.begin(), found, found + 1);
    return tables_.front().table.get();
  }
  Result<std::shared_ptr<Gpu::Table>> table = gpu->MakeTable(layout);
  if (!Note(table.status())) return nullptr;
  tables_.push_front({layout.pieces(), std::move(table).value()});
  if (tables_.size() > kTables) {
    // What was launched with it may not have run.
    const Result<Mark> mark = marks_->Record(main);
    KeepUntil(kMain, Note(mark.status()) ? *mark : nullptr, {tables_.back().table});
    tables_.pop_back();
  }
  return tables_.front().table.get();
}

void DeviceMemory::Core::KeepUntil(Side side, const Mark& mark, Owners owners) {
  std::erase(owners, nullptr);
  if (!owners.empty()) kept_[side].push_back({mark, std::move(owners)});
}

Status DeviceMemory::Core::MakeSlots() {
  if (slots_ != nullptr) return Status::Ok();
  const Result<std::byte*> data = gpu->Malloc(2 * kPieces * piece_bytes_);
  if (!data.ok()) return data.status();
  slots_ = *data;
  for (std::size_t i = 0; i < kPieces; ++i) {
    in_slots_[i].data = slots_ + i * piece_bytes_;
    out_slots_[i].data = slots_ + (kPieces + i) * piece_bytes_;
  }
  return Status::Ok();
}

// What an earlier call copies to host memory is there before it is copied in again.
Status DeviceMemory::Core::AwaitOutgoing(const Job& job) {
  for (const Input& input : job.from) {
    if (!input.from.host) continue;
    const std::byte* begin = input.from.data;
    for (const Outgoing& outgoing : outgoing_) {
      if (begin < outgoing.begin + outgoing.bytes && outgoing.begin < begin + job.length) {
        PRD_RETURN_IF_ERROR(gpu->Wait(in_, outgoing.mark.get()));
      }
    }
  }
  return Status::Ok();
}

// The host inputs among [begin, end) into the slot, one behind the other.
Status DeviceMemory::Core::CopyIn(const Job& job, std::size_t begin, std::size_t end,
                                  std::size_t at, std::size_t bytes, Slot* slot) {
  if (slot->mark != nullptr) PRD_RETURN_IF_ERROR(gpu->Wait(in_, slot->mark.get()));
  std::byte* to = slot->data;
  for (std::size_t i = begin; i < end; ++i) {
    if (!job.from[i].from.host) continue;
    PRD_RETURN_IF_ERROR(gpu->Copy(to, job.from[i].from.data + at, bytes, in_));
    to += bytes;
  }
  return Order(in_, main);
}

Status DeviceMemory::Core::CopyOut(Job* job, std::size_t at, std::size_t bytes, Slot* slot) {
  PRD_RETURN_IF_ERROR(Order(main, out_));
  PRD_RETURN_IF_ERROR(gpu->Copy(job->host_to->data + at, slot->data, bytes, out_));
  Result<Mark> mark = marks_->Record(out_);
  PRD_RETURN_IF_ERROR(mark.status());
  slot->mark = *mark;
  job->copied.push_back({*mark, at + bytes});
  if (wake_ < 0) return Status::Ok();
  PRD_RETURN_IF_ERROR(gpu->Wait(bell_, mark->get()));
  return gpu->Notify(bell_, wake_);
}

// [at, at + bytes) of the job's range. More inputs than one launch takes: the first output holds
// the sum so far, and is the first input of the next; rounded as every sum is (kernels.h), and
// times 1, it is what it would be within one.
Status DeviceMemory::Core::Piece(Job* job, std::size_t at, std::size_t bytes) {
  Slot* out = nullptr;
  if (job->host_to != nullptr) {
    out = &out_slots_[next_out_++ % kPieces];
    if (out->mark != nullptr) PRD_RETURN_IF_ERROR(gpu->Wait(main, out->mark.get()));
  }
  const auto on_device = [at](const Place& place) {
    return place.data == nullptr ? nullptr : place.data + at;
  };
  std::vector<std::byte*> to;
  for (const Place& place : job->to) to.push_back(place.host ? out->data : on_device(place));
  for (std::size_t begin = 0;;) {
    std::vector<Gpu::Input> from;
    if (begin != 0) from.push_back({to.front(), kOne});
    const std::size_t end = std::min(job->from.size(), begin + Gpu::kMaxInputs - from.size());
    const std::span<const Input> batch =
        std::span(std::as_const(job->from)).subspan(begin, end - begin);
    const bool hosts =
        std::any_of(batch.begin(), batch.end(), [](const Input& input) { return input.from.host; });
    Slot* in = hosts ? &in_slots_[next_in_++ % kPieces] : nullptr;
    if (hosts) PRD_RETURN_IF_ERROR(CopyIn(*job, begin, end, at, bytes, in));
    std::byte* arrived = hosts ? in->data : nullptr;
    for (; begin < end; ++begin) {
      const Input& input = job->from[begin];
      from.push_back(
          {input.from.host ? std::exchange(arrived, arrived + bytes) : on_device(input.from),
           input.weight});
    }
    const bool last = end == job->from.size();
    PRD_RETURN_IF_ERROR(gpu->Launch({.table = job->table,
                                     .offset = job->offset + at,
                                     .length = bytes,
                                     .to = std::span(to).first(last ? to.size() : 1),
                                     .from = from,
                                     .factor = last ? job->factor : kOne},
                                    main));
    if (hosts) {
      Result<Mark> mark = marks_->Record(main);
      PRD_RETURN_IF_ERROR(mark.status());
      in->mark = std::move(mark).value();
    }
    if (last) break;
  }
  return out == nullptr ? Status::Ok() : CopyOut(job, at, bytes, out);
}

Status DeviceMemory::Core::Pieces(Job* job) {
  std::size_t most = job->length;
  if (job->hosts != 0 || job->host_to != nullptr) {
    PRD_RETURN_IF_ERROR(MakeSlots());
    const std::size_t share = std::clamp(job->hosts, std::size_t{1}, Gpu::kMaxInputs);
    most = piece_bytes_ / share / 8 * 8;
  }
  if (job->hosts != 0) PRD_RETURN_IF_ERROR(AwaitOutgoing(*job));
  for (std::size_t at = 0; at < job->length; at += most) {
    PRD_RETURN_IF_ERROR(Piece(job, at, std::min(most, job->length - at)));
  }
  return Status::Ok();
}

// Until the copies that were asked for are done; all of them, if it went wrong on the way.
void DeviceMemory::Core::Keep(const Job& job, bool ok) {
  if (job.hosts != 0) {
    Owners owners;
    for (const Input& input : job.from) owners.push_back(input.from.owner);
    const Result<Mark> mark = marks_->Record(in_);
    KeepUntil(kIn, Note(mark.status()) ? *mark : nullptr, std::move(owners));
  }
  if (job.host_to == nullptr) return;
  if (!job.copied.empty()) {
    outgoing_.push_back({job.host_to->data, job.length, job.copied.back().mark});
  }
  const bool known = ok && !job.copied.empty();
  KeepUntil(kOut, known ? job.copied.back().mark : nullptr, {job.host_to->owner});
}

std::shared_ptr<Transfer> DeviceMemory::Core::Combine(const Layout& layout, Job job) {
  std::deque<Copied> copied;
  {
    const std::lock_guard lock(mutex);
    job.table = failed() ? nullptr : TableOf(layout);
    if (job.table != nullptr) {
      const bool ok = Note(Pieces(&job));
      Keep(job, ok);
      copied = std::move(job.copied);
    }
  }
  if (job.host_to == nullptr) return nullptr;
  return std::make_shared<Copying>(shared_from_this(), std::move(copied));
}

// ---- DeviceMemory ----

Result<std::unique_ptr<DeviceMemory>> DeviceMemory::Create(std::shared_ptr<Gpu> gpu, int wake,
                                                           std::size_t piece_bytes) {
  PRD_CHECK(piece_bytes != 0 && piece_bytes % (8 * Gpu::kMaxInputs) == 0);
  auto core = std::make_shared<Core>(std::move(gpu), wake, piece_bytes);
  const Status opened = core->Open();
  std::unique_ptr<DeviceMemory> memory(new DeviceMemory(std::move(core)));
  PRD_RETURN_IF_ERROR(opened);
  return memory;
}

DeviceMemory::DeviceMemory(std::shared_ptr<Core> core) : core_(std::move(core)) {}

DeviceMemory::~DeviceMemory() { core_->Close(); }

Row DeviceMemory::Make(MemoryUse use, std::size_t bytes) {
  return core_->Allocate(use, bytes, false);
}

Row DeviceMemory::MakeHost(MemoryUse use, std::size_t bytes) {
  return core_->Allocate(use, bytes, true);
}

std::shared_ptr<Transfer> DeviceMemory::Combine(const Layout& layout, std::size_t offset,
                                                std::size_t length, std::span<const Place> to,
                                                std::span<const Input> from, Weight factor) {
  PRD_CHECK(!to.empty() && to.size() <= Gpu::kMaxOutputs);
  core_->Sweep();
  if (length == 0) return nullptr;
  Core::Job job{.offset = offset, .length = length, .to = to, .from = {}, .factor = factor};
  for (const Input& input : from) {
    if (input.weight.exact == 0 || factor.exact == 0) continue;
    job.from.push_back(input);
    job.hosts += input.from.host ? 1 : 0;
  }
  if (job.from.empty()) job.factor = kOne;
  for (const Place& place : to) {
    if (!place.host) continue;
    PRD_CHECK(job.host_to == nullptr);
    job.host_to = &place;
  }
  return core_->Combine(layout, std::move(job));
}

void DeviceMemory::Zero(std::byte* data, std::size_t bytes) {
  core_->Sweep();
  const std::lock_guard lock(core_->mutex);
  if (bytes != 0 && !core_->failed()) core_->Note(core_->gpu->Zero(data, bytes, core_->main));
}

// After a failure, too: what was asked for before it may still run.
void DeviceMemory::TakeFromCaller() {
  const std::lock_guard lock(core_->mutex);
  core_->Note(core_->Order(core_->caller, core_->main));
}

void DeviceMemory::GiveToCaller() {
  const std::lock_guard lock(core_->mutex);
  core_->Note(core_->Order(core_->main, core_->caller));
}

Status DeviceMemory::failure() const { return core_->failure(); }

Status DeviceMemory::CheckNotCaptured(Gpu::Stream stream) const {
  const Result<bool> capturing = core_->gpu->Capturing(stream);
  if (!capturing.ok() || !*capturing) return Status::Ok();  // an error will be met again
  return Status(Code::kFailedPrecondition,
                "a CUDA graph is being captured from the stream, and no call of a session can be "
                "part of one");
}

void DeviceMemory::SetCallerStream(Gpu::Stream stream) {
  const std::lock_guard lock(core_->mutex);
  core_->caller = stream;
}

Status DeviceMemory::WaitForCaller() {
  if (core_->failed()) return failure();
  const Result<Mark> mark = core_->RecordCaller();
  if (core_->Note(mark.status())) core_->Note(core_->gpu->Synchronize(mark->get()));
  return failure();
}

void DeviceMemory::Sweep() { core_->Sweep(); }

const std::shared_ptr<Gpu>& DeviceMemory::gpu() const { return core_->gpu; }

Gpu::Stream DeviceMemory::stream() const { return core_->main; }

const Gpu::Table* DeviceMemory::TableOf(const Layout& layout) {
  const std::lock_guard lock(core_->mutex);
  return core_->failed() ? nullptr : core_->TableOf(layout);
}

bool DeviceMemory::Note(const Status& status) { return core_->Note(status); }

}  // namespace prd
