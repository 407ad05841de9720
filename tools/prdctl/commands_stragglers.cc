#include "engines/words.h"
#include "tools/prdctl/columns.h"
#include "tools/prdctl/commands_exchange.h"
#include "tools/prdctl/meters.h"

namespace prd::ctl {
namespace {

using Align = Table::Align;

// A worker, and whether it counts as slow.
struct PaceLine {
  const WorkerPace* pace;
  bool slow = false;
  Instant start;  // of the run
};

const std::vector<Column<PaceLine>>& Columns() {
  using Line = PaceLine;
  static const std::vector<Column<Line>> columns = {
      {"RANK", "rank", "", "", [](const Line& w) { return w.pace->rank; }, Shown::kAlways},
      {"FACTOR", "factor", "", "its median step over the median worker's",
       [](const Line& w) { return w.pace->factor; }, Shown::kAlways,
       [](const Line& w) { return Number(w.pace->factor, 2) + "x"; }},
      {"STEP", "median_step_ns", "ns", "its median step, waiting excluded",
       [](const Line& w) { return w.pace->median_step_ns; }, Shown::kAlways},
      {"SLOWEST", "slowest_step_ns", "ns", "its longest step",
       [](const Line& w) { return w.pace->slowest_step_ns; }, Shown::kAlways},
      {"STEPS", "steps", "", "steps that it has told of",
       [](const Line& w) { return w.pace->steps; }, Shown::kAlways},
      {"", "computed_ns", "ns", "all its steps together",
       [](const Line& w) { return w.pace->computed_ns; }, Shown::kInJson},
      {"WAITED", "waited_ns", "ns", "how long its signals stood, or it waited for updates",
       [](const Line& w) { return w.pace->waited_ns; }, Shown::kAlways},
      {"", "reduced_ns", "ns", "how long its groups reduced, by its own measure",
       [](const Line& w) { return w.pace->reduced_ns; }, Shown::kInJson},
      {"COST OTHERS", "cost_others_ns", "ns",
       "waiting of others that is owed to it: of those who were ready before it, in its groups",
       [](const Line& w) { return w.pace->cost_ns; }, Shown::kAlways},
      {"LOCAL STEPS", "local_steps_mean", "steps",
       "local steps with which it came to a round: mean (least-most)",
       [](const Line& w) { return w.pace->mean_local_steps; }, Shown::kWhereNotZero,
       [](const Line& w) {
         if (w.pace->most_local_steps == 0) return std::string();
         return Number(w.pace->mean_local_steps, 1) + " (" +
                std::to_string(w.pace->fewest_local_steps) + "-" +
                std::to_string(w.pace->most_local_steps) + ")";
       }},
      {"", "local_steps_min", "steps", "the fewest of these",
       [](const Line& w) { return w.pace->fewest_local_steps; }, Shown::kInJson},
      {"", "local_steps_max", "steps", "the most of these",
       [](const Line& w) { return w.pace->most_local_steps; }, Shown::kInJson},
      {"", "rounds_in", "rounds", "rounds, or groups, that took effect with something of it",
       [](const Line& w) { return w.pace->rounds_in; }, Shown::kInJson},
      {"PASSED OVER", "rounds_without", "rounds",
       "rounds that took effect without anything of it, of all while it was there",
       [](const Line& w) { return w.pace->rounds_without; }, Shown::kWhereNotZero,
       [](const Line& w) {
         return std::to_string(w.pace->rounds_without) + " of " +
                std::to_string(w.pace->rounds_without + w.pace->rounds_in);
       }},
      {"IN A ROW", "longest_without", "rounds", "the most of these one after the other",
       [](const Line& w) { return w.pace->longest_without; }},
      {"DROPPED", "dropped", "updates",
       "updates of its own that came too late and were not used; their share of all it had",
       [](const Line& w) { return w.pace->dropped; }, Shown::kWhereNotZero,
       [](const Line& w) {
         if (w.pace->dropped == 0) return std::string("0");
         return std::to_string(w.pace->dropped) + " (" + Number(100 * w.pace->dropped_share, 1) +
                "%)";
       }},
      {"", "dropped_share", "", "of all that it had for rounds",
       [](const Line& w) { return w.pace->dropped_share; }, Shown::kInJson},
      {"", "last_dropped_s", "s", "when it lost the last of these, after the run's start",
       [](const Line& w) {
         return w.pace->dropped > 0 ? Json(Seconds(w.pace->last_dropped - w.start)) : Json(nullptr);
       },
       Shown::kInJson},
      {"", "dropped_because", "", "why, in words",
       [](const Line& w) { return w.pace->dropped_because; }, Shown::kInJson},
      {"GRADIENTS LOST", "gradients_lost", "gradients",
       "gradients in no round yet when it left, or was lost",
       [](const Line& w) { return w.pace->gradients_lost; }},
      {"OWN GROUPS", "own_groups", "groups", "groups drawn ahead for it that took effect",
       [](const Line& w) { return w.pace->own_groups; }},
      {"PASSIVE", "passive_groups", "groups",
       "groups drawn ahead in which it took part on another worker's account",
       [](const Line& w) { return w.pace->passive_groups; }},
      {"JUMPS", "jumps", "", "times that it went on by more than one iteration",
       [](const Line& w) { return w.pace->exchange.jumps; }},
      {"SKIPPED", "skipped_iterations", "iterations", "iterations that it skipped so",
       [](const Line& w) { return w.pace->exchange.skipped; }},
      {"UPDATES DROPPED", "dropped_updates", "updates",
       "updates that came to it and were never used",
       [](const Line& w) { return w.pace->exchange.dropped; }},
      {"SUPPRESSED", "suppressed_updates", "updates",
       "updates of its own that were not sent: their receiver was past them",
       [](const Line& w) { return w.pace->exchange.suppressed; }},
      {"AHEAD", "ahead", "iterations",
       "how often it was let go on so many iterations ahead of the slowest worker it depends on; "
       "of "
       "many values, and in JSON, the median, the 90th percentile and the most",
       [](const Line& w) {
         const std::map<Iteration, std::uint64_t>& ahead = w.pace->exchange.ahead;
         if (ahead.empty()) return Json(nullptr);
         return Json{{"median", Quantile(ahead, 0.5)},
                     {"p90", Quantile(ahead, 0.9)},
                     {"max", ahead.rbegin()->first}};
       },
       Shown::kWhereNotZero, [](const Line& w) { return Shares(w.pace->exchange.ahead); }},
      {"", "slow", "", "its factor is at least --factor", [](const Line& w) { return w.slow; },
       Shown::kAlways, [](const Line& w) { return std::string(w.slow ? "slow" : " "); }},
  };
  return columns;
}

std::vector<PaceLine> LinesOf(const PaceReport& report, double slow_factor) {
  std::vector<PaceLine> lines;
  for (const WorkerPace& pace : report.workers) {
    lines.push_back({&pace, pace.factor >= slow_factor, report.start});
  }
  return lines;
}

void PrintDrops(const PaceReport& report, const Console& console) {
  for (const WorkerPace& w : report.workers) {
    if (w.dropped == 0) continue;
    console.out << "rank " << w.rank << " lost an update at "
                << Number(Seconds(w.last_dropped - report.start), 3)
                << " s, its last: " << Harmless(w.dropped_because) << '\n';
  }
}

// What the figures do not mean, by the way the workers go about their steps.
void PrintPlan(const Plan& plan, const Console& console) {
  if (StepsPerSignal(plan) > 1) {
    console.out << "only every " << StepsPerSignal(plan)
                << "th step of a worker signals: those are counted\n";
  }
  // The first to come form the group: each pair of fast workers waits for its second member.
  if (TrainsInGroups(plan) && !DrawnAhead(plan) && !TrainsInRounds(plan) && !AllOrNone(plan)) {
    console.out << "groups form of whoever is ready first, and their first members wait for the "
                   "last: a fast worker, in many groups, may owe more of that in all than a slow "
                   "one in few; compare COST OTHERS over STEPS\n";
  }
  if (RunAhead(plan) > 0) {
    console.out << "overlap: to wait did not stop the training loops, which go on for up to "
                << RunAhead(plan) << (RunAhead(plan) == 1 ? " step" : " steps")
                << " while a signal waits: WAITED is how long signals stood\n";
  } else if (AveragesInBackground(plan)) {
    console.out
        << "groups start at once on all members, whatever these do: nobody waits for them\n";
  }
}

// Steps are not told where workers draw their groups themselves.
bool NothingTold(const PaceReport& report) {
  return FollowsSchedule(report.plan) && report.train_groups == 0;
}

void PrintPaces(const PaceReport& report, double slow_factor, const Console& console) {
  const std::vector<PaceLine> lines = LinesOf(report, slow_factor);
  TableOf(Columns(), lines).Print(console.out);
  std::vector<Rank> slow;
  for (const PaceLine& line : lines) {
    if (line.slow) slow.push_back(line.pace->rank);
  }
  console.out << "slow (" << Number(slow_factor, 1) << "x the median step of "
              << words::Duration(report.median_step_ns) << ", or more): " << words::Ranks(slow)
              << "\nworkers waited " << words::Duration(report.waited_ns)
              << " for one another in all, "
              << (report.round_ns > 0
                      ? words::Duration(report.round_ns) + " for the round before to end, "
                      : std::string());
  if (!TrainsInGroups(report.plan)) {
    console.out << words::Duration(report.moving_ns)
                << (HasNeighbours(report.plan)
                        ? " for updates that were sent to get there and be averaged"
                        : " for updates to be stored")
                << ", and " << words::Duration(report.controller_ns) << " for the controller\n";
  } else if (DrawnAhead(report.plan)) {
    console.out << "and " << words::Duration(report.queued_ns)
                << " for groups before theirs that shared a member (" << report.conflicts << " of "
                << report.train_groups << " groups in conflict)\n";
  } else {
    console.out << "and " << words::Duration(report.controller_ns) << " for the controller\n";
  }
  PrintPlan(report.plan, console);
  PrintDrops(report, console);
}

}  // namespace

std::string StragglersColumns() { return HelpOf(Columns()); }

Status ShowStragglers(HistorySource& source, const std::string& run, double slow_factor,
                      const Console& console) {
  PaceMeter meter;
  Result<RunInfo> info = Measure(source, run, meter);
  if (!info.ok()) return info.status();
  const PaceReport report = meter.Report();
  if (console.json) {
    Json workers = Json::array();
    for (const PaceLine& line : LinesOf(report, slow_factor)) {
      workers.push_back(Json::object());
      AddValues(Columns(), line, &workers.back());
    }
    console.out << Dump({{"run", ToJson(*info)},
                         {"median_step_ns", report.median_step_ns},
                         {"waited_for_members_ns", report.waited_ns},
                         {"waited_for_rounds_ns", report.round_ns},
                         {"waited_for_groups_ns", report.queued_ns},
                         {"waited_for_controller_ns", report.controller_ns},
                         {"moving_ns", report.moving_ns},
                         {"rounds", report.rounds},
                         {"train_groups", report.train_groups},
                         {"conflicts", report.conflicts},
                         {"run_ahead", RunAhead(report.plan)},
                         {"scheduled", FollowsSchedule(report.plan)},
                         {"workers", std::move(workers)}})
                << '\n';
    return Status::Ok();
  }
  PRD_RETURN_IF_ERROR(PrintInTurn(source, *info, console));
  if (NothingTold(report)) {
    console.out << "nothing to tell: workers draw their groups themselves, by a schedule (prdctl "
                   "groups), and report neither steps nor waits to the controller\n";
    return Status::Ok();
  }
  PrintPaces(report, slow_factor, console);
  return Status::Ok();
}

}  // namespace prd::ctl
