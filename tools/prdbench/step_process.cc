#include "tools/prdbench/step_process.h"

#include <prd/session.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <utility>
#include <vector>

namespace prd::bench {
namespace {

using Clock = std::chrono::steady_clock;

double Us(Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

// As training does: a processor that slept would be slow after it.
void Compute(double ms) {
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                   std::chrono::duration<double, std::milli>(ms));
  while (Clock::now() < end) {
  }
}

Status Measure(const StepProcessOptions& options) {
  Result<Session> session = Session::FromEnvironment();
  if (!session.ok()) return session.status();
  const auto elements = static_cast<std::size_t>(options.elements);
  std::vector<std::vector<float>> parameters(static_cast<std::size_t>(options.tensors),
                                             std::vector<float>(elements));
  auto gradients = parameters;
  Replica replica;
  for (auto& tensor : parameters) replica.parameters.push_back({tensor.data(), elements});
  for (auto& tensor : gradients) replica.gradients.push_back({tensor.data(), elements});
  replica.apply = [] {};
  PRD_RETURN_IF_ERROR(session->Attach(std::move(replica)));

  std::vector<double> in_step_us;
  const Clock::time_point begun = Clock::now();
  for (int i = 0; i < options.steps; ++i) {
    Compute(options.step_ms);
    const Clock::time_point before = Clock::now();
    const Result<StepResult> step = session->Step({.samples = 1});
    if (!step.ok()) return step.status();
    in_step_us.push_back(Us(Clock::now() - before));
  }
  const double seconds = Us(Clock::now() - begun) / 1e6;
  std::sort(in_step_us.begin(), in_step_us.end());
  std::printf("{\"median_us\":%.1f,\"p90_us\":%.1f,\"steps_per_s\":%.3f}\n",
              in_step_us[in_step_us.size() / 2], in_step_us[in_step_us.size() * 9 / 10],
              options.steps / seconds);
  return session->Finish();
}

}  // namespace

int RunStepProcess(const StepProcessOptions& options) {
  const Status status = Measure(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "prdbench step-process: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace prd::bench
