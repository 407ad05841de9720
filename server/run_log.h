// What the daemon's log says of its runs, so that it stays readable for a week: of one kind of line
// a run writes some at once, and then few. Lines that are left out are counted, and told as a
// number after growing pauses. The level debug has them all.
#ifndef PRD_SERVER_RUN_LOG_H_
#define PRD_SERVER_RUN_LOG_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "common/base/ids.h"
#include "common/base/time.h"
#include "common/io/log.h"

namespace prd {

// Between two lines that tell how often the same has happened: 1, 2, 5, 10 and 30 minutes, and from
// then on an hour.
class GrowingPause {
 public:
  static constexpr DurationNs kLongest = 3600 * kSecond;

  DurationNs length() const { return kMinutes[at_] * 60 * kSecond; }
  void Grow() { at_ = std::min(at_ + 1, kMinutes.size() - 1); }
  void Restart() { at_ = 0; }

 private:
  static constexpr std::array<DurationNs, 6> kMinutes = {1, 2, 5, 10, 30, 60};
  std::size_t at_ = 0;
};

// Lets through lines of one kind: kAtOnce together, and after that one per kPerLine.
class LineBudget {
 public:
  static constexpr int kAtOnce = 20;
  static constexpr DurationNs kPerLine = 360 * kSecond;

  // False: the line is left out.
  bool Allow(Instant now);

  // How many lines were left out, and since when, once a pause is over.
  struct LeftOut {
    std::uint64_t lines = 0;  // 0: there is nothing to tell
    Instant since;
  };
  // `all`: the pause need not be over.
  LeftOut Take(Instant now, bool all);

 private:
  Instant paid_until_;  // what has been written is paid for with this time
  GrowingPause pause_;
  LeftOut left_out_;
  Instant told_;
};

class RunLog {
 public:
  enum class Kind {
    kCopy,
    kGroup,
    kJoined,
    kLeft,
    kLost,  // or failed, or evicted
    kLink,
    kPlacement,
    kRefusal,
    kReplicas,
    kShares,
  };

  void Line(spdlog::level::level_enum level, Kind kind, RunId run, Instant now,
            const std::string& text);
  // Tells what was left out, where that is due.
  void Tell(Instant now);
  // The run has ended: tells what was left out of it.
  void End(RunId run, Instant now);

 private:
  struct Known {
    LineBudget budget;
    spdlog::level::level_enum level = spdlog::level::info;
  };
  void Tell(std::pair<const std::pair<RunId, Kind>, Known>& entry, Instant now, bool all);

  std::map<std::pair<RunId, Kind>, Known> known_;
};

}  // namespace prd

#endif  // PRD_SERVER_RUN_LOG_H_
