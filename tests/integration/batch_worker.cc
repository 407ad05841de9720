// A worker of a job with a batch, over the public API alone: linear regression in doubles, on data
// that a formula gives. A line per Step says which samples were computed; the last one has the
// parameters, which a single process that computes whole batches gets as well.
#include <prd/session.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t kSize = 8;
constexpr double kRate = 0.05;

using Vector = std::vector<double>;

// Adds the gradient of the squared error of one sample.
void AddGradient(std::int64_t sample, const Vector& parameters, Vector* sum) {
  Vector x(kSize);
  double error = -std::cos(static_cast<double>(sample));
  for (std::size_t i = 0; i < kSize; ++i) {
    x[i] = std::sin(static_cast<double>(sample) * static_cast<double>(i + 1));
    error += parameters[i] * x[i];
  }
  for (std::size_t i = 0; i < kSize; ++i) (*sum)[i] += error * x[i];
}

int Fail(const char* where, const prd::Status& status) {
  std::string text = status.ToString();
  std::replace(text.begin(), text.end(), '"', '\'');
  std::printf("{\"error\":\"%s\",\"where\":\"%s\"}\n", text.c_str(), where);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"A worker with a share of the job's batch, for the integration tests."};
  std::int64_t steps = 20;
  double sample_ms = 0.1;
  bool alone = false;
  std::int64_t pause_at = -1;
  app.add_option("--steps", steps, "Steps of the job until Finish");
  app.add_option("--sample-ms", sample_ms, "How long computing a sample takes");
  app.add_option("--pause-at", pause_at, "Pause before this step of the job");
  app.add_flag("--does-not-accumulate", alone, "Each Step takes one pass");
  CLI11_PARSE(app, argc, argv);

  auto options = prd::Session::OptionsFromEnvironment();
  if (!options.ok()) return Fail("environment", options.status());
  options->accumulates = !alone;
  auto session = prd::Session::Create(*std::move(options));
  if (!session.ok()) return Fail("create", session.status());

  Vector parameters(kSize), gradient(kSize), sum(kSize);
  prd::Replica replica;
  replica.parameters = {{parameters.data(), kSize, prd::DType::kF64}};
  replica.gradients = {{gradient.data(), kSize, prd::DType::kF64}};
  replica.apply = [&] {
    for (std::size_t i = 0; i < kSize; ++i) parameters[i] -= kRate * gradient[i];
  };
  const prd::Status attached = session->Attach(std::move(replica));
  if (!attached.ok()) return Fail("attach", attached);
  std::int64_t summed = 0;  // samples, of the step at hand
  while (session->iteration() < steps) {
    if (summed == 0 && session->iteration() + 1 == pause_at) {
      pause_at = -1;
      prd::PauseScope pause(*session);
      const prd::Status resumed = pause.Resume();
      if (!resumed.ok()) return Fail("resume", resumed);
    }
    const prd::BatchShare share = session->share();
    for (std::int64_t i = 0; i < share.samples; ++i) {
      AddGradient((share.step - 1) * share.batch + share.first + i, parameters, &sum);
    }
    const auto work = static_cast<double>(share.samples) * sample_ms;
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(work));
    summed += share.samples;
    for (std::size_t i = 0; i < kSize; ++i) gradient[i] = sum[i] / static_cast<double>(summed);
    const auto result = session->Step({.samples = share.samples});
    if (!result.ok()) return Fail("step", result.status());
    std::printf(
        "{\"step\":%lld,\"first\":%lld,\"samples\":%lld,\"partial\":%s,\"adopted\":%s,"
        "\"iteration\":%lld,\"members\":%zu}\n",
        static_cast<long long>(share.step), static_cast<long long>(share.first),
        static_cast<long long>(share.samples), result->partial ? "true" : "false",
        result->adopted ? "true" : "false", static_cast<long long>(result->iteration),
        result->members.size());
    std::fflush(stdout);
    if (result->partial) continue;
    summed = 0;
    std::fill(sum.begin(), sum.end(), 0.0);
  }
  const prd::Progress progress = session->progress();
  const prd::Status finished = session->Finish();
  if (!finished.ok()) return Fail("finish", finished);
  std::string text;
  for (const double value : parameters) {
    char number[40];
    std::snprintf(number, sizeof number, "%s%.17g", text.empty() ? "" : ",", value);
    text += number;
  }
  std::printf(
      "{\"finished\":true,\"rank\":%d,\"steps\":%lld,\"samples\":%lld,\"parameters\":[%s]}\n",
      session->rank(), static_cast<long long>(progress.own_steps),
      static_cast<long long>(progress.own_samples), text.c_str());
  return 0;
}
