// What tells runs that have ended apart, beside RunEnded.
#ifndef PRD_ENGINES_RUN_END_H_
#define PRD_ENGINES_RUN_END_H_

namespace prd {

// WorkerLeft::reason of a worker that has the final average. It is in RunEnded::reason of the last.
inline constexpr char kJobIsDone[] = "the job is done";

}  // namespace prd

#endif  // PRD_ENGINES_RUN_END_H_
