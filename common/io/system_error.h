// Errors of system calls, and of ZeroMQ's, as a Status.
#ifndef PRD_COMMON_IO_SYSTEM_ERROR_H_
#define PRD_COMMON_IO_SYSTEM_ERROR_H_

#include <zmq.h>

#include <cerrno>
#include <string>

#include "prd/status.h"

namespace prd {

// `what`: that failed, for the text. kResourceExhausted where descriptors or memory are wanting,
// else `code`.
inline Status SystemError(Code code, const std::string& what, int error) {
  const bool descriptors = error == EMFILE || error == ENFILE;
  const std::string hint = descriptors ? "; more descriptors: ulimit -n, LimitNOFILE" : "";
  return Status(descriptors || error == ENOMEM ? Code::kResourceExhausted : code,
                what + ": " + zmq_strerror(error) + hint);
}

}  // namespace prd

#endif  // PRD_COMMON_IO_SYSTEM_ERROR_H_
