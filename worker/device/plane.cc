#include "worker/device/plane.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "common/base/check.h"

namespace prd {
namespace {

constexpr std::size_t kShardAlign = 16;
constexpr int kSettleTries = 50;
constexpr auto kSettleStep = std::chrono::nanoseconds(DevicePlane::kSettle / kSettleTries);
// Flag words in use at once: by reductions that were given up, and one more.
constexpr std::size_t kMaxWords = 64;

std::uint32_t Load(std::uint32_t* word) {
  return std::atomic_ref<std::uint32_t>(*word).load(std::memory_order_acquire);
}

void Store(std::uint32_t* word, std::uint32_t value) {
  std::atomic_ref<std::uint32_t>(*word).store(value, std::memory_order_seq_cst);
}

// Where [begin, end) of the row stands in one piece in memory; null if it does not.
const std::byte* InOnePiece(const Layout& layout, std::size_t begin, std::size_t end) {
  const std::byte* first = nullptr;
  for (const Layout::Piece& piece : layout.pieces()) {
    if (piece.end <= begin || piece.begin >= end) continue;
    const std::byte* at = piece.data + (std::max(piece.begin, begin) - piece.begin);
    if (first == nullptr) first = at;
    if (at != first + (std::max(piece.begin, begin) - begin)) return nullptr;
  }
  return first;
}

// Cuts the run to what of it is in [begin, end); false: nothing.
bool Cut(std::size_t begin, std::size_t end, Layout::Piece* run) {
  run->begin = std::max(run->begin, begin);
  run->end = std::min(run->end, end);
  return run->begin < run->end;
}

}  // namespace

DevicePlane::DevicePlane(DeviceMemory* memory, int wake, Options options)
    : memory_(memory),
      gpu_(memory->gpu()),
      wake_(wake),
      options_(options),
      communicators_(gpu_.get(), options.communicators) {}

Result<std::unique_ptr<DevicePlane>> DevicePlane::Create(DeviceMemory* memory, int wake,
                                                         Options options) {
  std::unique_ptr<DevicePlane> plane(new DevicePlane(memory, wake, options));
  PRD_RETURN_IF_ERROR(plane->CreateHandles());
  return plane;
}

Status DevicePlane::CreateHandles() {
  const Result<Gpu::Stream> stream = gpu_->CreateStream();
  if (!stream.ok()) return stream.status();
  stream_ = *stream;
  for (Gpu::Event* event : {&inputs_, &reduced_}) {
    const Result<Gpu::Event> created = gpu_->CreateEvent();
    if (!created.ok()) return created.status();
    *event = *created;
  }
  const Result<std::byte*> word = gpu_->Malloc(sizeof *word_);
  if (!word.ok()) return word.status();
  word_ = reinterpret_cast<std::uint32_t*>(*word);
  return Status::Ok();
}

DevicePlane::~DevicePlane() {
  if (run_ && run_->words) {
    Store(run_->words->flag, 1);
    words_.push_back(*run_->words);
  }
  // What hangs on NCCL's stream ends by this, and what waits for it on the memory's.
  communicators_.Join(0, kNoRun);
  if (stream_ != nullptr) gpu_->DestroyStream(stream_);
  for (const Words& words : words_) {
    (void)gpu_->Synchronize(words.used);
    gpu_->DestroyEvent(words.used);
    gpu_->FreeHost(reinterpret_cast<std::byte*>(words.flag));
  }
  for (const auto& [event, row] : old_rows_) gpu_->DestroyEvent(event);
  for (const Gpu::Event event : {inputs_, reduced_}) {
    if (event != nullptr) gpu_->DestroyEvent(event);
  }
  if (word_ != nullptr) gpu_->Free(reinterpret_cast<std::byte*>(word_));
}

// ---- begin ----

void DevicePlane::Start(Instant now, const Group& group, const Communicators::Choice& choice,
                        const Part& part) {
  PRD_CHECK(!run_ && choice.way != Way::kStaged);
  run_.emplace(Run());
  run_->group = group;
  run_->choice = choice;
  run_->part = part;
  run_->window.end = std::min(options_.window_bytes, part.layout->bytes());
  run_->begun = run_->looked = now;
  const std::size_t members = group.members.size();
  sent_bytes_ = 2 * (members - 1) * part.layout->bytes() / members;
  Status status = Begin();
  if (status.ok()) status = Settle();
  if (!status.ok()) Fail(now, status);
}

Status DevicePlane::Begin() {
  PRD_RETURN_IF_ERROR(memory_->failure());
  const std::optional<Communicators::Use> use = communicators_.Find(run_->choice.comm, run_->group);
  if (!use) return Status(Code::kAborted, communicators_.WhyBroken(run_->choice.comm));
  run_->use = *use;
  communicators_.Hold(run_->choice.comm);
  run_->held = true;
  const Result<bool> busy = gpu_->CommBusy(use->comm);
  if (!busy.ok()) return busy.status();
  if (*busy) return Status(Code::kAborted, "NCCL has not ended what it did before");
  for (const GroupMember& member : run_->group.members) {
    run_->shares.push_back(member.weight);
  }
  run_->shares.push_back(run_->part.initial == nullptr ? 0 : run_->group.initial_weight);
  PRD_RETURN_IF_ERROR(SizeRows());
  PRD_RETURN_IF_ERROR(Noted(gpu_->Record(inputs_, memory_->stream())));
  PRD_RETURN_IF_ERROR(Noted(gpu_->Wait(stream_, inputs_)));
  return BeginWindow();
}

Status DevicePlane::BeginWindow() {
  return run_->choice.way == Way::kCollective ? Collective() : Scatter();
}

// Where the result of that byte of the row comes.
std::byte* DevicePlane::ResultAt(std::size_t at) {
  return staging_.data() + (run_->part.into == Into::kRow ? at : at - run_->window.begin);
}

// A failure of the device stays; what a communicator tells is its own.
Status DevicePlane::Noted(Status status) {
  if (status.code() != Code::kAborted) memory_->Note(status);
  return status;
}

Status DevicePlane::SizeRows() {
  while (!old_rows_.empty()) {
    const Result<bool> done = gpu_->Done(old_rows_.front().first);
    if (!done.ok() || !*done) break;
    gpu_->DestroyEvent(old_rows_.front().first);
    old_rows_.pop_front();
  }
  const bool whole = run_->part.into == Into::kRow;
  PRD_RETURN_IF_ERROR(Grow(&staging_, whole ? run_->part.layout->bytes() : run_->window.size()));
  if (run_->choice.way == Way::kCollective) return Status::Ok();
  return Grow(&scratch_, (run_->group.members.size() + 1) * ShardOf(0).size());
}

// The memory does not know what NCCL's stream still does with the row that there was.
Status DevicePlane::Grow(Row* row, std::size_t bytes) {
  const bool much_too_large = row == &staging_ && row->size() > bytes + bytes / 4;
  if (row->size() >= bytes && !much_too_large) return Status::Ok();
  if (!row->empty()) {
    const Result<Gpu::Event> event = gpu_->CreateEvent();
    if (!event.ok()) return Noted(event.status());
    old_rows_.emplace_back(*event, std::move(*row));
    PRD_RETURN_IF_ERROR(Noted(gpu_->Record(*event, stream_)));
  }
  *row = memory_->Allocate(MemoryUse::kResults, bytes);
  return memory_->failure();
}

// This worker's own part in one piece, gathered to where the result comes if need be.
Result<const std::byte*> DevicePlane::Own(std::size_t begin, std::size_t end) {
  const Part& part = run_->part;
  if (part.row != nullptr) return part.row + begin;
  if (const std::byte* there = InOnePiece(*part.layout, begin, end)) return there;
  std::byte* to = ResultAt(begin);
  PRD_RETURN_IF_ERROR(Launch(begin, end - begin, to, {{}}));
  return const_cast<const std::byte*>(to);
}

Status DevicePlane::Launch(std::size_t offset, std::size_t length, std::byte* to,
                           std::initializer_list<Gpu::Input> from) {
  return LaunchOn(stream_, offset, length, to, std::span(from.begin(), from.size()), nullptr);
}

Status DevicePlane::LaunchOn(Gpu::Stream stream, std::size_t offset, std::size_t length,
                             std::byte* to, std::span<const Gpu::Input> from,
                             const std::uint32_t* skip) {
  const Gpu::Table* table = memory_->TableOf(*run_->part.layout);
  if (table == nullptr) {
    const Status failure = memory_->failure();
    return failure.ok() ? Status(Code::kInternal, "a layout has no table") : failure;
  }
  return Noted(gpu_->Launch({.table = table,
                             .offset = offset,
                             .length = length,
                             .to = std::span(&to, 1),
                             .from = from,
                             .factor = {1, 1},
                             .skip = skip},
                            stream));
}

// ---- all-reduce ----

Status DevicePlane::Collective() {
  struct Ask {
    Layout::Piece run;
    const std::byte* from;
    Weight weight;
  };
  std::vector<Ask> asks;
  const std::size_t position = run_->part.position;
  for (Layout::Piece run : run_->part.layout->Runs()) {
    if (!Cut(run_->window.begin, run_->window.end, &run)) continue;
    const Weight weight = RoundWeights(run_->shares, run.dtype)[position];
    std::byte* to = ResultAt(run.begin);
    if (run_->shares[position] == 0) {
      PRD_RETURN_IF_ERROR(Noted(gpu_->Zero(to, run.end - run.begin, stream_)));
      asks.push_back({run, to, weight});
      continue;
    }
    const Result<const std::byte*> own = Own(run.begin, run.end);
    if (!own.ok()) return own.status();
    asks.push_back({run, *own, weight});
  }
  run_->phase = Phase::kAsked;
  if (asks.empty()) return Status::Ok();
  PRD_RETURN_IF_ERROR(gpu_->GroupStart());
  Status status;
  for (const Ask& ask : asks) {
    if (!status.ok()) break;
    const std::size_t count = (ask.run.end - ask.run.begin) / DTypeSize(ask.run.dtype);
    status = gpu_->AllReduce(run_->use.comm, ask.from, ResultAt(ask.run.begin), count,
                             ask.run.dtype, ask.weight, stream_);
  }
  const Status end = gpu_->GroupEnd(run_->use.comm);
  return status.ok() ? end : status;
}

// For an all-reduce; an exchange adds it with the rest.
Status DevicePlane::AddInitial() {
  if (run_->shares.back() == 0) return Status::Ok();
  for (Layout::Piece run : run_->part.layout->Runs()) {
    if (!Cut(run_->window.begin, run_->window.end, &run)) continue;
    std::byte* to = ResultAt(run.begin);
    const Weight share = RoundWeights(run_->shares, run.dtype).back();
    if (share.single == 0) continue;
    PRD_RETURN_IF_ERROR(Launch(run.begin, run.end - run.begin, to,
                               {{to, {1, 1}}, {run_->part.initial + run.begin, share}}));
  }
  return Status::Ok();
}

// ---- exchange ----

// A part of the window, from its first byte on.
DevicePlane::Shard DevicePlane::ShardOf(std::size_t position) const {
  const std::size_t bytes = run_->window.size();
  const std::size_t members = run_->group.members.size();
  const std::size_t even = (bytes + members - 1) / members;
  const std::size_t each = (even + kShardAlign - 1) / kShardAlign * kShardAlign;
  return {std::min(position * each, bytes), std::min((position + 1) * each, bytes)};
}

// What came from this member for the own shard; beyond the last member: the sum.
std::byte* DevicePlane::Slot(std::size_t position) {
  return scratch_.data() + position * ShardOf(0).size();
}

// Asks for the sends and receives with the other members as one call.
template <typename F>
Status DevicePlane::Exchanged(F&& one) {
  PRD_RETURN_IF_ERROR(gpu_->GroupStart());
  Status status;
  for (std::size_t i = 0; i < run_->group.members.size(); ++i) {
    if (i != run_->part.position && status.ok()) status = one(i, run_->use.ranks[i]);
  }
  const Status end = gpu_->GroupEnd(run_->use.comm);
  return status.ok() ? end : status;
}

// Every contributor's shards to their owners.
Status DevicePlane::Scatter() {
  const std::size_t position = run_->part.position;
  const Shard mine = ShardOf(position);
  if (run_->shares[position] != 0) {
    const Result<const std::byte*> own = Own(run_->window.begin, run_->window.end);
    if (!own.ok()) return own.status();
    run_->own = *own;
  }
  run_->phase = Phase::kScattered;
  return Exchanged([&](std::size_t i, int rank) {
    const Shard shard = ShardOf(i);
    Status status;
    if (run_->own != nullptr && shard.size() != 0) {
      status = gpu_->Send(run_->use.comm, run_->own + shard.begin, shard.size(), rank, stream_);
    }
    if (status.ok() && run_->shares[i] != 0 && mine.size() != 0) {
      status = gpu_->Receive(run_->use.comm, Slot(i), mine.size(), rank, stream_);
    }
    return status;
  });
}

// The own shard of the result.
Status DevicePlane::Sum() {
  const std::vector<Weight> weights = RoundWeights(run_->shares);
  const Shard mine = ShardOf(run_->part.position);
  if (mine.size() == 0) return Status::Ok();
  const std::size_t begin = run_->window.begin + mine.begin;
  std::vector<Gpu::Input> inputs;
  for (std::size_t i = 0; i + 1 < weights.size(); ++i) {
    if (run_->shares[i] == 0) continue;
    const std::byte* from = i == run_->part.position ? run_->own + mine.begin : Slot(i);
    inputs.push_back({from, weights[i]});
  }
  if (run_->shares.back() != 0) {
    inputs.push_back({run_->part.initial + begin, weights.back()});
  }
  // More than one launch takes go on from the sum so far.
  std::byte* sum = Slot(run_->group.members.size());
  std::size_t taken = std::min(inputs.size(), Gpu::kMaxInputs);
  PRD_RETURN_IF_ERROR(
      LaunchOn(stream_, begin, mine.size(), sum, std::span(inputs).first(taken), nullptr));
  while (taken < inputs.size()) {
    const std::size_t more = std::min(inputs.size() - taken, Gpu::kMaxInputs - 1);
    inputs[taken - 1] = {sum, {1, 1}};
    PRD_RETURN_IF_ERROR(LaunchOn(stream_, begin, mine.size(), sum,
                                 std::span(inputs).subspan(taken - 1, more + 1), nullptr));
    taken += more;
  }
  // The own part that stood here has been sent.
  return Noted(gpu_->Copy(ResultAt(begin), sum, mine.size(), stream_));
}

// The sums to all.
Status DevicePlane::Spread() {
  const Shard mine = ShardOf(run_->part.position);
  std::byte* const result = ResultAt(run_->window.begin);
  run_->phase = Phase::kAsked;
  return Exchanged([&](std::size_t i, int rank) {
    const Shard shard = ShardOf(i);
    Status status;
    if (mine.size() != 0) {
      status = gpu_->Send(run_->use.comm, result + mine.begin, mine.size(), rank, stream_);
    }
    if (status.ok() && shard.size() != 0) {
      status = gpu_->Receive(run_->use.comm, result + shard.begin, shard.size(), rank, stream_);
    }
    return status;
  });
}

// ---- on the way ----

// NCCL has handed over what it was asked for last: what comes next.
Status DevicePlane::Next() {
  if (run_->phase == Phase::kScattered) {
    PRD_RETURN_IF_ERROR(Sum());
    return Spread();
  }
  if (run_->choice.way == Way::kCollective) PRD_RETURN_IF_ERROR(AddInitial());
  const bool lands = run_->part.into != Into::kRow;
  if (lands) PRD_RETURN_IF_ERROR(Land());
  if (!Last()) {
    const std::size_t begin = run_->window.end;
    run_->window = {begin, std::min(begin + options_.window_bytes, run_->part.layout->bytes())};
    return BeginWindow();
  }
  if (!lands) {
    PRD_RETURN_IF_ERROR(Noted(gpu_->Record(reduced_, stream_)));
    if (wake_ >= 0) PRD_RETURN_IF_ERROR(Noted(gpu_->Notify(stream_, wake_)));
  }
  run_->phase = Phase::kEnqueued;
  return Status::Ok();
}

// The window's result to where it goes, unless it is called off before.
Status DevicePlane::Land() {
  if (!run_->words) {
    const Result<Words> words = TakeWords();
    if (!words.ok()) return words.status();
    run_->words = *words;
  }
  const Words& words = *run_->words;
  const Part& part = run_->part;
  const Shard window = run_->window;
  const Gpu::Stream stream = memory_->stream();
  PRD_RETURN_IF_ERROR(Noted(gpu_->Record(reduced_, stream_)));
  PRD_RETURN_IF_ERROR(Noted(gpu_->Wait(stream, reduced_)));
  PRD_RETURN_IF_ERROR(
      Noted(gpu_->Decide(words.flag, word_, Last() ? words.said : words.unheard, stream)));
  std::byte* const to = part.into == Into::kTensors ? nullptr : part.row + window.begin;
  std::vector<Gpu::Input> from;
  if (part.into == Into::kChange) from.push_back({to, {-1, -1}});
  from.push_back({ResultAt(window.begin), {1, 1}});
  PRD_RETURN_IF_ERROR(LaunchOn(stream, window.begin, window.size(), to, from, word_));
  PRD_RETURN_IF_ERROR(Noted(gpu_->Record(words.used, stream)));
  if (Last()) return wake_ < 0 ? Status::Ok() : Noted(gpu_->Notify(stream, wake_));
  PRD_RETURN_IF_ERROR(Noted(gpu_->Record(inputs_, stream)));
  return Noted(gpu_->Wait(stream_, inputs_));
}

// The oldest, if the device is through with them, or others.
Result<DevicePlane::Words> DevicePlane::TakeWords() {
  Words words;
  const Result<bool> done = words_.empty() ? Result<bool>(false) : gpu_->Done(words_.front().used);
  if (!done.ok()) return Noted(done.status());
  if (*done) {
    words = words_.front();
    words_.pop_front();
  } else {
    if (words_.size() >= kMaxWords) {
      return Status(Code::kResourceExhausted, "what was given up before is not over yet");
    }
    const Result<Gpu::Event> event = gpu_->CreateEvent();
    if (!event.ok()) return Noted(event.status());
    const Result<std::byte*> pinned = gpu_->MallocHost(3 * sizeof(std::uint32_t));
    if (!pinned.ok()) {
      gpu_->DestroyEvent(*event);
      return Noted(pinned.status());
    }
    words.flag = reinterpret_cast<std::uint32_t*>(*pinned);
    words.said = words.flag + 1;
    words.unheard = words.flag + 2;
    words.used = *event;
  }
  Store(words.flag, 0);
  Store(words.said, 0);
  return words;
}

Status DevicePlane::Settle() {
  for (int i = 0; i < kSettleTries && run_->phase != Phase::kEnqueued; ++i) {
    const Result<bool> busy = gpu_->CommBusy(run_->use.comm);
    if (!busy.ok()) return busy.status();
    if (*busy) {
      std::this_thread::sleep_for(kSettleStep);
    } else {
      PRD_RETURN_IF_ERROR(Next());
      i = 0;
    }
  }
  return Status::Ok();
}

bool DevicePlane::Enqueued() const {
  return run_ && run_->failure.ok() && run_->phase == Phase::kEnqueued;
}

// ---- the end ----

std::optional<Status> DevicePlane::Ended(Instant now) {
  if (!run_) return Status(Code::kCancelled, "the reduction was given up");
  run_->looked = now;
  if (std::optional<Status> status = Outcome(now)) return Finish(*status);
  if (!run_->failure.ok()) return std::nullopt;
  const Status status = Look(now);
  if (status.ok()) return std::nullopt;
  Fail(now, status);
  if (std::optional<Status> ended = Outcome(now)) return Finish(*ended);
  return std::nullopt;
}

// What has come of it, as far as the device says now.
std::optional<Status> DevicePlane::Outcome(Instant now) {
  const bool decides = run_->words.has_value();
  if (decides && Load(run_->words->said) == 1) return Status::Ok();
  if (!run_->failure.ok()) {
    // It is not known for a device that says nothing any more; its memory is lost with it. A device
    // that failed since may have told nobody.
    if (decides) (void)Noted(gpu_->Done(run_->words->used).status());
    const bool over = !decides || run_->phase != Phase::kEnqueued || Load(run_->words->said) != 0 ||
                      !memory_->failure().ok() || now - *run_->failed_at >= options_.timeout;
    if (over) return run_->failure;
  } else if (!decides && run_->phase == Phase::kEnqueued) {
    const Result<bool> done = gpu_->Done(reduced_);
    if (done.ok() && *done) return Status::Ok();
    if (!done.ok()) Fail(now, Noted(done.status()));
    if (!done.ok()) return run_->failure;
  }
  return std::nullopt;
}

// What speaks against it. Moves it on.
Status DevicePlane::Look(Instant now) {
  PRD_RETURN_IF_ERROR(memory_->failure());
  const std::string why = communicators_.WhyBroken(run_->choice.comm);
  if (!why.empty()) {
    if (!run_->broken_at) run_->broken_at = now;
    const bool over = now - *run_->broken_at >= kGrace || run_->phase != Phase::kEnqueued;
    return over ? Status(Code::kAborted, why) : Status::Ok();
  }
  const Result<bool> busy = gpu_->CommBusy(run_->use.comm);
  if (!busy.ok()) return busy.status();
  if (!*busy && run_->phase != Phase::kEnqueued) {
    PRD_RETURN_IF_ERROR(Next());
    PRD_RETURN_IF_ERROR(Settle());
  }
  if (now - run_->begun < options_.timeout) return Status::Ok();
  return Status(Code::kDeadlineExceeded,
                "it took longer than " + std::to_string(options_.timeout / kMillisecond) + " ms");
}

// Nothing is written from here on, but what the device has begun to write.
void DevicePlane::Fail(Instant now, const Status& status) {
  run_->failure = status;
  run_->failed_at = now;
  if (run_->words) Store(run_->words->flag, 1);
  (void)Noted(gpu_->Done(inputs_).status());  // the device may be why
  communicators_.Break(now, run_->choice.comm, status.message());
  run_->held = false;
}

Status DevicePlane::Finish(Status status) {
  if (run_->held) communicators_.Release(run_->choice.comm);
  if (run_->words) words_.push_back(*run_->words);
  run_.reset();
  return status;
}

void DevicePlane::Cancel(Instant now, const std::string& why) {
  if (!run_) return;
  if (run_->failure.ok()) Fail(now, Status(Code::kCancelled, why));
  if (!run_->words) (void)Finish(run_->failure);
}

void DevicePlane::Extend(Instant now) {
  if (run_) run_->begun = now;
}

std::optional<Instant> DevicePlane::NextDeadline() const {
  if (!run_) return std::nullopt;
  if (run_->phase == Phase::kEnqueued) return run_->looked + kPoll;
  // The sooner the younger it is.
  const DurationNs age = run_->looked - run_->begun;
  return run_->looked + std::clamp(age / 4, kMillisecond, kPoll);
}

}  // namespace prd
