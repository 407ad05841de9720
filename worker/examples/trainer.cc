// The example to read: all that concerns prd is in RunTrainer and Train, which have a session, a
// replica, Attach, Step in a loop, and Finish. Nothing here knows which consistency engine the
// controller runs.
#include "worker/examples/trainer.h"

#include <prd/leave_on_signal.h>
#include <prd/session.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "worker/examples/pass_mean.h"
#include "worker/examples/snapshot.h"
#include "worker/examples/step_log.h"

namespace example {
namespace {

std::atomic<int> g_interrupts = 0;
prd::Session* g_session = nullptr;

// SIGINT, which a terminal sends to all workers: ends after this step, with the average of all. A
// second one: leaves as for SIGTERM. A third one ends the program.
void OnInterrupt(int) {
  const bool first = ++g_interrupts == 1;
  const char* const text = first ? "finishes after this step, and waits for the other workers; "
                                   "once more: leaves\n"
                                 : "leaves the job; the others go on; once more: at once\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text, std::strlen(text));
  if (first) return;
  g_session->LeaveSoon("SIGINT");
  std::signal(SIGINT, SIG_DFL);
}

std::vector<prd::Tensor> Tensors(const std::vector<Array>& arrays) {
  std::vector<prd::Tensor> tensors;
  for (const auto& array : arrays) tensors.push_back({array.data, array.count, prd::DType::kF32});
  return tensors;
}

// An optimiser's: copied with the parameters, so that replicas that are equal stay equal.
std::vector<prd::StateTensor> States(const std::vector<Array>& arrays) {
  std::vector<prd::StateTensor> states;
  for (const auto& array : arrays) states.push_back({array.data, array.count, prd::DType::kF32});
  return states;
}

// Writes a snapshot now and then.
class Snapshots {
 public:
  Snapshots(const TrainArgs& args, Learner& learner) : args_(args), learner_(learner) {}

  void Write(const SnapshotHeader& header) {
    if (args_.snapshot_dir.empty()) return;
    WriteSnapshot(args_.snapshot_dir, {header, learner_.CopyParameters()});
    due_ns_ = header.time_ns + args_.snapshot_ms * 1'000'000;
  }
  bool Due(std::int64_t now_ns) const { return now_ns >= due_ns_; }

