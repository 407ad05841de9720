// What the daemon's log says of its runs, so that it stays readable for a week: of one kind of line
// a run writes some at once, and then few. Lines that are left out are counted, and told as a
// number after growing pauses. The level debug has them all.
#ifndef PRD_SERVER_RUN_LOG_H_
#define PRD_SERVER_RUN_LOG_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "common/base/ids.h"
#include "common/base/time.h"
#include "common/io/log.h"

namespace prd {

// Of the lines of one kind: kAtOnce may come together, and after that one per kPerLine.
class LineBudget {
 public:
  static constexpr int kAtOnce = 20;
  static constexpr DurationNs kPerLine = 360 * kSecond;
  static constexpr DurationNs kFirstPause = 60 * kSecond;
  static constexpr DurationNs kLongestPause = 3600 * kSecond;

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
  DurationNs pause_ = kFirstPause;
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
    kLost,  // or evicted
    kLink,
    kPlacement,
    kRefusal,
    kReplicas,
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
