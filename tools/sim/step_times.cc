#include "tools/sim/step_times.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace prd::sim {
namespace {

// Of "pareto", in means: one step in 400,000 of tail 3 would be longer, and last as long as all
// others together.
constexpr double kLongest = 50;

// SplitMix64's output function (Steele, Lea and Flood, OOPSLA 2014), as in the example trainer.
std::uint64_t Mix64(std::uint64_t counter) {
  return Prng((counter - 1) * 0x9e3779b97f4a7c15u).Next();
}

}  // namespace

double Normal(Prng* prng) {
  const double u = 1 - prng->Unit();  // never 0
  const double v = prng->Unit();
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

StepTimes::StepTimes(const Workload& workload, std::uint64_t seed)
    : compute_(workload.compute),
      seed_(seed),
      samples_(workload.cluster.samples),
      workers_(static_cast<std::uint64_t>(workload.cluster.workers)),
      steps_(workers_),
      recorded_(&workload.recorded) {
  const auto workers = static_cast<std::uint64_t>(workload.cluster.workers);
  next_recorded_.assign(recorded_->empty() ? 0 : workers, 0);
  draws_.reserve(workers);
  for (std::uint64_t i = 0; i < workers; ++i) {
    draws_.emplace_back(Prng(seed ^ (0x5157u + i * 0x9e3779b97f4a7c15u)).Next());
  }
}

double StepTimes::Draw(Prng* prng) const {
  const double mean = compute_.mean_ms * kMillisecond;
  switch (compute_.model) {
    case ComputePart::Model::kConstant:
      return mean;
    case ComputePart::Model::kNormal:  // cut off where steps would get no longer positive
      return std::max(mean * (1 + compute_.spread * Normal(prng)), mean / 20);
    case ComputePart::Model::kLogNormal: {
      const double sigma2 = std::log1p(compute_.spread * compute_.spread);
      return mean * std::exp(std::sqrt(sigma2) * Normal(prng) - sigma2 / 2);
    }
    case ComputePart::Model::kPareto: {
      const double least = mean * (compute_.tail - 1) / compute_.tail;
      return std::min(least * std::pow(1 - prng->Unit(), -1 / compute_.tail), kLongest * mean);
    }
  }
  return mean;
}

double StepTimes::InjectedMs(std::uint32_t worker, std::uint64_t step) const {
  switch (compute_.inject) {
    case ComputePart::Inject::kNone:
      return 0;
    case ComputePart::Inject::kOne:
      return Mix64(Mix64(seed_) + step) % workers_ == worker ? compute_.inject_max_ms : 0;
    case ComputePart::Inject::kShifted: {
      const auto place = static_cast<double>((worker + step) % workers_);
      const double share = workers_ > 1 ? place / static_cast<double>(workers_ - 1) : 0;
      return compute_.inject_min_ms + share * (compute_.inject_max_ms - compute_.inject_min_ms);
    }
  }
  return 0;
}

bool StepTimes::Slow(std::uint32_t worker, Instant now) const {
  const Instant from{FromMs(compute_.slow_from_ms)};
  const bool ends = compute_.slow_to_ms > 0 && now.ns >= FromMs(compute_.slow_to_ms);
  return static_cast<std::int64_t>(worker) < compute_.slow_workers && now >= from && !ends;
}

double StepTimes::Part(std::int64_t samples) const {
  const auto whole = static_cast<double>(std::max<std::int64_t>(samples_, 1));
  return compute_.fixed_part + (1 - compute_.fixed_part) * static_cast<double>(samples) / whole;
}

DurationNs StepTimes::Of(DurationNs step, std::int64_t samples) const {
  return static_cast<DurationNs>(std::clamp(static_cast<double>(step) * Part(samples), 1.0, 1e15));
}

bool StepTimes::exact() const {
  const bool alike = compute_.model == ComputePart::Model::kConstant || compute_.spread == 0;
  const bool pareto = compute_.model == ComputePart::Model::kPareto;
  const bool hiccups = compute_.hiccup_probability > 0 && compute_.hiccup_factor != 1;
  const bool shares =
      (compute_.shared_workers > 1 || compute_.workers_per_device > 1) && compute_.contention > 0;
  const bool changes = compute_.slow_from_ms > 0 || compute_.slow_to_ms > 0;
  return recorded_->empty() && alike && !pareto && !hiccups && !shares && !changes &&
         compute_.inject == ComputePart::Inject::kNone;
}

DurationNs StepTimes::Next(std::uint32_t worker, Instant now) {
  if (!recorded_->empty()) {
    const std::vector<DurationNs>& steps = (*recorded_)[worker % recorded_->size()];
    return steps.empty() ? kMillisecond : steps[next_recorded_[worker]++ % steps.size()];
  }
  Prng* prng = &draws_[worker];
  double ns = Draw(prng);
  if (Slow(worker, now)) ns *= compute_.slow_factor;
  if (compute_.hiccup_probability > 0 && prng->Unit() < compute_.hiccup_probability) {
    ns *= compute_.hiccup_factor;
  }
  ns += InjectedMs(worker, steps_[worker]++) * kMillisecond;
  return static_cast<DurationNs>(std::clamp(ns, 1.0, 1e15));
}

double StepTimes::MeanInjectedMs() const {
  double sum = 0;
  if (compute_.inject == ComputePart::Inject::kOne) sum = compute_.inject_max_ms;
  for (std::uint32_t i = 0; compute_.inject == ComputePart::Inject::kShifted && i < workers_; ++i) {
    sum += InjectedMs(i, 0);
  }
  return sum / static_cast<double>(workers_);
}

double StepTimes::MeanNs(std::uint32_t worker) const {
  if (!recorded_->empty()) {
    const std::vector<DurationNs>& steps = (*recorded_)[worker % recorded_->size()];
    double sum = 0;
    for (const DurationNs ns : steps) sum += static_cast<double>(ns);
    return steps.empty() ? kMillisecond : sum / static_cast<double>(steps.size());
  }
  double ns = compute_.mean_ms * kMillisecond;
  if (static_cast<std::int64_t>(worker) < compute_.slow_workers) ns *= compute_.slow_factor;
  ns *= 1 + compute_.hiccup_probability * (compute_.hiccup_factor - 1);
  return ns + MeanInjectedMs() * kMillisecond;
}

// ---- devices ----

Devices::Devices(const Workload& workload) : contention_(workload.compute.contention) {
  const auto workers = static_cast<std::uint32_t>(workload.cluster.workers);
  const auto shared = static_cast<std::uint32_t>(workload.compute.shared_workers);
  const auto each = static_cast<std::uint32_t>(
      std::min<std::int64_t>(workload.compute.workers_per_device, workers));
  slots_.resize(workers);
  for (std::uint32_t i = 0; i < workers; ++i) {
    slots_[i].device = i < shared ? 0 : (shared > 0 ? 1 : 0) + (i - shared) / each;
  }
  devices_.resize(slots_.empty() ? 0 : slots_.back().device + 1);
}

double Devices::Slowdown(const Device& device) const {
  const auto others = static_cast<double>(device.active.size()) - 1;
  return 1 + std::max(others, 0.0) * contention_;
}

void Devices::Advance(Instant now, Device* device) {
  const double done = static_cast<double>(now - device->since) / Slowdown(*device);
  for (const std::uint32_t worker : device->active) slots_[worker].left_ns -= done;
  device->since = now;
}

void Devices::Reschedule(Instant now, const Device& device, std::vector<Finish>* changed) {
  const double slowdown = Slowdown(device);
  for (const std::uint32_t worker : device.active) {
    Slot& slot = slots_[worker];
    const double ns = std::max(std::ceil(slot.left_ns * slowdown), 1.0);
    changed->push_back(
        {.worker = worker, .at = now + static_cast<DurationNs>(ns), .ticket = ++slot.ticket});
  }
}

void Devices::Begin(Instant now, std::uint32_t worker, DurationNs work,
                    std::vector<Finish>* changed) {
  Slot& slot = slots_[worker];
  Device& device = devices_[slot.device];
  Advance(now, &device);
  device.active.push_back(worker);
  slot.active = true;
  slot.left_ns = static_cast<double>(work);
  Reschedule(now, device, changed);
}

void Devices::End(Instant now, std::uint32_t worker, std::vector<Finish>* changed) {
  Slot& slot = slots_[worker];
  if (!slot.active) return;
  Device& device = devices_[slot.device];
  Advance(now, &device);
  std::erase(device.active, worker);
  slot.active = false;
  ++slot.ticket;
  Reschedule(now, device, changed);
}

bool Devices::Valid(std::uint32_t worker, std::uint64_t ticket) const {
  return slots_[worker].active && slots_[worker].ticket == ticket;
}

}  // namespace prd::sim
