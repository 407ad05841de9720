// Lines for whoever runs the training program (SessionOptions::log).
#ifndef PRD_WORKER_LINE_LOG_H_
#define PRD_WORKER_LINE_LOG_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>

namespace prd {

// At most kPerMinute lines in any minute, and the same line at most once a second; the next line
// says how many were left out. Any thread.
class LineLog {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kPerMinute = 20;

  // Null: lines go to stderr.
  explicit LineLog(std::function<void(const std::string&)> to) : to_(std::move(to)) {}

  void Say(const std::string& line) { SayAt(Clock::now(), line); }
  void SayAt(Clock::time_point now, const std::string& line);

 private:
  const std::function<void(const std::string&)> to_;
  std::mutex mutex_;
  std::deque<Clock::time_point> said_;  // in the last minute
  std::string newest_;
  std::uint64_t left_out_ = 0;
};

}  // namespace prd

#endif  // PRD_WORKER_LINE_LOG_H_
