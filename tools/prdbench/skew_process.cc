#include "tools/prdbench/skew_process.h"

#include <prd/session.h>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "tools/prdbench/skew_board.h"

namespace prd::bench {
namespace {

// The gradient of an iteration is 1 in that iteration's channel and 0 in the others, so the result
// itself tells whose newest gradient is in it: one that comes a round late is in another channel.
class Gradient {
 public:
  Gradient(std::size_t count, int processes)
      : values_(count), channels_(std::min<std::size_t>(count, 16)), processes_(processes) {}

  Tensor tensor() { return {values_.data(), values_.size(), DType::kF32}; }

  void Compute(int iteration) {
    newest_ = static_cast<std::size_t>(iteration) % channels_;
    std::fill(values_.begin(), values_.end(), 0.0F);
    values_[newest_] = 1.0F;
    active_ = 0;
  }

  // Processes whose gradient of this iteration is in what was applied: results are means over all
  // processes.
  void Apply() { active_ += static_cast<double>(values_[newest_]) * processes_; }
  double active() const { return active_; }

 private:
  std::vector<float> values_;
  std::size_t channels_;
  int processes_;
  std::size_t newest_ = 0;
  double active_ = 0;
};

Status Measure(const SkewProcessOptions& options) {
  Result<Board> board = Board::Open(options.board);
  if (!board.ok()) return board.status();
  Result<Session> session = Session::Create(
      {.controller = options.controller, .job = options.job, .rank = options.process});
  if (!session.ok()) return session.status();
  std::vector<float> parameters(options.bytes / sizeof(float));
  Gradient gradient(parameters.size(), board->processes());
  Replica replica;
  replica.parameters = {{parameters.data(), parameters.size(), DType::kF32}};
  replica.gradients = {gradient.tensor()};
  replica.apply = [&gradient] { gradient.Apply(); };
  PRD_RETURN_IF_ERROR(session->Attach(std::move(replica)));

  for (int i = 0; i < board->iterations(); ++i) {
    gradient.Compute(i);
    const std::int64_t start = board->MeetAndAwaitTurn(options.process);
    const Result<StepResult> step = session->Step();
    const std::int64_t latency_ns = MonotonicNow() - start;
    if (!step.ok()) return step.status();
    board->at(i, options.process) = {.latency_ns = latency_ns, .active = gradient.active()};
  }
  board->Meet();  // nobody waits in Finish while others still measure
  return session->Finish();
}

}  // namespace

int RunSkewProcess(const SkewProcessOptions& options) {
  const Status status = Measure(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "process %d: %s\n", options.process, status.ToString().c_str());
  return 1;
}

}  // namespace prd::bench
