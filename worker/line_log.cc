#include "worker/line_log.h"

#include <cstdio>
#include <exception>

#include "common/base/text.h"

namespace prd {

void LineLog::SayAt(Clock::time_point now, const std::string& line) {
  std::string text = Harmless(line);  // others have written a part of it
  {
    const std::lock_guard lock(mutex_);
    while (!said_.empty() && now - said_.front() >= std::chrono::minutes(1)) said_.pop_front();
    const bool again =
        !said_.empty() && line == newest_ && now - said_.back() < std::chrono::seconds(1);
    if (again || said_.size() >= kPerMinute) {
      ++left_out_;
      return;
    }
    said_.push_back(now);
    newest_ = line;
    if (left_out_ > 0) text += " (" + std::to_string(left_out_) + " lines left out before)";
    left_out_ = 0;
  }
  if (!to_) {
    std::fprintf(stderr, "prd: %s\n", text.c_str());
    return;
  }
  try {
    to_(text);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "prd: the log callback threw %s, at: %s\n", error.what(), text.c_str());
  } catch (...) {
    std::fprintf(stderr, "prd: the log callback threw, at: %s\n", text.c_str());
  }
}

}  // namespace prd
