#include "tools/prdctl/lanes.h"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace prd::ctl {

void Lanes::Follow(const Record& record) {
  TraceExporter::Add(record);
  const Moved moved(record.body);
  if (moved.came != nullptr) {
    Lane& lane = lanes_[moved.came->rank];
    if (going_over_.erase(moved.came->rank) > 0 && !lane.there.empty()) {
      lane.there.back().left.reset();
    } else if (lane.there.empty() || lane.there.back().left) {
      lane.there.push_back({.joined = record.now, .left = std::nullopt, .why = {}});
    }
  } else if (moved.went != nullptr) {
    in_.erase(moved.went->rank);
    const auto lane = lanes_.find(moved.went->rank);
    if (!moved.gone || lane == lanes_.end() || lane->second.there.empty()) return;
    Stay& stay = lane->second.there.back();
    if (!stay.left) stay = {.joined = stay.joined, .left = record.now, .why = moved.went->reason};
    if (lane->second.there.size() > 1000) lane->second.there.pop_front();
  } else if (const auto* formed = std::get_if<GroupFormed>(&record.body)) {
    newest_ = std::max(newest_, formed->id);
    const bool beside = formed->kind == GroupKind::kRound || AveragesInBackground(view().plan());
    if (beside || DrawnAhead(view().plan())) return;
    for (const GroupShare& share : formed->members) in_[share.rank] = formed->id;
  } else if (const auto* from = std::get_if<FromWorker>(&record.body)) {
    const auto* finished = std::get_if<Finished>(&from->envelope.body);
    if (finished != nullptr) in_.erase(from->envelope.rank);
  } else if (const auto* started = std::get_if<RunStarted>(&record.body)) {
    std::set<Rank> come;
    for (const FormerRank& of : started->former.ranks) {
      if (of.awaited && going_over_.contains(of.rank)) come.insert(of.rank);
    }
    going_over_ = std::move(come);
    base_ += newest_;
    newest_ = 0;
    in_.clear();
  } else if (const auto* ended = std::get_if<RunEnded>(&record.body)) {
    going_over_.clear();
    for (auto& [rank, lane] : lanes_) {
      if (lane.there.empty()) continue;
      std::optional<Instant>& until = lane.there.back().left;
      // With a switch all are sent away just before, to the next run.
      if (ended->next != kNoRun && until.value_or(record.now) == record.now) {
        going_over_.insert(rank);
      }
      if (!until) until = record.now;
    }
  }
}

void Lanes::Did(const char* name, int thread, Instant from, Instant to, GroupId group) {
  const std::string_view what(name);
  const bool beside = thread >= kBackground;
  const Kind kind = beside              ? Kind::kBeside
                    : what == "compute" ? Kind::kComputing
                    : what == "wait"    ? Kind::kWaiting
                                        : Kind::kReducing;
  Lane& lane = lanes_[beside ? thread - kBackground : thread];
  const GroupId key = group == kNoGroup ? kNoGroup : base_ + group;
  lane.spans.push_back({.from = from, .to = to, .group = key, .kind = kind});
  if (++spans_ > most_) Forget();
}

// An eighth of each lane.
void Lanes::Forget() {
  for (auto& [rank, lane] : lanes_) {
    const auto count = static_cast<std::ptrdiff_t>((lane.spans.size() + 7) / 8);
    if (count == 0) continue;
    const auto end = lane.spans.begin() + count;
    forgotten_ = std::max(forgotten_.value_or(Instant{}), std::prev(end)->to);
    lane.spans.erase(lane.spans.begin(), end);
    spans_ -= static_cast<std::size_t>(count);
  }
}

std::optional<Lanes::Span> Lanes::Open(Rank rank, Instant now) const {
  const auto lane = lanes_.find(rank);
  if (lane == lanes_.end() || lane->second.there.empty()) return std::nullopt;
  const auto trains = view().training().find(rank);
  if (trains == view().training().end() || lane->second.there.back().left) return std::nullopt;
  const Instant since = std::max(trains->second, BusyUntil(rank));
  if (since >= now) return std::nullopt;
  const auto in = in_.find(rank);
  if (in != in_.end()) {
    return Span{.from = since, .to = now, .group = base_ + in->second, .kind = Kind::kReducing};
  }
  const auto thread = threads().find(rank);
  const bool waits = thread != threads().end() && thread->second.signalled;
  return Span{.from = since, .to = now, .kind = waits ? Kind::kWaiting : Kind::kComputing};
}

}  // namespace prd::ctl
