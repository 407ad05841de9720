// SIGINT and SIGTERM, in measurements that have something to clear away.
#ifndef PRD_TOOLS_PRDBENCH_INTERRUPTS_H_
#define PRD_TOOLS_PRDBENCH_INTERRUPTS_H_

namespace prd::bench {

// From now on they are remembered, and what waits in the kernel returns.
void CatchInterrupts();
// In a process that was forked: as it was before CatchInterrupts.
void LeaveInterrupts();
// The signal that came; 0: none did.
int InterruptedBy();
// Says so on stderr, and returns the exit code: 130 or 143.
int EndInterrupted();

}  // namespace prd::bench

#endif  // PRD_TOOLS_PRDBENCH_INTERRUPTS_H_
