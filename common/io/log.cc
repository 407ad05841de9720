#include "common/io/log.h"

#include <fcntl.h>
#include <poll.h>
#include <spdlog/details/os.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>

#include "common/base/text.h"
#include "common/io/clock.h"

namespace prd {
namespace {

using Message = spdlog::details::log_msg;

// sd-daemon(3): "<4>" before a line is its priority.
class Priority final : public spdlog::custom_flag_formatter {
 public:
  void format(const Message& message, const std::tm&, spdlog::memory_buf_t& out) override {
    static constexpr const char* kMarks[] = {"<7>", "<7>", "<6>", "<4>", "<3>", "<2>", "<6>"};
    const std::string mark = kMarks[static_cast<std::size_t>(message.level)];
    out.append(mark.data(), mark.data() + mark.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<Priority>();
  }
};

// The message on one harmless line, whatever a peer put into the texts it is made of.
class OneLine final : public spdlog::custom_flag_formatter {
 public:
  void format(const Message& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const std::string line = Harmless({message.payload.data(), message.payload.size()});
    out.append(line.data(), line.data() + line.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<OneLine>();
  }
};

// stderr may be a terminal that stands still, or a pipe that nobody reads: then lines are left out,
// and counted, and the caller goes on.
class Stderr final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  Stderr() : fd_(Open()) {}
  ~Stderr() override {
    if (fd_ != STDERR_FILENO) ::close(fd_);
  }

 protected:
  void sink_it_(const Message& message) override {
    if (!Write()) {  // the rest of a line before
      ++left_out_;
      return;
    }
    if (left_out_ > 0) {
      Append({message.time,
              {},
              message.logger_name,
              spdlog::level::warn,
              std::to_string(left_out_) + " lines are left out here: nobody read the log"});
    }
    Append(message);
    const std::size_t size = text_.size();
    Write();
    if (text_.size() < size) {
      left_out_ = 0;
    } else {
      ++left_out_;
      text_.clear();
    }
  }
  void flush_() override {}

 private:
  // A reader that is alive has read within this time.
  static constexpr DurationNs kPatience = 200 * kMillisecond;
  static constexpr DurationNs kWithout = 10 * kSecond;

  // Without waiting, where that is not to count for all who write there.
  static int Open() {
    struct stat info {};
    if (::fstat(STDERR_FILENO, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode))) {
      const int own = ::open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
      if (own >= 0) return own;
    }
    return STDERR_FILENO;
  }

  void Append(const Message& message) {
    static constexpr const char* kColors[] = {
        "\x1b[37m",        "\x1b[36m",        "\x1b[32m", "\x1b[33m\x1b[1m",
        "\x1b[31m\x1b[1m", "\x1b[1m\x1b[41m", ""};
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    const std::string text(line.data(), line.size());
    const std::size_t from = colors_ ? message.color_range_start : 0;
    const std::size_t to = colors_ ? message.color_range_end : 0;
    text_ += text.substr(0, from);
    if (to > from) {
      text_ += kColors[static_cast<std::size_t>(message.level)] + text.substr(from, to - from) +
               "\x1b[m";
    }
    text_ += text.substr(to);
  }

  // As much of text_ as there is room for. True: all of it.
  bool Write() {
    while (!text_.empty() && HasRoom()) {
      // Where poll says that there is room, so much fits into a pipe or a socket.
      const ssize_t size =
          ::write(fd_, text_.data(), std::min<std::size_t>(text_.size(), PIPE_BUF));
      if (size < 0 && errno == EINTR) continue;
      if (size <= 0) break;
      text_.erase(0, static_cast<std::size_t>(size));
    }
    return text_.empty();
  }

  bool HasRoom() {
    pollfd item{.fd = fd_, .events = POLLOUT, .revents = 0};
    const bool patient = MonotonicNs() >= patient_from_ns_;
    const int ready = ::poll(&item, 1, patient ? static_cast<int>(kPatience / kMillisecond) : 0);
    if (ready == 0 && patient) patient_from_ns_ = MonotonicNs() + kWithout;
    return ready > 0;
  }

  const int fd_;
  const bool colors_ =
      spdlog::details::os::in_terminal(stderr) && spdlog::details::os::is_color_terminal();
  std::string text_;  // to be written
  std::uint64_t left_out_ = 0;
  std::int64_t patient_from_ns_ = 0;
};

// As systemd.exec(5) says of the variable, which programs inherit whose stderr is another one.
bool IsJournal() {
  const char* stream = std::getenv("JOURNAL_STREAM");
  struct stat info {};
  return stream != nullptr && ::fstat(STDERR_FILENO, &info) == 0 &&
         std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino) == stream;
}

}  // namespace

void StartLog(const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>("prd", std::make_shared<Stderr>());
  auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
  formatter->add_flag<Priority>('*').add_flag<OneLine>('~');
  formatter->set_pattern(IsJournal() ? "%*%~" : "%Y-%m-%dT%H:%M:%S.%eZ %^%-7l%$ %~");
  logger->set_formatter(std::move(formatter));
  spdlog::set_default_logger(std::move(logger));
  SetLogLevel(level);
}

void SetLogLevel(const std::string& level) {
  spdlog::set_level(spdlog::level::from_str(level == "warn" ? "warning" : level));
}

}  // namespace prd
