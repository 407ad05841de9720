#include "common/io/file_access.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace prd {
namespace {

constexpr std::size_t kMaxBytes = 16 << 20;

std::string CredentialsFolder() {
  const char* folder = std::getenv("CREDENTIALS_DIRECTORY");
  return folder != nullptr && *folder == '/' ? std::string(folder) + "/" : std::string();
}

// A user's own files may be root's, too: root may change everything anyway.
Status CheckOwner(const std::string& name, const struct stat& info) {
  const uid_t self = ::geteuid();
  if (info.st_uid == self || info.st_uid == 0) return Status::Ok();
  return Status(Code::kFailedPrecondition,
                name + ": its owner is user " + std::to_string(info.st_uid) +
                    ", who may change it; chown " + std::to_string(self) + " it");
}

Status CheckFile(const std::string& path, FileKind kind, const struct stat& info) {
  PRD_RETURN_IF_ERROR(CheckOwner(path, info));
  const auto refused = [&](const char* why, const char* command) {
    return Status(Code::kFailedPrecondition, path + ": " + why + "; " + command + " it");
  };
  const std::string folder = CredentialsFolder();
  const bool credential = !folder.empty() && path.starts_with(folder);
  if (kind == FileKind::kSecret) {
    if ((info.st_mode & S_IROTH) != 0) {
      return refused("everybody can read this secret key", "chmod 600");
    }
    if ((info.st_mode & S_IRGRP) != 0 && !credential) {
      return refused("its group can read this secret key", "chmod 600");
    }
  }
  if ((info.st_mode & S_IWOTH) != 0) return refused("everybody can write it", "chmod go-w");
  if ((info.st_mode & S_IWGRP) != 0) return refused("its group can write it", "chmod go-w");
  return Status::Ok();
}

struct File {
  explicit File(int descriptor) : fd(descriptor) {}
  ~File() {
    if (fd >= 0) ::close(fd);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  const int fd;
};

}  // namespace

Result<std::string> ReadOwnFile(const std::string& path, FileKind kind) {
  const auto unreadable = [&path](Code code) {
    return Status(code, path + ": cannot be read: " + std::strerror(errno));
  };
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.fd < 0) return unreadable(Code::kNotFound);
  struct stat info {};
  if (::fstat(file.fd, &info) != 0) return unreadable(Code::kInternal);
  PRD_RETURN_IF_ERROR(CheckFile(path, kind, info));
  std::string text;
  char chunk[1 << 14];
  for (;;) {
    const ssize_t got = ::read(file.fd, chunk, sizeof chunk);
    if (got < 0) return unreadable(Code::kInvalidArgument);
    if (got == 0) return text;
    text.append(chunk, static_cast<std::size_t>(got));
    if (text.size() > kMaxBytes) {
      return Status(Code::kInvalidArgument, path + ": found over 16 MiB, allowed is less");
    }
  }
}

Status CheckPrivateFolder(const std::string& what, const std::string& path) {
  PRD_RETURN_IF_ERROR(CheckClosedFolder(what, path));
  struct stat info {};
  ::stat(path.c_str(), &info);
  return CheckOwner(what + " " + path, info);
}

Status CheckClosedFolder(const std::string& what, const std::string& path) {
  struct stat info {};
  const std::string name = what + " " + path;
  if (::stat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return Status(Code::kInvalidArgument, name + ": is no folder");
  }
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) == 0) return Status::Ok();
  char mode[8];
  std::snprintf(mode, sizeof mode, "%03o", static_cast<unsigned>(info.st_mode & 0777));
  return Status(Code::kFailedPrecondition,
                name + ": others may enter it (its mode is " + mode + "); chmod 700 it");
}

std::string CredentialFile(const std::string& name) {
  const std::string folder = CredentialsFolder();
  if (folder.empty() || ::access((folder + name).c_str(), F_OK) != 0) return {};
  return folder + name;
}

}  // namespace prd
