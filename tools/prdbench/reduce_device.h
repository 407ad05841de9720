// prdbench reduce --device: a group's weighted reduction on devices, by each of its ways.
#ifndef PRD_TOOLS_PRDBENCH_REDUCE_DEVICE_H_
#define PRD_TOOLS_PRDBENCH_REDUCE_DEVICE_H_

#include "tools/prdbench/reduce.h"

namespace prd::bench {

// A JSON object per line. First, of a communicator of so many ranks: {"bench":"communicator",
// "make_s":..,"bytes_per_rank":..,"bytes_per_rank_used":..,"abort_s":..}: what making it takes, and
// of the device's memory, before and after its first all-reduce. Then, per size and way,
// {"bench":"reduce","way":"collective","median_s":..,"plain_s":..,"ratio":..}: beside a plain
// ncclAllReduce of as many bytes on the very communicator of the collective way. That way and it
// take turns; their ratio is the median of the pairs', plain to ours. first_use_s, of the first
// size: of groups whose members have not been a group before, most of them connected by others.
// Returns the exit code.
int BenchReduceDevice(const ReduceOptions& options);

}  // namespace prd::bench

#endif  // PRD_TOOLS_PRDBENCH_REDUCE_DEVICE_H_
