#include "tools/prdctl/keygen.h"

#include <fcntl.h>
#include <unistd.h>
#include <zmq.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

namespace prd::ctl {
namespace {

constexpr std::size_t kZ85Key = 41;  // 40 characters and a final 0

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
  std::array<char, kZ85Key> public_key{}, secret_key{};
  if (zmq_curve_keypair(public_key.data(), secret_key.data()) != 0) {
    return Status(Code::kInternal, std::string("no keys: ZeroMQ says ") + zmq_strerror(errno));
  }
  KeyFiles files{
      .secret_file = name + ".key", .public_file = name + ".pub", .public_key = public_key.data()};
  PRD_RETURN_IF_ERROR(CreateFile(files.secret_file, std::string(secret_key.data()) + "\n", 0600));
  const Status status = CreateFile(files.public_file, files.public_key + "\n", 0644);
  if (status.ok()) return files;
  unlink(files.secret_file.c_str());
  return status;
}

}  // namespace prd::ctl
