#include "tools/prdctl/keygen.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/io/curve.h"

namespace prd::ctl {
namespace {

Status CreateFile(const std::string& file, const std::string& line, mode_t mode) {
  const auto failed = [&] {
    const int error = errno;
    return Status(error == EEXIST ? Code::kAlreadyExists : Code::kInternal,
                  file + ": cannot be made: " + std::strerror(error));
  };
  const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0) return failed();
  const ssize_t written = write(fd, line.data(), line.size());
  Status status =
      written == static_cast<ssize_t>(line.size()) && fsync(fd) == 0 ? Status::Ok() : failed();
  close(fd);
  if (!status.ok()) unlink(file.c_str());
  return status;
}

}  // namespace

Result<KeyFiles> GenerateKeyFiles(const std::string& name) {
  Result<CurveKeys> keys = NewCurveKeys();
  if (!keys.ok()) return keys.status();
  KeyFiles files{
      .secret_file = name + ".key", .public_file = name + ".pub", .public_key = keys->public_key};
  PRD_RETURN_IF_ERROR(CreateFile(files.secret_file, keys->secret_key + "\n", 0600));
  const Status status = CreateFile(files.public_file, files.public_key + "\n", 0644);
  if (status.ok()) return files;
  unlink(files.secret_file.c_str());
  return status;
}

}  // namespace prd::ctl
