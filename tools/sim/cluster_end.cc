// Cluster: whether everybody goes on, and how the run ends.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engines/violation.h"
#include "tools/sim/cluster_run.h"
#include "tools/sim/names.h"

namespace prd::sim {

// What everybody does from the last event on, until the one at hand.
void Cluster::LookForHangs(Instant until) {
  if (until.ns < FromMs(workload_.faults.until_ms)) return;
  hangs_.Disturbed(std::max(world_.disturbed_until, Instant{FromMs(workload_.faults.until_ms)}));
  hangs_.Computed(world_.longest_step);
  while (hangs_.due() <= until) {
    world_.now = hangs_.due();
    if (!hangs_.Hangs(Doings())) continue;
    throw Violation(
        "no-hang",
        "2 leases, 5 s and some steps without faults, and some have got nowhere:" + Stuck());
  }
}

std::vector<HangWatch::Worker> Cluster::Doings() const {
  // A job's first start, and that of workers that all come anew, waits for those who are missing.
  const bool away = std::any_of(workers_.begin(), workers_.end(), [](const SimWorker& worker) {
    return worker.phase() == SimWorker::Phase::kAway || worker.phase() == SimWorker::Phase::kPaused;
  });
  // What a launch begins waits until nobody of the launch before is left.
  const bool remains = std::any_of(workers_.begin(), workers_.end(), [&](const SimWorker& worker) {
    return worker.phase() != SimWorker::Phase::kAway && worker.launch() != world_.launch;
  });
  std::vector<HangWatch::Worker> seen;
  for (const SimWorker& worker : workers_) {
    HangWatch::Worker& of = seen.emplace_back();
    of.progress = worker.calls() + worker.lives();
    of.step = worker.computed();
    switch (worker.phase()) {
      case SimWorker::Phase::kComputing:
        of.doing = HangWatch::Doing::kComputes;
        break;
      case SimWorker::Phase::kAttaching:
      case SimWorker::Phase::kStepping:
      case SimWorker::Phase::kPausing:
      case SimWorker::Phase::kResuming:
      case SimWorker::Phase::kAveraging:
      case SimWorker::Phase::kLeaving:
        of.doing = HangWatch::Doing::kWaits;
        break;
      case SimWorker::Phase::kPaused:
        of.doing = HangWatch::Doing::kPauses;
        break;
      case SimWorker::Phase::kFinishing:
        of.doing = HangWatch::Doing::kFinishes;
        break;
      case SimWorker::Phase::kAway:
      case SimWorker::Phase::kDone:
      case SimWorker::Phase::kFailed:
        of.doing = HangWatch::Doing::kThrough;
        break;
    }
    const bool attaches = worker.phase() == SimWorker::Phase::kAttaching;
    const bool lacks = attaches && away && Joining(worker);
    const bool follows = attaches && remains && worker.launch() == world_.launch;
    if (lacks || follows || TooLate(worker)) of.doing = HangWatch::Doing::kThrough;
  }
  return seen;
}

bool Cluster::Joining(const SimWorker& worker) const {
  const Controller* controller = controller_.controller();
  if (controller == nullptr) return false;
  const auto run = controller->runs().find(worker.welcome().run);
  if (run == controller->runs().end()) return false;
  const auto rank = static_cast<std::size_t>(worker.welcome().rank);
  return rank < run->second->workers().size() &&
         run->second->workers()[rank].state == WorkerState::kJoining;
}

// The first run that somebody has finished; kNoRun: none.
RunId Cluster::FirstDone() const {
  RunId first = kNoRun;
  for (const SimWorker& worker : workers_) {
    if (worker.phase() != SimWorker::Phase::kDone) continue;
    const RunId run = worker.run_number();
    first = first == 0 ? run : std::min(first, run);
  }
  return first;
}

// A worker that comes (back) after others are done is in a run of its own, or in theirs, if the
// controller has forgotten its end, and waits there for a common start: nothing is wrong with that.
bool Cluster::TooLate(const SimWorker& worker) const {
  const RunId first = FirstDone();
  const bool after = worker.run_number() > first || (world_.forgot && worker.run_number() == first);
  return first > 0 && after && Joining(worker);
}

bool Cluster::Finished() const {
  return FirstDone() > 0 &&
         std::all_of(workers_.begin(), workers_.end(), [&](const SimWorker& worker) {
           return worker.phase() == SimWorker::Phase::kDone || TooLate(worker);
         });
}

std::string Cluster::Stuck() const {
  std::string text;
  for (const SimWorker& worker : workers_) {
    if (worker.phase() == SimWorker::Phase::kDone) continue;
    text += "\n  " + worker.Where();
    const Controller* controller = controller_.controller();
    if (controller == nullptr) continue;
    const auto run = controller->runs().find(worker.welcome().run);
    if (run != controller->runs().end()) {
      text += "; the controller says: " + run->second->Explain(world_.now, worker.welcome().rank);
    }
    if (text.size() > 4000) return text + "\n  ...";
  }
  return text;
}

// Whose Hello the controller has not forgotten.
std::set<Incarnation> Cluster::Known() const {
  std::set<Incarnation> known;
  for (const auto& [id, run] : controller_.store().runs()) {
    for (const Record& record : run.records) {
      const auto* from = std::get_if<FromWorker>(&record.body);
      if (from != nullptr && std::holds_alternative<Hello>(from->envelope.body)) {
        known.insert(from->envelope.incarnation);
      }
    }
  }
  return known;
}

void Cluster::CheckEnd() {
  for (const SimWorker& worker : workers_) {
    if (worker.phase() == SimWorker::Phase::kFailed) {
      throw Violation("live", "a call of the library fails:\n  " + worker.Where());
    }
  }
  const bool cut =
      workload_.cluster.cut && world_.now.ns >= FromMs(workload_.cluster.seconds * 1000);
  if (workload_.cluster.steps > 0 && !stop_ && !cut && !Finished()) {
    throw Violation("no-hang", "faults have stopped, and some do not finish by " +
                                   std::to_string(workload_.cluster.seconds) + " s:" + Stuck());
  }
  std::map<RunId, std::uint64_t> tags;
  const std::set<Incarnation> known = Known();
  for (std::uint32_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].phase() != SimWorker::Phase::kDone) continue;
    const Incarnation incarnation = workers_[i].incarnation();
    if (lost_.contains(incarnation) || world_.dismissed.contains(incarnation)) continue;
    if (world_.forgot && !known.contains(incarnation)) continue;
    const std::uint64_t tag = workers_[i].Mark();
    if (tags.try_emplace(workers_[i].run_number(), tag).first->second != tag) {
      throw Violation("replicas-agree", WorkerName(i) + " ends with another replica than others");
    }
  }
  plane_->CheckEnd();
  controller_.CheckReplay();
}

}  // namespace prd::sim
