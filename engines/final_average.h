// The weights of a run's final average.
#ifndef PRD_ENGINES_FINAL_AVERAGE_H_
#define PRD_ENGINES_FINAL_AVERAGE_H_

#include <cstdint>
#include <vector>

#include "common/base/history.h"
#include "common/base/messages.h"

namespace prd {

// Fills in weights, iteration and reason. Members whose replicas the others have left behind have
// weight 0 and take the average: where replicas are equal by design, all that are not the newest;
// elsewhere those that are behind by more than a twentieth of the job's steps in this run, and by
// more than twice what each worker may be ahead of what it has told.
//
// A replica lacks the steps that the job has made since its worker stopped. Where groups are
// announced, and go on at the largest iteration of a member, it lacks the steps that the others
// have made since its last group, if these are more, and more than 24 iterations. Steps that others
// tell later may be from before: Roster::NoteTold. It is behind by what it lacks more than the
// replica that lacks least. So a worker that stalls, and wakes when the others have finished, does
// not pull their model back.
//
// `stopped_at`, by member: the job's steps in this run when the member stopped; `gained`: its steps
// in this run now.
void WeighFinalAverage(const Plan& plan, std::int64_t gained,
                       const std::vector<std::int64_t>& stopped_at, GroupFormed* form);

}  // namespace prd

#endif  // PRD_ENGINES_FINAL_AVERAGE_H_
