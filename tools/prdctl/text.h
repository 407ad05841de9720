// Numbers, times and tables as prdctl prints them.
#ifndef PRD_TOOLS_PRDCTL_TEXT_H_
#define PRD_TOOLS_PRDCTL_TEXT_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/history.h"
#include "common/base/text.h"
#include "common/base/time.h"
#include "prd/status.h"

namespace prd::ctl {

// "2026-11-03 14:05:09" in UTC.
std::string WallTime(std::int64_t wall_ns);

double Seconds(DurationNs ns);

// Fixed digits after the point: Number(1.5, 3) is "1.500".
std::string Number(double value, int digits);

// "250ms", "90s", "5m", "2h", "1.5h"; without a unit, seconds. kInvalidArgument says what is
// allowed.
Result<DurationNs> ParseDuration(const std::string& text);

// Columns as wide as their widest cell; the last one is as long as it is.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // As many cells as there are columns. An empty cell is shown as "-".
  void Add(std::vector<std::string> cells);
  void Print(std::ostream& out) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Why a worker left, in one word: "finished", "left", "lost", "evicted".
const char* LeftWord(LeftReason why);

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_TEXT_H_