 private:
  const TrainArgs& args_;
  Learner& learner_;
  std::int64_t due_ns_ = 0;
};

bool MayGoOn(const TrainArgs& args, const SnapshotHeader& done, std::int64_t start_ns) {
  if (g_interrupts > 0) return false;
  if (args.steps > 0 && done.steps >= args.steps) return false;
  if (args.seconds > 0 && static_cast<double>(MonotonicNs() - start_ns) >= args.seconds * 1e9) {
    return false;
  }
  return true;
}

// By the steps of all workers, so that all have the same rate, whatever a slow one has done itself;
// and so many as a worker has made on average, whatever number of workers there is.
double LearningRate(const TrainArgs& args, const prd::Session& session) {
  if (args.decay_steps == 0) return args.learning_rate;
  const auto steps = static_cast<double>(session.progress().steps);
  return args.learning_rate / (1 + steps / session.workers() / args.decay_steps);
}

// In a pause, so that no other worker waits for this one, and nothing of its work is dropped as
// late.
prd::Status Evaluate(prd::Session& session, Learner& learner) {
  prd::PauseScope pause(session);
  if (!pause.status().ok()) return pause.status();
  if (const std::optional<double> accuracy = learner.TestAccuracy()) {
    std::printf("{\"rank\":%d,\"steps\":%lld,\"test_accuracy\":%.6g}\n", session.rank(),
                static_cast<long long>(session.progress().own_steps), *accuracy);
    std::fflush(stdout);
  }
  return pause.Resume();
}

Pass NextPass(const TrainArgs& args, const prd::Session& session) {
  const prd::BatchShare share = session.share();
  if (share.batch == 0) return {.samples = static_cast<std::int64_t>(args.batch)};
  return {share.step, share.first, share.samples, share.batch};
}

// The training loop. `done` counts what was done.
prd::Status Train(const TrainArgs& args, prd::Session& session, Learner& learner, StepLog& log,
                  Snapshots& snapshots, SnapshotHeader& done) {
  const Pace pace(args, session.rank(), session.workers());
  const Interrupted interrupted = [&session] { return session.Interrupted(); };
  const std::int64_t start_ns = MonotonicNs();
  log.Start(session, start_ns, pace.step_ns());
  done.time_ns = start_ns;
  snapshots.Write(done);
  const bool evaluates = args.evaluate_every > 0 && session.rank() == 0;
  const std::vector<Array> gradients = learner.Gradients();
  PassMean mean;
  bool reached = false;  // the job's goal
  bool partial = false;  // more of the step is to be computed
  prd::Status status;
  for (std::int64_t step = 0; partial || (!reached && MayGoOn(args, done, start_ns)); ++step) {
    if (!partial && evaluates && step > 0 && step % args.evaluate_every == 0) {
      const prd::Status evaluated = Evaluate(session, learner);
      if (!evaluated.ok()) return evaluated;
    }
    const std::int64_t now_ns = MonotonicNs();
    if (snapshots.Due(now_ns)) {
      done.time_ns = now_ns;
      snapshots.Write(done);
      log.Flush();
    }
    const Pass pass = NextPass(args, session);
    const std::optional<double> loss = learner.ComputeGradients(pass, interrupted);
    if (loss) session.TellLoss(*loss);
    const std::int64_t end_ns = pace.EndNs(step, now_ns, MonotonicNs(), pass.samples);
    const bool whole = loss && WaitUntil(end_ns, interrupted);
    if (whole && pass.batch > 0) mean.Add(gradients, pass.samples);

    const std::int64_t samples = whole ? pass.samples : 0;
    auto result = session.Step({.samples = samples, .discard = !whole});
    if (!result.ok()) {
      status = result.status();
      break;
    }
    log.Step(*result, session.group_transports(), MonotonicNs(), samples,
             whole ? loss : std::nullopt);
    reached = result->done;
    partial = result->partial;
    if (partial) {
      mean.Keep(gradients);
    } else {
      mean.Restart();
    }
    done.steps += whole && !partial ? 1 : 0;
    done.samples += samples;
    // Without a group each exchange is an update of its own.
    const std::size_t members = std::max<std::size_t>(1, result->members.size());
    done.updates += static_cast<double>(result->rounds) / static_cast<double>(members);
  }
  done.time_ns = MonotonicNs();
  snapshots.Write(done);
  return status;
}

}  // namespace

std::vector<float> Learner::CopyParameters() {
  std::vector<float> parameters;
  for (const Array& array : Parameters()) {
    parameters.insert(parameters.end(), array.data, array.data + array.count);
  }
  return parameters;
}

int RunTrainer(const char* program, const TrainArgs& args, Learner& learner) {
  const auto fail = [program](const char* where, const prd::Status& status) {
    std::fprintf(stderr, "%s: %s: %s\n", program, where, status.ToString().c_str());
    return 1;
  };
  StepLog log(args.log);
  Snapshots snapshots(args, learner);

  auto options = prd::Session::OptionsFromEnvironment();
  if (!options.ok()) return fail("session", options.status());
  // Gradients are added up in the host's memory (PassMean).
  options->accumulates = learner.Device() == "cpu" && learner.TakesShares();
  auto session = prd::Session::Create(*std::move(options));
  if (!session.ok()) return fail("session", session.status());
  g_session = &*session;
  const prd::LeaveOnSignal leaver(*session, {SIGTERM, SIGINT});
  const auto told = [&leaver] { return leaver.came() != 0 || g_interrupts > 1; };
  prd::Replica replica;
  replica.device = learner.Device();
  replica.stream = learner.Stream();
  replica.parameters = Tensors(learner.Parameters());
  replica.gradients = Tensors(learner.Gradients());
  replica.state = States(learner.State());
  replica.apply = [&] { learner.Apply(LearningRate(args, *session)); };
  const prd::Status attached = session->Attach(std::move(replica));
  if (!attached.ok()) return told() ? 0 : fail("attach", attached);
  std::signal(SIGINT, OnInterrupt);

  const std::int64_t batch = session->share().batch;
  if (batch > 0 && !learner.TakesShares()) {
    return fail("batch", prd::Status(prd::Code::kFailedPrecondition,
                                     "the job divides a batch of " + std::to_string(batch) +
                                         " samples, and this program has steps of one size"));
  }
  learner.TakePart(session->rank(), session->workers(), batch);
  SnapshotHeader done{.rank = session->rank()};
  const prd::Status trained = Train(args, *session, learner, log, snapshots, done);
  if (!trained.ok()) return told() ? 0 : fail("step", trained);
  const prd::Status finished = session->Finish();
  if (!finished.ok()) return told() ? 0 : fail("finish", finished);
  done.time_ns = MonotonicNs();
  done.final = 1;
  snapshots.Write(done);
  const std::optional<double> validation = learner.ValidationLoss();
  if (validation) std::printf("{\"rank\":%d,\"validation_loss\":%.6g}\n", done.rank, *validation);
  if (const std::optional<double> accuracy = learner.TestAccuracy()) {
    std::printf("{\"rank\":%d,\"test_accuracy\":%.6g}\n", done.rank, *accuracy);
  }
  const prd::GroupTransports groups = session->group_transports();
  if (learner.Device() != "cpu") {
    std::printf("{\"rank\":%d,\"device\":\"%s\",\"groups\":%s}\n", done.rank,
                learner.Device().c_str(), Encode(groups).c_str());
  }
  log.Finished(groups, done.time_ns, validation);
  return 0;
}

}  // namespace example
