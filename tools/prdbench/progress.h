// A line on stderr that says what is measured now.
#ifndef PRD_TOOLS_PRDBENCH_PROGRESS_H_
#define PRD_TOOLS_PRDBENCH_PROGRESS_H_

#include <unistd.h>

#include <cstdio>
#include <string>

namespace prd::bench {

class Progress {
 public:
  ~Progress() { Show(""); }
  void Show(const std::string& line) {
    if (line == shown_) return;
    shown_ = line;
    if (terminal_) {
      std::fprintf(stderr, "\r\033[K%s", line.c_str());
    } else if (!line.empty()) {
      std::fprintf(stderr, "%s\n", line.c_str());
    }
  }
  bool terminal() const { return terminal_; }

 private:
  bool terminal_ = isatty(STDERR_FILENO) == 1;
  std::string shown_;
};

}  // namespace prd::bench

#endif  // PRD_TOOLS_PRDBENCH_PROGRESS_H_
