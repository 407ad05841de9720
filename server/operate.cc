#include "server/operate.h"

#include <algorithm>
#include <vector>

#include "config/engine_text.h"
#include "engines/words.h"

namespace prd {
namespace {

// The workers of the job that are on the host, as Run takes it.
std::vector<Rank> OnHost(const Run& run, const std::string& host) {
  std::vector<Rank> ranks;
  for (std::size_t i = 0; i < run.workers().size(); ++i) {
    const RunWorker& worker = run.workers()[i];
    const bool there = worker.state != WorkerState::kAbsent;
    if (there && (worker.host == host || worker.host_name == host)) {
      ranks.push_back(static_cast<Rank>(i));
    }
  }
  return ranks;
}

const Run* Find(const Controller& controller, const std::string& name) {
  const auto found =
      std::find_if(controller.runs().begin(), controller.runs().end(), [&](const auto& entry) {
        return entry.second->spec().name == name && !entry.second->ended();
      });
  return found == controller.runs().end() ? nullptr : found->second.get();
}

std::string Done(const OperatorActed& what, const std::string& job,
                 const std::vector<Rank>& drained) {
  switch (what.verb) {
    case OperatorVerb::kEvict:
      return RankName(what.rank) + " of job " + job + " is removed";
    case OperatorVerb::kDrain:
      return words::Ranks(drained) + " of job " + job +
             (drained.size() == 1 ? " leaves" : " leave") +
             " at the next boundary (prdctl workers shows who is still there)";
    case OperatorVerb::kEnd:
      return "job " + job + " is done: its workers stop at their next boundary";
    case OperatorVerb::kPause:
      return "job " + job + " is paused: its workers wait with their next signals";
    case OperatorVerb::kResume:
      return "job " + job + " goes on";
    case OperatorVerb::kSwitch:
      return "job " + job +
             " goes on in another run once each of its workers has ended its step (prdctl jobs)";
  }
  return {};
}

}  // namespace

std::string Words(const Act& act) {
  const OperatorActed& what = act.what;
  std::string text = VerbName(what.verb);
  if (what.verb == OperatorVerb::kEvict) text += " rank " + std::to_string(what.rank) + " of";
  if (what.verb == OperatorVerb::kDrain) text += " host " + what.host + " of";
  text += act.job.empty() ? " all jobs" : " job " + act.job;
  if (what.verb == OperatorVerb::kSwitch) text += " to " + what.spec;
  return text + (what.reason.empty() ? "" : ": " + what.reason);
}

Result<std::string> Operate(Instant now, const Rights& rights, const Act& act,
                            Controller* controller) {
  if (!rights.operates) {
    return Status(Code::kFailedPrecondition,
                  "permission denied: only an operator may " + Words(act) +
                      " (role = \"operator\" of the identity in the daemon's config)");
  }
  const bool drains = act.what.verb == OperatorVerb::kDrain;
  if (act.job.empty() && !drains) {
    return Status(Code::kInvalidArgument, std::string(VerbName(act.what.verb)) + ": of which job?");
  }
  std::vector<std::string> jobs;
  if (!act.job.empty()) jobs.push_back(act.job);
  for (const auto& [id, run] : controller->runs()) {
    const bool wanted = act.job.empty() && !run->ended() && rights.Covers(run->spec().name);
    if (wanted && !OnHost(*run, act.what.host).empty()) jobs.push_back(run->spec().name);
  }
  if (jobs.empty()) {
    return Status(Code::kNotFound, "no job has a worker on host " + act.what.host);
  }
  std::string done;
  Status failed = Status::Ok();
  for (const std::string& name : jobs) {
    // A job that is not its own is to it as if there were none.
    if (!rights.Covers(name)) return Status(Code::kNotFound, "no run of job " + name + " goes on");
    const Run* run = Find(*controller, name);
    const std::vector<Rank> drained =
        drains && run != nullptr ? OnHost(*run, act.what.host) : std::vector<Rank>();
    OperatorActed what = act.what;
    std::string pace;
    if (what.verb == OperatorVerb::kSwitch && run != nullptr) {
      const Result<JobSpec> spec = SwitchedSpec(run->spec(), what.spec);
      if (!spec.ok()) return spec.status();
      what.spec = spec->text;
      pace = SlowestSetsPace(spec->engine, run->live());
    }
    const Status status = controller->Act(now, name, what);
    if (!status.ok()) {
      failed = status;
      continue;
    }
    done += (done.empty() ? "" : "; ") + Done(act.what, name, drained) +
            (pace.empty() ? "" : "; warning: " + pace);
  }
  if (done.empty()) return failed;
  return done + (failed.ok() ? "" : "; but " + failed.message());
}

}  // namespace prd
