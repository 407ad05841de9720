#include "tools/prdctl/watch.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>

#include "config/config.h"
#include "engines/event.h"
#include "tools/prdctl/text.h"

namespace prd::ctl {
namespace {

// Up to so many the page draws one by one.
constexpr std::size_t kExactSpans = 6000;
constexpr std::size_t kExactRows = 64;
constexpr std::size_t kMostRows = 256;
constexpr std::size_t kMostBins = 800;
constexpr std::size_t kGroupsShown = 60;
constexpr std::size_t kWorkersShown = 2000;
constexpr std::size_t kTextShown = 400;
constexpr std::size_t kActsShown = 50;

std::string Short(const std::string& text) {
  if (text.size() <= kTextShown) return text;
  std::size_t end = kTextShown;  // not in the middle of a character
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

Json At(const std::optional<Instant>& at, Instant start) {
  return at ? Json(Seconds(*at - start)) : Json(nullptr);
}

std::string Words(const OperatorActed& acted) {
  std::string text = VerbName(acted.verb);
  if (acted.verb == OperatorVerb::kEvict) text += " rank " + std::to_string(acted.rank);
  if (acted.verb == OperatorVerb::kDrain) text += " host " + Short(acted.host);
  if (acted.verb == OperatorVerb::kSwitch) {
    const Result<JobSpec> spec = JobSpecFromToml(acted.spec);
    if (spec.ok()) text += " to " + std::string(EngineName(spec->engine));
  }
  return text;
}

// The letter of what took most of the time in a field of the grid.
constexpr std::string_view kLetters = "cwrb";

}  // namespace

Status JobWatch::Add(const Record& record) {
  const auto* started = std::get_if<RunStarted>(&record.body);
  if (record.run != run_) {
    if (started == nullptr || (run_ != kNoRun && !ended_)) {
      return Status(Code::kDataLoss,
                    "run " + std::to_string(record.run) + " does not begin with its start");
    }
    GoOn(*started, record.now, record.run);
  }
  PRD_RETURN_IF_ERROR(present_->Add(record));
  ++records_;
  last_ = record.now;
  const RunView::Change change = pace_->Add(record);
  lanes_.Follow(record);
  OnGroup(change);
  if (const auto* from = std::get_if<FromWorker>(&record.body)) {
    if (const auto* ready = std::get_if<Ready>(&from->envelope.body)) {
      OnSteps(record, from->envelope.rank, ready->own.steps, ready->losses);
    } else if (const auto* progressed = std::get_if<Progressed>(&from->envelope.body)) {
      OnSteps(record, from->envelope.rank, progressed->own.steps, progressed->losses);
    }
  } else if (change.came != nullptr) {
    const auto finished = finished_.find(change.came->rank);
    if (finished == finished_.end()) return Status::Ok();
    if (!switches_.empty() && switches_.back().run == run_) {
      Switch& last = switches_.back();
      last.pause_ns = std::max(last.pause_ns, record.now - finished->second);
    }
    finished_.erase(finished);
  } else if (const auto* set = std::get_if<NeighboursSet>(&record.body)) {
    neighbours_[set->rank] = *set;
  } else if (change.went != nullptr) {
    const LeftReason why = change.went->why;
    if (why == LeftReason::kFinished) finished_[change.went->rank] = record.now;
    if (why != LeftReason::kFinished && why != LeftReason::kLeft) {
      neighbours_.erase(change.went->rank);
    }
  } else if (const auto* acted = std::get_if<OperatorActed>(&record.body)) {
    acts_.push_back({record.now, Words(*acted), Short(acted->by), Short(acted->reason)});
    if (acts_.size() > kActsShown) acts_.pop_front();
    if (acted->verb != OperatorVerb::kSwitch) return Status::Ok();
    asked_ = *acted;
    asked_at_ = record.now;
  } else if (std::holds_alternative<RunEnded>(record.body)) {
    ended_ = true;
  }
  return Status::Ok();
}

// To the job's first run, or from one to the next.
void JobWatch::GoOn(const RunStarted& started, Instant now, RunId run) {
  if (run_ == kNoRun) {
    start_ = now;
  } else {
    const PaceReport report = pace_->Report();
    before_.records += records_;
    before_.waited_ns += report.waited_ns;
    before_.controller_ns += report.controller_ns;
    for (const WorkerPace& worker : report.workers) {
      Done& done = before_.ranks[worker.rank];
      done.steps += worker.steps;
      done.dropped += worker.dropped + worker.exchange.dropped;
      done.computed_ns += worker.computed_ns;
      done.waited_ns += worker.waited_ns;
      done.reduced_ns += worker.reduced_ns;
      done.cost_ns += worker.cost_ns;
    }
    Switch by{.asked = now, .at = now, .run = run, .from = engine_, .to = started.engine};
    if (asked_) {
      by.asked = asked_at_;
      by.by = Short(asked_->by);
      by.reason = Short(asked_->reason);
    }
    switches_.push_back(std::move(by));
    if (switches_.size() > kSwitches) switches_.pop_front();
  }
  asked_.reset();
  std::map<Rank, Instant> come;
  for (const FormerRank& of : started.former.ranks) {
    const auto finished = finished_.find(of.rank);
    if (of.awaited && finished != finished_.end()) come.insert(*finished);
  }
  finished_ = std::move(come);
  run_ = run;
  engine_ = started.engine;
  records_ = 0;
  ended_ = false;
  present_ = std::make_unique<PresentReader>();
  pace_ = std::make_unique<PaceMeter>();
  meetings_ = Meetings();
  neighbours_.clear();
}

// A worker may come with steps of an earlier run: what it says first counts from there on, but for
// the step that it tells of.
void JobWatch::OnSteps(const Record& record, Rank rank, std::int64_t own, const Losses& losses) {
  const auto [told, first] = told_.try_emplace(rank, std::max<std::int64_t>(0, own - 1));
  const std::int64_t more = std::max<std::int64_t>(0, own - told->second);
  if (more == 0 && losses.count == 0) return;
  told->second += more;
  all_steps_ += static_cast<std::uint64_t>(more);
  steps_.Add(record.now - start_, static_cast<std::uint64_t>(more), losses);
}

JobWatch::Group JobWatch::Of(const GroupRow& row) const {
  Group group{.key = lanes_.base() + row.id,
              .id = row.id,
              .run = run_,
              .kind = row.kind,
              .formed = row.formed,
              .ended = row.ended,
              .state = row.State(),
              .reason = Short(row.reason),
              .failure = Short(row.failure),
              .all = row.members.size()};
  std::optional<Instant> latest;
  std::size_t ready = 0;
  const Instant began = row.Started().value_or(row.formed);
  for (const MemberRow& member : row.members) {
    if (group.members.size() < kMembers) group.members.push_back(member.rank);
    if (member.ready) {
      ++ready;
      group.waited_ns += std::max<DurationNs>(0, began - *member.ready);
      if (!latest || *member.ready > *latest) {
        latest = member.ready;
        group.last = member.rank;
      }
    }
    group.reduce_ns = std::max(group.reduce_ns, member.reduce_ns);
  }
  if (ready < 2) group.last = kNoRank;
  return group;
}

void JobWatch::OnGroup(const RunView::Change& change) {
  if (change.formed != nullptr) {
    groups_.push_back(Of(*change.formed));
    if (groups_.size() > kGroups) groups_.pop_front();
  }
  if (!change.ended) return;
  const GroupRow& row = *change.ended;
  const GroupId key = lanes_.base() + row.id;
  const auto at = std::lower_bound(groups_.begin(), groups_.end(), key,
                                   [](const Group& group, GroupId k) { return group.key < k; });
  if (at != groups_.end() && at->key == key) *at = Of(row);
  if (row.kind == GroupKind::kInitial || row.kind == GroupKind::kFinal || !row.AnyResult()) return;
  // A sample of large groups, so that a round costs what its members are.
  const std::size_t step = std::max<std::size_t>(1, row.members.size() / kMembers);
  for (std::size_t i = 0; i < row.members.size(); i += step) {
    for (std::size_t j = 0; j < row.members.size(); j += step) {
      if (i == j || row.members[i].weight <= 0) continue;
      meetings_.Add(row.members[j].rank, row.members[i].rank, 1);
    }
  }
}

Instant JobWatch::Now(const DaemonStatus* daemon) const {
  return ended_ || daemon == nullptr ? last_ : std::max(last_, daemon->now);
}

// For all runs; how long a step takes, for the newest.
Json JobWatch::Pace() const {
  const PaceReport report = pace_->Report();
  Json workers = Json::array();
  const auto add = [&](const WorkerPace& worker, const Done& done) {
    if (workers.size() == kWorkersShown) return;
    workers.push_back({{"rank", worker.rank},
                       {"steps", done.steps + worker.steps},
                       {"step_s", Seconds(worker.median_step_ns)},
                       {"factor", worker.factor},
                       {"computed_s", Seconds(done.computed_ns + worker.computed_ns)},
                       {"waited_s", Seconds(done.waited_ns + worker.waited_ns)},
                       {"reduced_s", Seconds(done.reduced_ns + worker.reduced_ns)},
                       {"cost_s", Seconds(done.cost_ns + worker.cost_ns)},
                       {"dropped", done.dropped + worker.dropped + worker.exchange.dropped}});
  };
  std::map<Rank, Done> others = before_.ranks;
  for (const WorkerPace& worker : report.workers) {
    const auto done = others.find(worker.rank);
    add(worker, done == others.end() ? Done() : done->second);
    if (done != others.end()) others.erase(done);
  }
  for (const auto& [rank, done] : others) add({.rank = rank}, done);
  return {{"median_step_s", Seconds(report.median_step_ns)},
          {"waited_s", Seconds(before_.waited_ns + report.waited_ns)},
          {"controller_s", Seconds(before_.controller_ns + report.controller_ns)},
          {"workers", std::move(workers)}};
}

// The senders of each receiver, a row per receiver. Neighbours where the run has some, else groups.
Json JobWatch::Graph() const {
  Meetings edges;
  if (!neighbours_.empty()) {
    for (const auto& [rank, set] : neighbours_) {
      for (const InEdge& edge : set.in) edges.Add(rank, edge.rank, edge.weight);
    }
  }
  const Meetings& shown = neighbours_.empty() ? meetings_ : edges;
  Json rows = Json::array();
  for (std::size_t a = 0; a < shown.side(); ++a) {
    Json row = Json::array();
    for (std::size_t b = 0; b < shown.side(); ++b) {
      row.push_back(std::round(shown.At(a, b) * 1000) / 1000);
    }
    rows.push_back(std::move(row));
  }
  const char* what = !neighbours_.empty()             ? "neighbours"
                     : HasStore(pace_->plan())        ? "store"
                     : FollowsSchedule(pace_->plan()) ? "schedule"
                                                      : "groups";
  return {{"what", what}, {"ranks_per_field", shown.per_field()}, {"fields", std::move(rows)}};
}

Json JobWatch::Summary(const std::vector<RunInfo>& runs, const DaemonStatus* daemon) const {
  Json json = {{"run", ToJson(runs.back())}, {"read", all_records()}};
  std::uint64_t records = 0;
  json["runs"] = Json::array();
  for (const RunInfo& run : runs) {
    records += run.records;
    json["runs"].push_back(run.run);
  }
  json["records"] = records;
  if (present_ == nullptr || present_->run() == nullptr) return json;
  // The newest one that was read.
  const auto read = std::find_if(runs.begin(), runs.end(),
                                 [this](const RunInfo& run) { return run.run == run_; });
  const Present present = present_->Read(read == runs.end() ? runs.back() : *read, daemon);
  const Instant now = Now(daemon);
  json["now_s"] = Seconds(now - start_);
  json["over"] = ended_;
  json["expected"] = present_->run()->start_workers();
  json["steps"] = all_steps_;
  json["paused"] = nullptr;
  if (const auto& hold = present_->run()->paused(); hold && !ended_) {
    json["paused"] = {{"by", Short(hold->by)},
                      {"reason", Short(hold->reason)},
                      {"for_s", Seconds(now - hold->since)}};
  }
  Json acts = Json::array();
  for (const Act& act : acts_) {
    acts.push_back({{"at_s", Seconds(act.at - start_)},
                    {"what", act.what},
                    {"by", act.by},
                    {"reason", act.reason}});
  }
  json["acts"] = std::move(acts);
  Json switches = Json::array();
  for (const Switch& by : switches_) {
    switches.push_back({{"at_s", Seconds(by.at - start_)},
                        {"asked_s", Seconds(by.asked - start_)},
                        {"run", by.run},
                        {"from", by.from},
                        {"to", by.to},
                        {"by", by.by},
                        {"reason", by.reason},
                        {"pause_s", Seconds(by.pause_ns)}});
  }
  json["switches"] = std::move(switches);
  json["forgotten_s"] = At(lanes_.forgotten(), start_);
  json["series"] = steps_.ToJson();
  json["pace"] = Pace();
  json["graph"] = Graph();
  Json workers = Json::array();
  std::map<std::string, std::size_t> states;
  for (const WorkerRow& row : present.workers) {
    // Groups have numbers; what is counted is the word.
    ++states[row.state.starts_with("in group") ? "in a group" : row.state];
    if (workers.size() == kWorkersShown) continue;
    workers.push_back({{"rank", row.rank},
                       {"state", row.state},
                       {"detail", Short(row.detail)},
                       {"here", row.here},
                       {"iteration", row.iteration},
                       {"host", Short(row.host_name)},
                       {"pid", row.pid},
                       {"why", Short(row.why)}});
    workers.back()["share"] = row.share ? Json(*row.share) : Json(nullptr);
    workers.back()["host_bytes"] = row.memory.host;
    workers.back()["device_bytes"] = row.memory.device;
    workers.back()["heard_s"] = row.heard_ns ? Json(Seconds(*row.heard_ns)) : Json(nullptr);
  }
  json["workers"] = std::move(workers);
  json["states"] = states;
  Json links = Json::array();
  for (const LinkRow& link : present.links) {
    if (links.size() == 100) break;
    links.push_back({{"a", link.a},
                     {"b", link.b},
                     {"broken_s", Seconds(link.broken_ns)},
                     {"reason", Short(link.reason)}});
  }
  json["links"] = std::move(links);
  Json refused = Json::array();
  for (const RefusalRow& row : present.refusals) {
    refused.push_back({{"rank", row.refused.rank},
                       {"host", Short(row.refused.host_name)},
                       {"reason", Short(row.refused.reason)},
                       {"ago_s", Seconds(row.ago_ns)}});
  }
  json["refused"] = std::move(refused);
  return json;
}

Json JobWatch::Timeline(double from_s, double to_s, int width, Instant now) const {
  const auto at = [&](double s) {
    return start_ + static_cast<DurationNs>(s * static_cast<double>(kSecond));
  };
  const Instant from = at(from_s);
  const Instant to = std::max(at(to_s), from + kMillisecond);
  const auto& lanes = lanes_.lanes();
  using Span = Lanes::Span;
  // The spans of a lane that touch the window, each cut to it.
  const auto each = [&](Rank rank, const Lanes::Lane& lane, const auto& visit) {
    // By their ends they are not in order where a second thread's are among them; nearly so.
    auto span = std::partition_point(lane.spans.begin(), lane.spans.end(),
                                     [&](const Span& s) { return s.to <= from; });
    for (std::size_t back = 0; back < 8 && span != lane.spans.begin(); ++back) --span;
    for (; span != lane.spans.end() && span->from < to; ++span) {
      if (span->to > from) visit(*span);
    }
    if (const std::optional<Span> open = lanes_.Open(rank, now)) {
      if (open->from < to && open->to > from) visit(*open);
    }
  };
  Json json = {
      {"from_s", from_s}, {"to_s", Seconds(to - start_)}, {"now_s", Seconds(now - start_)}};
  std::size_t spans = 0;
  if (lanes.size() <= kExactRows) {
    for (const auto& [rank, lane] : lanes) each(rank, lane, [&](const Span&) { ++spans; });
  }
  Json rows = Json::array();
  if (lanes.size() <= kExactRows && spans <= kExactSpans) {
    for (const auto& [rank, lane] : lanes) {
      Json did = Json::array();
      each(rank, lane, [&](const Span& span) {
        did.push_back({Seconds(span.from - start_), Seconds(span.to - start_),
                       std::string(1, kLetters[static_cast<std::size_t>(span.kind)]), span.group});
      });
      Json there = Json::array();
      // Also the last one before: why a worker is not there.
      for (auto stay = lane.there.begin(); stay != lane.there.end() && stay->joined < to; ++stay) {
        const auto next = std::next(stay);
        const bool last = next == lane.there.end() || next->joined >= to;
        const Instant left = stay->left.value_or(now);
        if (!last && left <= from) continue;
        there.push_back({Seconds(stay->joined - start_), Seconds(left - start_), stay->why});
      }
      rows.push_back({{"first", rank},
                      {"last", rank},
                      {"spans", std::move(did)},
                      {"there", std::move(there)}});
    }
    json["rows"] = std::move(rows);
    return json;
  }
  const std::size_t bins =
      std::clamp<std::size_t>(static_cast<std::size_t>(width) / 2, 50, kMostBins);
  const double bin_ns = static_cast<double>(to - from) / static_cast<double>(bins);
  const std::size_t per_row = (lanes.size() + kMostRows - 1) / kMostRows;
  // Time by bin and kind; the last one is being there.
  std::vector<std::array<double, 5>> took(bins);
  const auto spread = [&](Instant begin, Instant end, std::size_t kind) {
    const double first = std::max(0.0, static_cast<double>(begin - from) / bin_ns);
    const double last =
        std::min(static_cast<double>(bins), static_cast<double>(end - from) / bin_ns);
    for (auto bin = static_cast<std::size_t>(first); static_cast<double>(bin) < last; ++bin) {
      const auto left = static_cast<double>(bin);
      took[bin][kind] += std::min(last, left + 1) - std::max(first, left);
    }
  };
  std::size_t in_row = 0;
  Rank first = kNoRank;
  for (auto lane = lanes.begin(); lane != lanes.end();) {
    if (in_row == 0) {
      first = lane->first;
      std::fill(took.begin(), took.end(), std::array<double, 5>{});
    }
    each(lane->first, lane->second, [&](const Span& span) {
      spread(span.from, span.to, static_cast<std::size_t>(span.kind));
    });
    for (const auto& [joined, left, why] : lane->second.there) {
      if (joined < to && left.value_or(now) > from) spread(joined, left.value_or(now), 4);
    }
    const Rank last = lane->first;
    ++lane;
    if (++in_row < per_row && lane != lanes.end()) continue;
    std::string cells(bins, '.');
    for (std::size_t bin = 0; bin < bins; ++bin) {
      const std::array<double, 5>& time = took[bin];
      // What is beside the training loop counts where nothing else is known.
      const auto most = std::max_element(time.begin(), time.begin() + 3);
      if (*most > 0) {
        cells[bin] = kLetters[static_cast<std::size_t>(most - time.begin())];
      } else if (time[3] > 0) {
        cells[bin] = 'b';
      } else if (time[4] > 0) {
        cells[bin] = 'p';
      }
    }
    rows.push_back({{"first", first}, {"last", last}, {"cells", std::move(cells)}});
    in_row = 0;
  }
  json["rows"] = std::move(rows);
  return json;
}

Json JobWatch::Groups(double to_s, std::optional<Rank> rank) const {
  Json all = Json::array();
  for (auto group = groups_.rbegin(); group != groups_.rend(); ++group) {
    if (all.size() == kGroupsShown) break;
    if (Seconds(group->formed - start_) > to_s) continue;
    if (rank &&
        std::find(group->members.begin(), group->members.end(), *rank) == group->members.end()) {
      continue;
    }
    all.push_back({{"key", group->key},
                   {"group", group->id},
                   {"run", group->run},
                   {"kind", KindName(group->kind)},
                   {"formed_s", Seconds(group->formed - start_)},
                   {"ended_s", At(group->ended, start_)},
                   {"state", group->state},
                   {"members", group->members},
                   {"all", group->all},
                   {"waited_s", Seconds(group->waited_ns)},
                   {"last", group->last},
                   {"reduce_s", Seconds(group->reduce_ns)},
                   {"reason", group->reason},
                   {"failure", group->failure}});
  }
  return {{"groups", std::move(all)}};
}

}  // namespace prd::ctl
