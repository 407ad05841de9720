#include "server/ephemeral.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "common/io/curve.h"
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

Result<std::string> HostName() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0')
    return std::string(name.data());
  return Status(Code::kNotFound, "this host has no name; give --address");
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
  folder = std::filesystem::absolute(folder, error).lexically_normal().string() +
           "/prd-ephemeral-XXXXXX";
  if (folder.find('\'') != std::string::npos || ::mkdtemp(folder.data()) == nullptr) {
    return Failed(folder);
  }
  made->folder_ = folder;
  const Result<CurveKeys> daemon = NewCurveKeys();
  const Result<CurveKeys> workers = NewCurveKeys();
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
                       Export("PRD_CURVE_SECRET_KEY", workers->secret_key) +
                       Export("PRD_ADMIN", config->daemon.admin);
  return made;
}

Ephemeral::~Ephemeral() {
  std::error_code ignored;
  if (told_ && !options_.env_file.empty()) std::filesystem::remove(options_.env_file, ignored);
  if (!folder_.empty() && !options_.keep) std::filesystem::remove_all(folder_, ignored);
}

Status Ephemeral::Tell(const std::string& endpoint) {
  std::string controller = endpoint;
  for (const std::string_view every : {"tcp://0.0.0.0:", "tcp://[::]:"}) {
    if (!endpoint.starts_with(every)) continue;
    Result<std::string> host =
        options_.address.empty() ? HostName() : Result<std::string>(options_.address);
    if (!host.ok()) return host.status();
    controller = "tcp://" + *host + ":" + endpoint.substr(every.size());
  }
  const std::string text = Export("PRD_CONTROLLER", controller) + environment_;
  if (options_.env_file.empty()) {
    std::fputs(text.c_str(), stdout);
    return std::fflush(stdout) == 0 ? Status::Ok() : Failed("standard output");
  }
  const std::string fresh = options_.env_file + ".new";
  ::unlink(fresh.c_str());
  PRD_RETURN_IF_ERROR(WriteOwnFile(fresh, text));
  if (::rename(fresh.c_str(), options_.env_file.c_str()) != 0) return Failed(options_.env_file);
  told_ = true;
  return Status::Ok();
}

}  // namespace prd
