// How long local steps take, and devices that several workers share.
#ifndef PRD_TOOLS_SIM_STEP_TIMES_H_
#define PRD_TOOLS_SIM_STEP_TIMES_H_

#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/base/prng.h"
#include "common/base/time.h"
#include "tools/sim/workload.h"

namespace prd::sim {

// A standard normal number from two draws (Box and Muller).
double Normal(Prng* prng);

// Draws the work of steps: what each would take on a device of its own. Every worker draws from a
// sequence of its own, so that engines compared on one seed meet the same steps.
class StepTimes {
 public:
  StepTimes(const Workload& workload, std::uint64_t seed);

  // The worker's next one, which begins now; only slow_from_ms and slow_to_ms look at the time.
  DurationNs Next(std::uint32_t worker, Instant now = {});
  // A pass over so many samples, where a step would take so long.
  DurationNs Of(DurationNs step, std::int64_t samples) const;

  // Its mean: what a worker needs per step when it never shares or hiccups more than on average.
  double MeanNs(std::uint32_t worker) const;
  // All steps of a worker take MeanNs.
  bool exact() const;

 private:
  double Draw(Prng* prng) const;
  bool Slow(std::uint32_t worker, Instant now) const;
  double Part(std::int64_t samples) const;
  double InjectedMs(std::uint32_t worker, std::uint64_t step) const;
  double MeanInjectedMs() const;

  const ComputePart compute_;
  const std::uint64_t seed_;
  const std::int64_t samples_;  // of a step that takes as long as a draw says
  const std::uint64_t workers_;
  std::vector<std::uint64_t> steps_;                      // taken, by worker
  const std::vector<std::vector<DurationNs>>* recorded_;  // the workload's; outlives this
  std::vector<std::size_t> next_recorded_;
  std::vector<Prng> draws_;
};

// Devices, each shared by some workers: while k of them compute at once, each goes at
// 1 / (1 + (k - 1) * contention) of full speed.
class Devices {
 public:
  struct Finish {
    std::uint32_t worker = 0;
    Instant at;
    std::uint64_t ticket = 0;  // valid until the worker's next one
  };

  explicit Devices(const Workload& workload);

  // The worker begins to compute. Every member of *changed finishes at the time it names, unless a
  // later call says otherwise.
  void Begin(Instant now, std::uint32_t worker, DurationNs work, std::vector<Finish>* changed);
  // The worker computes no more: it is through, or dead. No-op when it was not computing.
  void End(Instant now, std::uint32_t worker, std::vector<Finish>* changed);
  // False for a ticket that a later Begin or End has made void.
  bool Valid(std::uint32_t worker, std::uint64_t ticket) const;

 private:
  struct Slot {
    double left_ns = 0;  // of the step, at full speed
    std::uint64_t ticket = 0;
    std::uint32_t device = 0;
    bool active = false;
  };
  struct Device {
    std::vector<std::uint32_t> active;
    Instant since;  // left_ns of the active ones is as of then
  };
  void Advance(Instant now, Device* device);
  void Reschedule(Instant now, const Device& device, std::vector<Finish>* changed);
  double Slowdown(const Device& device) const;

  const double contention_;
  std::vector<Slot> slots_;  // by worker
  std::vector<Device> devices_;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_STEP_TIMES_H_
