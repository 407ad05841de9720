// The meters that the daemon's metrics use too (server/meters), under prdctl's name.
#ifndef PRD_TOOLS_PRDCTL_METERS_H_
#define PRD_TOOLS_PRDCTL_METERS_H_

#include "server/meters/exchange.h"
#include "server/meters/run_view.h"
#include "server/meters/stragglers.h"
#include "tools/prdctl/source.h"

namespace prd::ctl {

using namespace meters;

// How the run's workers go about their steps, by its first record.
using meters::PlanOf;
Result<Plan> PlanOf(HistorySource& source, const RunInfo& run);

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_METERS_H_
