// Whether what a training program gives a session can be used. Errors are kInvalidArgument and name
// what was found, what is allowed, and where it comes from.
#ifndef PRD_WORKER_SESSION_CHECKS_H_
#define PRD_WORKER_SESSION_CHECKS_H_

#include <chrono>
#include <cstdint>
#include <vector>

#include "prd/session.h"

namespace prd {

// 34 years. A longer time would not fit into nanoseconds.
inline constexpr std::chrono::milliseconds kLongestTimeout{std::int64_t{1} << 40};

Status CheckOptions(const SessionOptions& options);
// Checks the keys, and completes them: the public one follows from the secret one.
Status SettleKeys(SessionOptions* options);

// Tensors alone. Whether their memory is on the replica's device: replica_home.h.
Status CheckTensors(const std::vector<Tensor>& tensors, const char* which);
Status CheckGradients(const std::vector<Tensor>& parameters, const std::vector<Tensor>& gradients);
// No two tensors share memory.
Status CheckApart(const Replica& replica, const std::vector<Tensor>& gradients);
// All but `apply`.
Status CheckReplica(const Replica& replica);

// Number, sizes and dtypes.
bool SameShapes(const std::vector<Tensor>& one, const std::vector<Tensor>& other);

}  // namespace prd

#endif  // PRD_WORKER_SESSION_CHECKS_H_
