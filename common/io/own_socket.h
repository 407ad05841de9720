// Where a daemon and the workers of this host meet when nothing else is said: an ipc socket in a
// folder that other users cannot put anything into, so that nobody else can listen in its place.
#ifndef PRD_COMMON_IO_OWN_SOCKET_H_
#define PRD_COMMON_IO_OWN_SOCKET_H_

#include <string>

#include "prd/status.h"

namespace prd {

// For a daemon: "ipc://FOLDER/workers". The folder is made if it is not there. It is
//   $RUNTIME_DIRECTORY where systemd gives one, else for root /run/prd;
//   $XDG_RUNTIME_DIR/prd or /run/user/UID/prd, where that is a folder of this user's own;
//   /tmp/prd-UID else, and refused if it is not this user's alone.
Result<std::string> MakeOwnEndpoint();

// For a worker: that of this user's daemon if there is its socket, else that of the host's daemon,
// /run/prd/workers, if there is that one. Else that of this user's daemon, which may come.
Result<std::string> FindOwnEndpoint();

}  // namespace prd

#endif  // PRD_COMMON_IO_OWN_SOCKET_H_
