// A training program for the booted system: fits ten numbers, and notes each step.
//
//   booted-worker NOTES STEP_MS
//
// Trains until the job is done. NOTES gets a line for each step: the wall clock in ns, and the
// steps of this process.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "prd/leave_on_signal.h"
#include "prd/session.h"

namespace {

int Fail(const char* what, const prd::Status& status) {
  std::fprintf(stderr, "%s: %s\n", what, status.ToString().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int notes = ::open(argv[1], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  const std::chrono::milliseconds step_time(std::atoi(argv[2]));
  auto session = prd::Session::FromEnvironment();
  if (!session.ok()) return Fail("session", session.status());
  const prd::LeaveOnSignal leaver(*session);
  std::array<float, 10> weights{};
  std::array<float, 10> gradients{};
  prd::Replica replica;
  replica.parameters = {{weights.data(), weights.size(), prd::DType::kF32}};
  replica.gradients = {{gradients.data(), gradients.size(), prd::DType::kF32}};
  replica.apply = [&] {
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] -= 0.5f * gradients[i];
  };
  if (const prd::Status status = session->Attach(std::move(replica)); !status.ok()) {
    return leaver.came() != 0 ? 0 : Fail("attach", status);
  }
  for (bool done = false; !done;) {
    std::this_thread::sleep_for(step_time);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      gradients[i] = weights[i] - static_cast<float>(i);
    }
    const auto step = session->Step({.samples = 1});
    if (!step.ok()) return leaver.came() != 0 ? 0 : Fail("step", step.status());
    const auto now =
        std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    const std::string line = std::to_string(now) + " " + std::to_string(step->steps) + "\n";
    if (::write(notes, line.data(), line.size()) < 0) return 1;
    done = step->done;
  }
  const prd::Status finished = session->Finish();
  return finished.ok() ? 0 : Fail("finish", finished);
}
