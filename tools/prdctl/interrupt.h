// Ctrl-C and SIGTERM, for commands that go on until one of them comes.
#ifndef PRD_TOOLS_PRDCTL_INTERRUPT_H_
#define PRD_TOOLS_PRDCTL_INTERRUPT_H_

#include "prd/status.h"

namespace prd::ctl {

// Once, before the others.
Status OpenInterrupts();
// From now on the signals interrupt; before, they end the process.
void EndOnSignals();
bool Interrupted();
// Readable once a signal has come.
int InterruptFd();

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_INTERRUPT_H_
