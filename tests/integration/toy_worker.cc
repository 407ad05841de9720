// A worker as small as one can be, over the public API alone: it pulls a vector of floats towards a
// target that depends on its rank, and prints a JSON line per step and one at the end.
#include <prd/leave_on_signal.h>
#include <prd/session.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/toy_model.h"

namespace {

std::string List(const std::vector<int>& values) {
  std::string text = "[";
  for (std::size_t i = 0; i < values.size(); ++i) {
    text += (i > 0 ? "," : "") + std::to_string(values[i]);
  }
  return text + "]";
}

// A hash of the bits.
std::string Hash(const std::vector<float>& values) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const float value : values) {
    hash = (hash ^ std::bit_cast<std::uint32_t>(value)) * 0x100000001b3u;
  }
  return std::to_string(hash);
}

int Fail(const char* where, const prd::Status& status) {
  std::string text = status.ToString();
  std::replace(text.begin(), text.end(), '"', '\'');
  std::replace(text.begin(), text.end(), '\n', ' ');
  std::printf("{\"error\":\"%s\",\"where\":\"%s\"}\n", text.c_str(), where);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"A toy worker for the integration tests."};
  int steps = 20;
  double step_ms = 20;
  std::size_t size = 10'000;
  bool leave = false;
  bool stay = false;
  bool forks = false;
  int pause_at = -1;
  int pause_every = 0;
  double pause_ms = 0;
  float offset = -1;
  std::string device, stop_file, hang_file, velocity = "none";
  app.add_option("--steps", steps, "Local steps before Finish");
  app.add_option("--stop-file", stop_file, "Fewer steps: until this file exists");
  app.add_option("--hang-file", hang_file, "A step is computed while this file exists");
  app.add_option("--step-ms", step_ms, "How long computing a step takes");
  app.add_option("--size", size, "Floats in the model");
  app.add_option("--velocity", velocity,
                 "own: trains with momentum; state: the same, and prd has it")
      ->check(CLI::IsMember({"none", "own", "state"}));
  app.add_option("--device", device, "cuda:N: the model is there, of PRD_CUDA_MODULE");
  app.add_flag("--leave", leave, "Leave instead of Finish");
  app.add_option("--pause-at", pause_at, "Pause before the step of this number");
  app.add_option("--pause-every", pause_every, "And again after so many more");
  app.add_option("--pause-ms", pause_ms, "For so long");
  app.add_flag("--fork", forks, "Has a child process, which lives on for a while");
  app.add_option("--offset", offset, "The model starts there, and the target is rank + this");
  app.add_flag("--past-goal", stay, "Goes on when the job's goal is reached");
  CLI11_PARSE(app, argc, argv);

  auto session = prd::Session::FromEnvironment();
  if (!session.ok()) return Fail("environment", session.status());
  const prd::LeaveOnSignal leaver(*session, {SIGTERM, SIGINT});
  const auto fail = [&leaver](const char* where, const prd::Status& status) {
    if (leaver.came() == 0) return Fail(where, status);
    std::printf("{\"left\":\"%s\",\"where\":\"%s\"}\n", status.message().c_str(), where);
    return 0;
  };

  const float own = offset >= 0 ? offset : static_cast<float>(getpid() % 1000);
  std::string error;
  const std::unique_ptr<ToyModel> model = device.empty()
                                              ? MakeHostModel(size, own,
                                                              velocity == "state" ? Velocity::kState
                                                              : velocity == "own" ? Velocity::kOwn
                                                                                  : Velocity::kNone)
                                              : MakeDeviceModel(device, size, own, &error);
  if (model == nullptr) return Fail("device", prd::Status(prd::Code::kUnavailable, error));
  int applied = 0;
  prd::Replica replica = model->replica();
  replica.apply = [&] {
    ++applied;
    if (session->iteration() < 0) std::abort();  // may be asked for here, too
    model->Apply();
  };
  const prd::Status attached = session->Attach(std::move(replica));
  if (!attached.ok()) return fail("attach", attached);
  std::printf(
      "{\"attached\":true,\"rank\":%d,\"iteration\":%lld,\"first\":%.9g,\"engine\":\"%s\"}\n",
      session->rank(), static_cast<long long>(session->iteration()),
      static_cast<double>(model->Parameters()[0]), session->engine().c_str());
  std::fflush(stdout);

  if (forks) {
    const pid_t child = fork();
    if (child == 0) {
      sleep(120);
      _exit(0);
    }
    std::printf("{\"child\":%d}\n", child);
  }

  const float target = static_cast<float>(session->rank()) + std::max(offset, 0.0f);
  const auto stopped = [&] { return !stop_file.empty() && access(stop_file.c_str(), F_OK) == 0; };
  bool done = false;
  for (int step = 0; step < steps && !stopped() && (stay || !done); ++step) {
    if (step == pause_at) {
      if (pause_every > 0) pause_at += pause_every;
      prd::PauseScope pause(*session);
      if (!pause.status().ok()) return fail("pause", pause.status());
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(pause_ms));
      const prd::Status resumed = pause.Resume();
      if (!resumed.ok()) return fail("resume", resumed);
    }
    model->ComputeGradient(target);
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(step_ms));
    while (!hang_file.empty() && access(hang_file.c_str(), F_OK) == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    session->TellLoss(1.0 / (1 + step));
    auto result = session->Step({.samples = 32});
    if (!result.ok()) return fail("step", result.status());
    done = result->done;
    const prd::Progress progress = session->progress();
    // To read a model waits for its device, so only where a test asks for it.
    const bool shown = offset >= 0 || velocity != "none";
    const std::vector<float> now = shown ? model->Parameters() : std::vector<float>{0};
    const auto [least, most] = std::minmax_element(now.begin(), now.end());
    std::printf(
        "{\"step\":%d,\"iteration\":%lld,\"group\":%llu,\"members\":%s,\"attempts\":%d,"
        "\"adopted\":%s,\"steps\":%lld,\"job_steps\":%lld,\"workers\":%d,\"done\":%s,"
        "\"model\":\"%s\",\"engine\":\"%s\",\"applied\":%d,\"waited_ms\":%.1f,"
        "\"least\":%.9g,\"most\":%.9g}\n",
        step, static_cast<long long>(result->iteration),
        static_cast<unsigned long long>(result->group), List(result->members).c_str(),
        result->attempts, result->adopted ? "true" : "false", static_cast<long long>(result->steps),
        static_cast<long long>(progress.steps), progress.workers, done ? "true" : "false",
        velocity == "none" ? "" : Hash(now).c_str(), session->engine().c_str(), applied,
        std::chrono::duration<double, std::milli>(result->waited).count(),
        static_cast<double>(*least), static_cast<double>(*most));
    std::fflush(stdout);
  }
  const prd::Status finished = leave ? session->Leave("asked to") : session->Finish();
  if (!finished.ok()) return fail("finish", finished);
  double sum = 0;
  for (const float value : model->Parameters()) sum += static_cast<double>(value);
  std::printf("{\"finished\":true,\"rank\":%d,\"sum\":%.17g,\"applied\":%d}\n", session->rank(),
              sum, applied);
  return 0;
}
