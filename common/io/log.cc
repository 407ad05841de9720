#include "common/io/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include "common/base/text.h"

namespace prd {
namespace {

// sd-daemon(3): "<4>" before a line is its priority.
class Priority final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
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
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    const std::string line = Harmless({message.payload.data(), message.payload.size()});
    out.append(line.data(), line.data() + line.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<OneLine>();
  }
};

}  // namespace

void StartLog(const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>(
      "prd", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<Priority>('*').add_flag<OneLine>('~');
  formatter->set_pattern(
      std::getenv("JOURNAL_STREAM") != nullptr ? "%*%~" : "%Y-%m-%d %H:%M:%S.%e %^%-7l%$ %~");
  logger->set_formatter(std::move(formatter));
  spdlog::set_default_logger(std::move(logger));
  SetLogLevel(level);
}

void SetLogLevel(const std::string& level) {
  spdlog::set_level(spdlog::level::from_str(level == "warn" ? "warning" : level));
}

}  // namespace prd
