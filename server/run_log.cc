#include "server/run_log.h"

#include <algorithm>

#include "engines/words.h"

namespace prd {
namespace {

const char* Word(RunLog::Kind kind) {
  switch (kind) {
    case RunLog::Kind::kCopy:
      return "copies of models";
    case RunLog::Kind::kGroup:
      return "failed groups";
    case RunLog::Kind::kJoined:
      return "workers that began to train";
    case RunLog::Kind::kLeft:
      return "workers that finished, left or paused";
    case RunLog::Kind::kLost:
      return "workers lost, failed or evicted";
    case RunLog::Kind::kLink:
      return "links that broke or work again";
    case RunLog::Kind::kPlacement:
      return "lines about placements";
    case RunLog::Kind::kRefusal:
      return "workers refused";
    case RunLog::Kind::kReplicas:
      return "lines about replicas that differ";
    case RunLog::Kind::kShares:
      return "changes of shares";
  }
  return "lines";
}

}  // namespace

bool LineBudget::Allow(Instant now) {
  const Instant paid = std::max(paid_until_, now) + kPerLine;
  if (paid - now <= kAtOnce * kPerLine) {
    paid_until_ = paid;
    return true;
  }
  if (left_out_.lines++ == 0) {
    left_out_.since = now;
    if (now - told_ > GrowingPause::kLongest) pause_.Restart();
  }
  return false;
}

LineBudget::LeftOut LineBudget::Take(Instant now, bool all) {
  if (left_out_.lines == 0 || (!all && now - left_out_.since < pause_.length())) return {};
  told_ = now;
  pause_.Grow();
  return std::exchange(left_out_, {});
}

void RunLog::Line(spdlog::level::level_enum level, Kind kind, RunId run, Instant now,
                  const std::string& text) {
  Known& known = known_[{run, kind}];
  const bool allowed = known.budget.Allow(now);
  if (!allowed) known.level = std::max(known.level, level);
  spdlog::log(allowed ? level : spdlog::level::debug, "run {}: {}", run, text);
}

void RunLog::Tell(std::pair<const std::pair<RunId, Kind>, Known>& entry, Instant now, bool all) {
  auto& [key, known] = entry;
  const LineBudget::LeftOut left_out = known.budget.Take(now, all);
  if (left_out.lines == 0) return;
  spdlog::log(known.level, "run {}: {} more {} in {}, by themselves at level debug", key.first,
              left_out.lines, Word(key.second), words::Duration(now - left_out.since));
  known.level = spdlog::level::info;
}

void RunLog::Tell(Instant now) {
  for (auto& entry : known_) Tell(entry, now, false);
}

void RunLog::End(RunId run, Instant now) {
  for (auto it = known_.lower_bound({run, Kind{}}); it != known_.end() && it->first.first == run;
       it = known_.erase(it)) {
    Tell(*it, now, true);
  }
}

}  // namespace prd
