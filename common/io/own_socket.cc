#include "common/io/own_socket.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "common/io/file_access.h"

namespace prd {
namespace {

constexpr const char* kHostFolder = "/run/prd";

std::string EndpointIn(const std::string& folder) { return "ipc://" + folder + "/workers"; }

bool IsOwnFolder(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() &&
         (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

std::string OwnFolder() {
  const uid_t self = ::geteuid();
  if (self == 0) return kHostFolder;
  const char* session = std::getenv("XDG_RUNTIME_DIR");
  if (session != nullptr && *session == '/' && IsOwnFolder(session)) {
    return std::string(session) + "/prd";
  }
  const std::string usual = "/run/user/" + std::to_string(self);
  if (IsOwnFolder(usual)) return usual + "/prd";
  return "/tmp/prd-" + std::to_string(self);
}

// Others may have made it first.
Status CheckOwn(const std::string& folder) {
  if (IsOwnFolder(folder)) return Status::Ok();
  return Status(Code::kFailedPrecondition,
                folder +
                    ": found a folder that is not this user's alone, or none at all, where "
                    "the socket of its daemon is to be; remove it, or name an endpoint (listen "
                    "in the daemon's config, PRD_CONTROLLER)");
}

bool IsThere(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

}  // namespace

Result<std::string> MakeOwnEndpoint() {
  // "A:B" if there are several.
  const char* given = std::getenv("RUNTIME_DIRECTORY");
  if (given != nullptr && *given == '/') {
    const std::string folders(given);
    return EndpointIn(folders.substr(0, folders.find(':')));
  }
  const std::string folder = OwnFolder();
  const mode_t mode = ::geteuid() == 0 ? 0755 : 0700;
  if (::mkdir(folder.c_str(), mode) != 0 && errno != EEXIST) {
    return Status(Code::kUnavailable, folder + ": cannot be made: " + std::strerror(errno));
  }
  PRD_RETURN_IF_ERROR(CheckOwn(folder));
  return EndpointIn(folder);
}

Result<std::string> FindOwnEndpoint() {
  const std::string folder = OwnFolder();
  if (folder == kHostFolder) return EndpointIn(folder);
  if (!IsThere(folder + "/workers") && IsThere(std::string(kHostFolder) + "/workers")) {
    return EndpointIn(kHostFolder);
  }
  if (IsThere(folder)) PRD_RETURN_IF_ERROR(CheckOwn(folder));
  return EndpointIn(folder);
}

}  // namespace prd
