// What a worker says about the machine it runs on.
#ifndef PRD_WORKER_HOST_H_
#define PRD_WORKER_HOST_H_

#include <chrono>
#include <functional>
#include <string>

#include "prd/status.h"

namespace prd {

// Equal for processes that reach each other by ipc: the machine's boot, and the network namespace,
// which abstract sockets belong to. Unique when the system does not tell.
std::string HostId();

// For people.
std::string HostName();

// An address that only processes of this host have: 127.0.0.0/8 or ::1.
bool IsLoopbackAddress(const std::string& address);

// The address of this host that routes to a controller's endpoint, the first way there (WaysTo);
// 127.0.0.1 for an ipc endpoint.
// kUnavailable when the endpoint names no host that can be found now; kInvalidArgument when no
// route leads there, and when the address is link-local: other hosts cannot reach that.
Result<std::string> AddressTowards(const std::string& endpoint);

// The same, but it asks again while the name cannot be found (kUnavailable), as before DNS has it:
// until `end`, or until a signal's handler has run in this thread. Before the first pause it calls
// `waits` with the reason.
Result<std::string> AwaitAddressTowards(const std::string& endpoint,
                                        std::chrono::steady_clock::time_point end,
                                        const std::function<void(const std::string& why)>& waits);

// Where AddressTowards leads to this host itself by its name, as Debian's /etc/hosts has it: an
// address that other hosts have for it, that of its default route or of an interface that is up.
// Empty: it has none, or the endpoint says by a loopback address or localhost that all are here.
std::string AddressOfHost(const std::string& endpoint);

// Whether other workers may reach this one at what was given: PRD_ADDRESS where nothing else is
// announced, and PRD_ANNOUNCE_ADDRESS. `remote`: the controller is on another host.
Status CheckAddress(const std::string& address, bool remote);
Status CheckAnnounced(const std::string& announce, bool remote);

}  // namespace prd

#endif  // PRD_WORKER_HOST_H_
