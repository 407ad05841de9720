#include "server/audit_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "common/base/fields.h"
#include "common/io/clock.h"

namespace prd {
namespace {

constexpr std::size_t kMaxTold = 4096;

// Quoted, on one line and in ASCII, whatever a peer has put into it.
std::string Quoted(std::string_view text) {
  std::string plain(text.substr(0, 300));
  for (char& c : plain) {
    if (static_cast<unsigned char>(c) >= 0x7f) c = '?';
  }
  return TomlText(plain);
}

std::string Time() {
  const std::int64_t now_ms = WallNs() / kMillisecond;
  const std::time_t seconds = now_ms / 1000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[40];
  const std::size_t size = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(text + size, sizeof text - size, ".%03dZ", static_cast<int>(now_ms % 1000));
  return text;
}

// Over ipc without the process: each one that a user starts has another number.
std::string HostOf(const Peer& peer) {
  const bool local = !peer.who.empty() && peer.address.starts_with("localhost:");
  return local ? "localhost" : std::string(peer.address);
}

std::string Line(const Peer& peer, const Rights* rights, const std::string& what) {
  return Quoted(Called(rights, peer.who)) + (peer.who.empty() ? "" : " as " + Quoted(peer.who)) +
         " from " + Quoted(peer.address) + ": " + Quoted(what);
}

}  // namespace

AuditLog::~AuditLog() {
  if (file_ >= 0) ::close(file_);
}

Status AuditLog::Open(const std::string& file) {
  int opened = -1;
  if (!file.empty()) {
    const std::string what = "audit_log = \"" + file + "\": ";
    // A pipe that nobody reads would stop the daemon, here or at a line.
    opened = ::open(file.c_str(),
                    O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (opened < 0) {
      return Status(Code::kUnavailable, what + "cannot be written: " + std::strerror(errno));
    }
    struct stat info {};
    if (::fstat(opened, &info) != 0 || !S_ISREG(info.st_mode)) {
      ::close(opened);
      return Status(Code::kInvalidArgument, what + "is no file, such as a pipe");
    }
  }
  const std::lock_guard lock(mutex_);
  if (file_ >= 0) ::close(file_);
  file_ = opened;
  return Status::Ok();
}

bool AuditLog::Budget::Take(std::int64_t now_ns) {
  if (at_ns != 0) {
    left = std::min(most, left + per_s * static_cast<double>(now_ns - at_ns) / kSecond);
  }
  at_ns = now_ns;
  if (left < 1) return false;
  left -= 1;
  return true;
}

void AuditLog::Admitted(const Peer& peer, const Rights* rights, const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (admissions_.Take(MonotonicNs())) {
    Write(What::kLetIn, Line(peer, rights, what));
  } else {
    ++left_out_;
  }
}

void AuditLog::Acted(const Peer& peer, const Rights* rights, const std::string& what) {
  const std::lock_guard lock(mutex_);
  Write(What::kActed, Line(peer, rights, what));
}

void AuditLog::Refused(const Peer& peer, const Rights* rights, const std::string& what,
                       const std::string& why) {
  ++refused_;
  const std::lock_guard lock(mutex_);
  const std::int64_t now_ns = MonotonicNs();
  if (told_.size() >= kMaxTold) told_.clear();
  std::uint64_t skipped = 0;
  LogLimit& told =
      told_.try_emplace(std::string(peer.who) + " " + HostOf(peer) + " " + what, 10 * kSecond)
          .first->second;
  if (!told.Allow(now_ns, &skipped)) return;
  if (!refusals_.Take(now_ns)) {
    ++left_out_;
    return;
  }
  Write(What::kRefused,
        Line(peer, rights, what) + ": " + Quoted(why) +
            (skipped > 0 ? ", " + std::to_string(skipped) + " times more before" : "") +
            (left_out_ > 0 ? "; " + std::to_string(left_out_) + " lines were left out" : ""));
  left_out_ = 0;
}

void AuditLog::Write(What what, const std::string& line) {
  const bool refused = what == What::kRefused;
  const bool acted = what == What::kActed;
  const std::string text = (refused ? "refused " : acted ? "done for " : "let in ") + line;
  if (file_ >= 0) {
    const std::string whole = Time() + " " + text + "\n";
    if (::write(file_, whole.data(), whole.size()) == static_cast<ssize_t>(whole.size())) return;
    spdlog::error("the audit log cannot be written: {}; its line:", std::strerror(errno));
  }
  if (refused) {
    spdlog::warn("{}", text);
  } else if (acted) {
    spdlog::info("{}", text);
  } else {
    spdlog::debug("{}", text);  // what becomes of it is in the log anyway
  }
}

}  // namespace prd
