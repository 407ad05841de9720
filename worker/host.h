// What a worker says about the machine it runs on.
#ifndef PRD_WORKER_HOST_H_
#define PRD_WORKER_HOST_H_

#include <string>

#include "prd/status.h"

namespace prd {

// Equal for processes that reach each other by ipc: the machine's boot, and the network namespace,
// which abstract sockets belong to. Unique when the system does not tell.
std::string HostId();

// For people.
std::string HostName();

// The address of this host that routes to a controller's endpoint; 127.0.0.1 for one on this host.
// kInvalidArgument when the endpoint names no host that can be found.
Result<std::string> AddressTowards(const std::string& endpoint);

}  // namespace prd

#endif  // PRD_WORKER_HOST_H_
