#include "tools/prdctl/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "common/base/check.h"

namespace prd::ctl {

std::string WallTime(std::int64_t wall_ns) {
  const std::time_t seconds = wall_ns / kSecond;
  std::tm broken{};
  if (gmtime_r(&seconds, &broken) == nullptr) return "?";
  std::array<char, 40> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &broken);
  return text.data();
}

double Seconds(DurationNs ns) { return static_cast<double>(ns) / static_cast<double>(kSecond); }

std::string Number(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

Result<DurationNs> ParseDuration(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  double scale = 0;
  if (unit.empty() || unit == "s") scale = 1e9;
  if (unit == "ms") scale = 1e6;
  if (unit == "m") scale = 60e9;
  if (unit == "h") scale = 3600e9;
  if (error != std::errc() || scale == 0 || !(value >= 0) || value * scale > 9e18) {
    return Status(Code::kInvalidArgument,
                  "found \"" + text + "\", allowed is a time like 250ms, 90s, 5m or 2h");
  }
  return static_cast<DurationNs>(value * scale);
}

void Table::Add(std::vector<std::string> cells) {
  PRD_CHECK(cells.size() == columns_.size());
  for (std::string& cell : cells) cell = cell.empty() ? "-" : Harmless(cell);
  rows_.push_back(std::move(cells));
}

void Table::Print(std::ostream& out) const {
  std::vector<std::size_t> widths;
  for (const Column& column : columns_) widths.push_back(column.title.size());
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  const auto line = [&](const auto& cell) {
    std::string text;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const std::string& word = cell(i);
      const std::string pad(widths[i] - word.size(), ' ');
      const bool last = i + 1 == columns_.size();
      text += columns_[i].align == Align::kRight ? pad + word : word + (last ? "" : pad);
      if (!last) text += "  ";
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out << text << '\n';
  };
  line([&](std::size_t i) -> const std::string& { return columns_[i].title; });
  for (const auto& row : rows_) {
    line([&](std::size_t i) -> const std::string& { return row[i]; });
  }
}

const char* LeftWord(LeftReason why) {
  switch (why) {
    case LeftReason::kFinished:
      return "finished";
    case LeftReason::kLeft:
      return "left";
    case LeftReason::kLost:
      return "lost";
    case LeftReason::kEvicted:
      return "evicted";
    case LeftReason::kPaused:
      return "paused";
    case LeftReason::kFailed:
      return "failed";
  }
  return "unknown";
}

}  // namespace prd::ctl
