// Has the kernel drop the first packets (SYN) of new TCP connections to a listening socket: of all,
// or from some sources. Whoever sent one sends it again, after a second and then ever more rarely,
// and costs this process nothing. Connections that there are notice nothing. Local sockets have no
// such packets, so this changes nothing there. False: the kernel has no socket filters.
#ifndef PRD_COMMON_IO_SYN_FILTER_H_
#define PRD_COMMON_IO_SYN_FILTER_H_

#include <cstddef>
#include <string>
#include <vector>

namespace prd {

inline constexpr std::size_t kMaxSynSources = 256;

// A source is "4" and the four bytes of an IPv4 address, or "6" and the first eight bytes of an
// IPv6 address.
bool IsSynSource(const std::string& source);

// Others, and those after kMaxSynSources, are left out.
bool DropSynsFrom(int listener, const std::vector<std::string>& sources);
bool DropAllSyns(int listener);
bool DropNoSyns(int listener);

}  // namespace prd

#endif  // PRD_COMMON_IO_SYN_FILTER_H_
