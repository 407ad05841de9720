#include "tools/sim/sim_device.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/prng.h"
#include "engines/violation.h"

namespace prd::sim {
namespace {

constexpr int kNoNumber = 0xff;  // in each byte

}  // namespace

class SimDevice::Core : public std::enable_shared_from_this<SimDevice::Core> {
 public:
  Core(std::uint64_t seed, Clock clock) : prng_(seed), clock_(std::move(clock)) {}

  struct Sent {  // to host memory
    std::size_t ready = 0, length = 0;
  };

  Row Allocate(std::size_t bytes, bool host) {
    if (bytes == 0) return {};
    auto* data = new std::byte[bytes];
    std::memset(data, kNoNumber, bytes);
    rows_[data] = {bytes, host};
    return Row(data, bytes, [core = shared_from_this()](std::byte* used) { core->Free(used); });
  }

  std::shared_ptr<Sent> Combine(const Layout& layout, std::size_t offset, std::size_t length,
                                std::span<const Place> to, std::span<const Input> from,
                                Weight factor) {
    if (length == 0) return nullptr;
    Count();
    Job job{.layout = layout,
            .offset = offset,
            .length = length,
            .to = {to.begin(), to.end()},
            .from = {},
            .early = {},
            .factor = factor};
    for (const Input& input : from) {
      if (input.weight.exact == 0 || factor.exact == 0) continue;
      Check(input.from, length);
      job.from.push_back(input);
      if (!input.from.host || prng_.Below(2) == 0 || OnItsWay(input.from.data, length)) continue;
      job.early.emplace_back(input.from.data, input.from.data + length);
      job.from.back().from.data = job.early.back().data();
      done_.push_back(std::exchange(job.from.back().from.owner, nullptr));
    }
    if (job.from.empty()) job.factor = {1, 1};
    for (const Place& place : to) {
      Check(place, length);
      if (place.host) job.sent = std::make_shared<Sent>(Sent{.ready = 0, .length = length});
    }
    std::shared_ptr<Sent> sent = job.sent;
    if (failed_) return sent;
    Add(std::move(job));
    return sent;
  }

  void Zero(std::byte* data, std::size_t bytes) {
    if (bytes == 0) return;
    Check(Memory::In(data), bytes);
    Count();
    if (failed_) return;
    Job job{.layout = {},
            .offset = 0,
            .length = bytes,
            .to = {Memory::In(data)},
            .from = {},
            .early = {},
            .factor = {0, 0}};
    Add(std::move(job));
  }

  void Sweep() { std::exchange(done_, {}); }

  void Settle() {
    while (!jobs_.empty()) Work(true);
    while (!out_.empty()) CopyOut();
  }
  void Await(const Sent& sent) {
    while (sent.ready < sent.length && !failed_) jobs_.empty() ? CopyOut() : Work(true);
  }

  void FailAt(std::size_t n) { fails_in_ = n; }
  void MayFail(bool may) { may_fail_ = may; }
  bool failed() const { return failed_; }

  void Close() {
    Settle();
    Sweep();
    closed_ = true;
  }

 private:
  struct Known {
    std::size_t bytes = 0;
    bool host = false;
    bool gone = false;
  };
  struct Job {
    Layout layout;
    std::size_t offset = 0, length = 0;
    std::vector<Place> to;
    std::vector<Input> from;
    std::deque<std::vector<std::byte>> early;  // host operands that were copied when given
    Weight factor;
    std::shared_ptr<Sent> sent;
    std::byte* frees = nullptr;  // nothing but this row
    std::size_t done = 0;
  };
  struct Out {
    std::vector<std::byte> bytes;
    std::byte* to = nullptr;
    std::shared_ptr<const void> owner;
    std::shared_ptr<Sent> sent;
  };

  static Place Advanced(Place place, std::size_t by) {
    if (place.data != nullptr) place.data += by;
    return place;
  }

  void Check(const Place& place, std::size_t length) const {
    if (place.data == nullptr) return;
    auto row = rows_.upper_bound(place.data);
    const bool inside =
        row != rows_.begin() && (--row, place.data + length <= row->first + row->second.bytes);
    const char* wrong = !inside                          ? "is in no row"
                        : row->second.gone               ? "is in a row that is gone"
                        : row->second.host != place.host ? "is on the other side"
                                                         : nullptr;
    if (wrong == nullptr) return;
    throw Violation("device", "an operand of " + std::to_string(length) + " bytes " + wrong);
  }

  bool OnItsWay(const std::byte* data, std::size_t length) const {
    const auto overlaps = [&](const std::byte* other, std::size_t bytes) {
      return data < other + bytes && other < data + length;
    };
    const auto goes_there = [&](const Job& job) {
      return std::any_of(job.to.begin(), job.to.end(), [&](const Place& place) {
        return place.host && overlaps(place.data, job.length);
      });
    };
    return std::any_of(jobs_.begin(), jobs_.end(), goes_there) ||
           std::any_of(out_.begin(), out_.end(),
                       [&](const Out& out) { return overlaps(out.to, out.bytes.size()); });
  }

  // The work so far may still use it.
  void Free(std::byte* data) {
    rows_[data].gone = true;
    Job job;
    job.frees = data;
    if (closed_ || failed_) return Release(data);
    Add(std::move(job));
  }

  void Release(std::byte* data) {
    std::memset(data, kNoNumber, rows_[data].bytes);
    rows_.erase(data);
    delete[] data;
  }

  void Add(Job job) {
    jobs_.push_back(std::move(job));
    GoOn();
  }

