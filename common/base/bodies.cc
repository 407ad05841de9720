// The variants of messages and records, compiled once (common/base/variant.h).
#include "common/base/history.h"
#include "common/base/messages.h"

namespace prd {

PRD_DEFINE_VARIANT(WorkerBody)
PRD_DEFINE_VARIANT(ControllerBody)
PRD_DEFINE_VARIANT(RecordBody)

}  // namespace prd
