#include "server/ephemeral.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "common/io/log.h"
#include "config/endpoint.h"

namespace prd {
namespace {

Status Failed(const std::string& path) {
  return Status(Code::kUnavailable, path + ": cannot be written: " + std::strerror(errno));
}

// For its owner alone.
Status WriteOwnFile(const std::string& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return Failed(path);
  const bool whole = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::close(fd);
  return whole ? Status::Ok() : Failed(path);
}

// No Z85 key, endpoint or path of ours has a quote.
std::string Export(const std::string& name, const std::string& value) {
  return "export " + name + "='" + value + "'\n";
}

constexpr std::string_view kFolder = "/prd-ephemeral-";

// A folder whose lock nobody holds is of a prd that was killed, if it was on this host: over a
// network's file system locks are not always seen. One without a lock is to stay, or is being made.
bool IsLeftBehind(const std::string& folder, const std::string& host) {
  struct stat info {};
  if (::lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != ::geteuid()) {
    return false;
  }
  const int fd = ::open((folder + "/lock").c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return false;
  std::array<char, 256> holder{};
  const bool here = ::read(fd, holder.data(), holder.size() - 1) >= 0 && host == holder.data();
  const bool left = here && ::flock(fd, LOCK_EX | LOCK_NB) == 0;
  ::close(fd);
  return left;
}

void RemoveLeftBehind(const std::string& parent, const std::string& host) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<std::string> left;
  for (fs::directory_iterator at(parent, error), end; !error && at != end; at.increment(error)) {
    const std::string folder = at->path().string();
    if (folder.find(kFolder) != std::string::npos && IsLeftBehind(folder, host)) {
      left.push_back(folder);
    }
  }
  for (const std::string& folder : left) fs::remove_all(folder, error);
}

// The lock's file is there under its name once it is held. -1: it cannot be made.
int Lock(const std::string& folder, const std::string& host) {
  const std::string fresh = folder + "/lock.new";
  const int fd = ::open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return -1;
  const bool made = ::flock(fd, LOCK_EX | LOCK_NB) == 0 &&
                    ::write(fd, host.data(), host.size()) == static_cast<ssize_t>(host.size()) &&
                    ::rename(fresh.c_str(), (folder + "/lock").c_str()) == 0;
  if (made) return fd;
  ::close(fd);
  return -1;
}

// The file `fresh` is called so from now on. A prd that runs has a lock on its file, which keeps
// its name; one that does not run any more has left what is replaced.
Status TakeName(const std::string& file, const std::string& fresh) {
  while (::link(fresh.c_str(), file.c_str()) != 0) {
    if (errno != EEXIST) {  // a file system without links
      return ::rename(fresh.c_str(), file.c_str()) == 0 ? Status::Ok() : Failed(file);
    }
    const int old = ::open(file.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (old < 0 && errno == ENOENT) continue;
    if (old < 0) return Failed(file);
    Status status;
    const bool lives = ::flock(old, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    struct stat locked {};
    struct stat now {};  // another prd may have taken the name meanwhile
    const bool same = ::fstat(old, &locked) == 0 && ::lstat(file.c_str(), &now) == 0 &&
                      locked.st_dev == now.st_dev && locked.st_ino == now.st_ino;
    if (lives) {
      status = Status(Code::kAlreadyExists, "--env-file: " + file +
                                                " is that of another prd, which runs; each needs a "
                                                "file of its own");
    } else if (same && ::rename(fresh.c_str(), file.c_str()) != 0) {
      status = Failed(file);
    }
    ::close(old);
    if (lives || same) return status;
  }
  return Status::Ok();
}

Result<std::string> HostName() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0')
    return std::string(name.data());
  return Status(Code::kNotFound, "this host has no name; give --address");
}

// The only job of the config, unless that is a pattern, or has a quote.
std::string JobIfNamed(const Config& config) {
  if (config.jobs.size() != 1) return "";
  const std::string& name = config.jobs.front().pattern;
  return name.find_first_of("*?'") == std::string::npos ? Export("PRD_JOB", name) : "";
}

// What this host knows itself by, as Debian's /etc/hosts has it.
bool IsLoopbackHere(const std::string& host) {
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, nullptr, &found) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
  if (found->ai_family == AF_INET6) {
    const auto* address = reinterpret_cast<const sockaddr_in6*>(found->ai_addr);
    return IN6_IS_ADDR_LOOPBACK(&address->sin6_addr);
  }
  const auto* address = reinterpret_cast<const sockaddr_in*>(found->ai_addr);
  return found->ai_family == AF_INET && ntohl(address->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

}  // namespace

Result<std::unique_ptr<Ephemeral>> Ephemeral::Make(const Options& options, Config* config) {
  const std::string allowed = EndpointRule(options.listen);
  if (!allowed.empty()) {
    return Status(Code::kInvalidArgument,
                  "--listen: found \"" + options.listen + "\", allowed is " + allowed);
  }
  std::unique_ptr<Ephemeral> made(new Ephemeral(options));
  std::string folder = options.folder;
  if (folder.empty()) {
    const char* temporary = std::getenv("TMPDIR");
    folder = temporary != nullptr && *temporary == '/' ? temporary : "/tmp";
  }
  std::error_code error;
  const std::string parent = std::filesystem::absolute(folder, error).lexically_normal().string();
  const Result<std::string> name = HostName();
  const std::string host = name.ok() ? *name : "unknown";
  RemoveLeftBehind(parent, host);
  folder = parent + std::string(kFolder) + "XXXXXX";
  if (folder.find('\'') != std::string::npos || ::mkdtemp(folder.data()) == nullptr) {
    return Failed(folder);
  }
  made->folder_ = folder;
  // What is to stay has no lock, or the next prd would remove it.
  if (!options.keep) made->lock_ = Lock(folder, host);
  const Result<CurveKeys> daemon = NewCurveKeys();
  Result<CurveKeys> workers = NewCurveKeys();
  if (!daemon.ok()) return daemon.status();
  if (!workers.ok()) return workers.status();
  PRD_RETURN_IF_ERROR(WriteOwnFile(folder + "/daemon.key", daemon->secret_key + "\n"));
  PRD_RETURN_IF_ERROR(WriteOwnFile(folder + "/workers.pub", workers->public_key + "\n"));
  config->identities.clear();
  config->daemon.listen = options.listen;
  config->daemon.admin = "ipc://" + folder + "/admin.sock";
  config->daemon.state_dir = folder + "/state";
  config->daemon.curve_secret_key_file = folder + "/daemon.key";
  config->daemon.curve_authorized_keys_file = folder + "/workers.pub";
  made->environment_ = Export("PRD_CURVE_SERVER_KEY", daemon->public_key) +
                       Export("PRD_CURVE_PUBLIC_KEY", workers->public_key) +
                       Export("PRD_ADMIN", config->daemon.admin) + JobIfNamed(*config);
  made->workers_ = std::move(*workers);
  return made;
}

Ephemeral::~Ephemeral() {
  std::error_code ignored;
  for (const Written& file : files_) {
    struct stat now {};  // another prd's, perhaps, by the same name
    const bool own = ::lstat(file.path.c_str(), &now) == 0 && now.st_dev == file.device &&
                     now.st_ino == file.inode;
    if (own) std::filesystem::remove(file.path, ignored);
    ::close(file.lock);
  }
  if (!folder_.empty() && !options_.keep) std::filesystem::remove_all(folder_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

// Whole at once, and instead of what has that name.
Status Ephemeral::WriteForWorkers(const std::string& file, const std::string& text) {
  struct stat info {};
  if (::lstat(file.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return Status(Code::kInvalidArgument, "--env-file: " + file + " is there, and is no file");
  }
  std::string fresh = file + ".XXXXXX";
  const int fd = ::mkostemp(fresh.data(), O_CLOEXEC);
  if (fd < 0) return Failed(fresh);
  (void)::flock(fd, LOCK_EX | LOCK_NB);
  const bool whole = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                     ::fstat(fd, &info) == 0;
  const Status status = whole ? TakeName(file, fresh) : Failed(fresh);
  ::unlink(fresh.c_str());
  if (!status.ok()) {
    ::close(fd);
    return status;
  }
  files_.push_back({.path = file, .device = info.st_dev, .inode = info.st_ino, .lock = fd});
  return Status::Ok();
}

Status Ephemeral::Tell(const std::string& endpoint) {
  std::string controller = endpoint;
  for (const std::string_view every : {"tcp://0.0.0.0:", "tcp://[::]:"}) {
    if (!endpoint.starts_with(every)) continue;
    Result<std::string> host =
        options_.address.empty() ? HostName() : Result<std::string>(options_.address);
    if (!host.ok()) return host.status();
    if (IsLoopbackHere(*host)) {
      spdlog::warn(
          "workers are told that prd is at {}, which is a loopback address here: where other hosts "
          "do not find this one by that either, give --address",
          *host);
    }
    controller = "tcp://" + *host + ":" + endpoint.substr(every.size());
  }
  const std::string text = Export("PRD_CONTROLLER", controller) + environment_;
  if (options_.env_file.empty()) {
    std::fputs(text.c_str(), stdout);
    std::fputs(Export("PRD_CURVE_SECRET_KEY", workers_.secret_key).c_str(), stdout);
    return std::fflush(stdout) == 0 ? Status::Ok() : Failed("standard output");
  }
  // An environment is read by every process of the user, and launchers write it down.
  std::error_code error;
  const std::string key_file =
      std::filesystem::absolute(options_.env_file, error).lexically_normal().string() + ".key";
  if (key_file.find('\'') != std::string::npos) {
    return Status(Code::kInvalidArgument, "--env-file: its path has a quote: " + key_file);
  }
  PRD_RETURN_IF_ERROR(WriteForWorkers(key_file, workers_.secret_key + "\n"));
  return WriteForWorkers(options_.env_file, text + Export("PRD_CURVE_SECRET_KEY_FILE", key_file));
}

}  // namespace prd
