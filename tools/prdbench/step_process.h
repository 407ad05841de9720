// A worker whose training is nothing but steps: what a step costs in C++, for `tools/measure step`.
#ifndef PRD_TOOLS_PRDBENCH_STEP_PROCESS_H_
#define PRD_TOOLS_PRDBENCH_STEP_PROCESS_H_

namespace prd::bench {

struct StepProcessOptions {
  int tensors = 1;     // of the model
  int elements = 100;  // of each, float32
  int steps = 1000;
  double step_ms = 0;  // each computes so long before Step
};

// Joins the job that the environment names, makes the steps, and prints a JSON object: the median
// and the 90th percentile of the time in Step, and steps per second. Returns the exit code.
int RunStepProcess(const StepProcessOptions& options);

}  // namespace prd::bench

#endif  // PRD_TOOLS_PRDBENCH_STEP_PROCESS_H_