  void GoOn() {
    if (runs_ || (jobs_.empty() && out_.empty())) return;
    runs_ = true;
    const double most = prng_.Below(20) == 0 ? 3e6 : 3e4;
    clock_.after(1 + static_cast<DurationNs>(prng_.Unit() * most), [weak = weak_from_this()] {
      const auto core = weak.lock();
      if (core == nullptr || core->closed_) return;
      core->runs_ = false;
      const bool both = !core->jobs_.empty() && !core->out_.empty();
      if (both ? core->prng_.Below(2) == 0 : !core->jobs_.empty()) {
        core->may_fail_ = true;
        core->Count();
        core->may_fail_ = false;
        if (!core->failed_) core->Work(false);
      } else if (!core->out_.empty()) {
        core->CopyOut();
      }
      core->GoOn();
    });
  }

  // Something is asked of it, or done.
  void Count() {
    if (!may_fail_ || fails_in_ == 0 || --fails_in_ != 0) return;
    failed_ = true;
    for (const Job& job : jobs_) {
      if (job.frees != nullptr) Release(job.frees);
    }
    std::deque<Job>().swap(jobs_);
    std::deque<Out>().swap(out_);
    clock_.wake();
  }

  // A part of the first job, or all of it.
  void Work(bool all) {
    Job& job = jobs_.front();
    if (job.frees != nullptr) {
      while (!out_.empty()) CopyOut();
      Release(job.frees);
      return jobs_.pop_front();
    }
    if (job.layout.bytes() == 0) {
      std::memset(job.to.front().data, 0, job.length);
      return jobs_.pop_front();
    }
    const bool hosts =
        job.sent != nullptr || std::any_of(job.from.begin(), job.from.end(),
                                           [](const Input& input) { return input.from.host; });
    const std::size_t left = job.length - job.done;
    const std::size_t part = all || !hosts ? left : std::min(left, 8 + 8 * prng_.Below(16));
    for (const Input& input : job.from) {
      while (input.from.host && !out_.empty()) CopyOut();
    }
    Part(&job, part);
    job.done += part;
    if (job.done < job.length) return;
    for (const Input& input : job.from) done_.push_back(input.from.owner);
    jobs_.pop_front();
  }

  void Part(Job* job, std::size_t part) {
    std::vector<Place> to;
    std::vector<Input> from;
    for (const Input& input : job->from) {
      from.push_back({Advanced(input.from, job->done), input.weight});
    }
    for (const Place& place : job->to) {
      to.push_back(Advanced(place, job->done));
      if (!place.host) continue;
      out_.push_back({.bytes = std::vector<std::byte>(part),
                      .to = to.back().data,
                      .owner = place.owner,
                      .sent = job->sent});
      to.back() = Memory::In(out_.back().bytes.data());
    }
    arithmetic_.Combine(job->layout, job->offset + job->done, part, to, from, job->factor);
  }

  void CopyOut() {
    Out out = std::move(out_.front());
    out_.pop_front();
    std::memcpy(out.to, out.bytes.data(), out.bytes.size());
    out.sent->ready += out.bytes.size();
    done_.push_back(std::move(out.owner));
    clock_.wake();
  }

  Prng prng_;
  const Clock clock_;
  HostMemory arithmetic_;
  std::map<const std::byte*, Known> rows_;
  std::deque<Job> jobs_;
  std::deque<Out> out_;
  std::vector<std::shared_ptr<const void>> done_;  // owners to let go of
  bool runs_ = false;                              // is to go on by the clock
  bool closed_ = false;
  std::size_t fails_in_ = 0;  // 0: not
  bool may_fail_ = false;
  bool failed_ = false;
};

class SimDevice::Copying : public Transfer {
 public:
  Copying(std::shared_ptr<Core> core, std::shared_ptr<Core::Sent> sent)
      : core_(std::move(core)), sent_(std::move(sent)) {}
  std::size_t ready() override { return sent_->ready; }
  void Wait() override { core_->Await(*sent_); }

 private:
  const std::shared_ptr<Core> core_;
  const std::shared_ptr<Core::Sent> sent_;
};

SimDevice::SimDevice(std::uint64_t seed, Clock clock)
    : core_(std::make_shared<Core>(seed, std::move(clock))), rows_on_host_(seed % 3 == 0) {}

SimDevice::~SimDevice() { core_->Close(); }

std::shared_ptr<Transfer> SimDevice::Combine(const Layout& layout, std::size_t offset,
                                             std::size_t length, std::span<const Place> to,
                                             std::span<const Input> from, Weight factor) {
  core_->Sweep();
  std::shared_ptr<Core::Sent> sent = core_->Combine(layout, offset, length, to, from, factor);
  if (sent == nullptr) return nullptr;
  return std::make_shared<Copying>(core_, std::move(sent));
}

void SimDevice::Zero(std::byte* data, std::size_t bytes) {
  core_->Sweep();
  core_->Zero(data, bytes);
}

void SimDevice::Sweep() { core_->Sweep(); }
void SimDevice::Settle() { core_->Settle(); }
void SimDevice::FailAt(std::size_t n) { core_->FailAt(n); }
void SimDevice::MayFail(bool may) { core_->MayFail(may); }
Status SimDevice::failure() const {
  return core_->failed() ? Status(Code::kInternal, "the simulated device has failed") : Status();
}
Row SimDevice::Make(MemoryUse, std::size_t bytes) { return core_->Allocate(bytes, false); }
Row SimDevice::MakeHost(MemoryUse, std::size_t bytes) { return core_->Allocate(bytes, true); }

}  // namespace prd::sim
