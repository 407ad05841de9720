// What operators do to jobs (prdctl): from the admin socket to the controller.
#ifndef PRD_SERVER_OPERATE_H_
#define PRD_SERVER_OPERATE_H_

#include <string>

#include "common/base/admin.h"
#include "common/base/time.h"
#include "engines/controller.h"
#include "prd/status.h"
#include "server/access.h"

namespace prd {

// What the operator wants, for logs: "evict rank 3 of job mnist: its disk fails".
std::string Words(const Act& act);

// Does it, as far as `rights` go, and says what has been done. Nothing is recorded before the
// controller's next Flush. An error says why it cannot be done, and nothing has changed.
Result<std::string> Operate(Instant now, const Rights& rights, const Act& act,
                            Controller* controller);

}  // namespace prd

#endif  // PRD_SERVER_OPERATE_H_
