// What a worker writes down about its own steps.
#ifndef PRD_WORKER_EXAMPLES_STEP_LOG_H_
#define PRD_WORKER_EXAMPLES_STEP_LOG_H_

#include <prd/session.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

namespace example {

// A file of JSON lines. The first: {"rank","workers","engine","start_ns","step_ns"}. Then per step
// {"end_ns","iteration","group","members","rounds","included","local_steps","compute_ns","wait_ns",
// "reduce_ns","sent_bytes","attempts","groups","samples","partial","discarded","loss"}, where times
// are of the host's monotonic clock, what StepResult has is as there (with several rounds, the
// group is the newest), and a step that was cut short is discarded and has a loss of null.
// "samples" are those of the pass; a step whose first passes are partial has a line for each. The
// loss of a replica on a device is the last one that was read back, and null before the first.
// "groups" counts the groups so far by how they were reduced (GroupTransports):
// {"collective","exchange","staged"}. At a good end {"finished":true,"groups","end_ns"}, with
// "validation_loss" where there is one. Lines are buffered (Flush), so that a step costs about a
// microsecond.
std::string Encode(const prd::GroupTransports& groups);

class StepLog {
 public:
  // No path: everything is dropped. Throws std::runtime_error when it cannot be written.
  explicit StepLog(const std::string& path);

  // step_ns: how long the worker's own steps are meant to take; 0 = as long as they do.
  void Start(const prd::Session& session, std::int64_t start_ns, std::int64_t step_ns);
  // No loss: the step was cut short.
  void Step(const prd::StepResult& step, const prd::GroupTransports& groups, std::int64_t end_ns,
            std::int64_t samples, std::optional<double> loss);
  void Finished(const prd::GroupTransports& groups, std::int64_t end_ns,
                std::optional<double> validation_loss);
  void Flush();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace example

#endif  // PRD_WORKER_EXAMPLES_STEP_LOG_H_
