// prd-train: one worker of a data-parallel training of Fashion-MNIST, and the example to read. What
// concerns prd is in main: a session, a replica, Attach, Step in a loop, Finish. Nothing here knows
// which consistency engine the controller runs.
#include <prd/session.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <thread>

#include "worker/examples/dataset.h"
#include "worker/examples/model.h"
#include "worker/examples/snapshot.h"
#include "worker/examples/step_log.h"
#include "worker/examples/train_args.h"

namespace {

using example::MonotonicNs;

volatile std::sig_atomic_t g_stop = 0;
prd::Session* g_session = nullptr;

// Once: ends after this step, with the average. Twice: at once.
void OnSignal(int) {
  if (g_stop != 0 && g_session != nullptr) g_session->Cancel();
  g_stop = 1;
}

int Fail(const char* where, const prd::Status& status) {
  std::fprintf(stderr, "prd-train: %s: %s\n", where, status.ToString().c_str());
  return 1;
}

std::vector<prd::Tensor> Tensors(const std::vector<example::Array>& arrays) {
  std::vector<prd::Tensor> tensors;
  for (const auto& array : arrays) tensors.push_back({array.data, array.count, prd::DType::kF32});
  return tensors;
}

// Writes a snapshot now and then.
class Snapshots {
 public:
  Snapshots(const example::TrainArgs& args, example::Model& model) : args_(args), model_(model) {}

  void Write(const example::SnapshotHeader& header) {
    if (args_.snapshot_dir.empty()) return;
    example::WriteSnapshot(args_.snapshot_dir, number_++, {header, model_.CopyParameters()});
    due_ns_ = header.time_ns + args_.snapshot_ms * 1'000'000;
  }
  bool Due(std::int64_t now_ns) const { return now_ns >= due_ns_; }

 private:
  const example::TrainArgs& args_;
  example::Model& model_;
  std::int64_t number_ = 0;
  std::int64_t due_ns_ = 0;
};

bool MayGoOn(const example::TrainArgs& args, const example::SnapshotHeader& done,
             std::int64_t start_ns) {
  if (g_stop != 0) return false;
  if (args.steps > 0 && done.steps >= args.steps) return false;
  if (args.seconds > 0 && static_cast<double>(MonotonicNs() - start_ns) >= args.seconds * 1e9) {
    return false;
  }
  return args.stop_file.empty() || access(args.stop_file.c_str(), F_OK) != 0;
}

std::int64_t StepNs(const example::TrainArgs& args, int rank) {
  const auto slow = args.slow.find(rank);
  const double factor = slow == args.slow.end() ? 1 : slow->second;
  return static_cast<std::int64_t>(args.step_ms * factor * 1e6);
}

void SleepUntil(std::int64_t monotonic_ns) {
  std::this_thread::sleep_until(
      std::chrono::steady_clock::time_point(std::chrono::nanoseconds(monotonic_ns)));
}

// By the replica's iteration, which the engine keeps in step between workers: the count of local
// steps alone would leave a slow worker's rate behind.
double LearningRate(const example::TrainArgs& args, std::int64_t iteration) {
  if (args.decay_steps == 0) return args.learning_rate;
  return args.learning_rate / (1 + static_cast<double>(iteration) / args.decay_steps);
}

// The training loop. `done` counts what was done.
prd::Status Train(const example::TrainArgs& args, prd::Session& session, example::Model& model,
                  const example::Dataset& shard, example::StepLog& log, Snapshots& snapshots,
                  example::SnapshotHeader& done) {
  example::Sampler sampler(shard.size(),
                           args.seed * 1'000'003 + static_cast<std::uint64_t>(session.rank()));
  std::vector<std::size_t> batch(args.batch);
  const std::int64_t step_ns = StepNs(args, session.rank());
  const std::int64_t start_ns = MonotonicNs();
  log.Start(session, start_ns, step_ns);
  done.time_ns = start_ns;
  snapshots.Write(done);
  for (std::int64_t now_ns = start_ns; MayGoOn(args, done, start_ns); now_ns = MonotonicNs()) {
    if (snapshots.Due(now_ns)) {
      done.time_ns = now_ns;
      snapshots.Write(done);
      log.Flush();
    }
    for (std::size_t& index : batch) index = sampler.Next();
    const double loss = model.ComputeGradients(shard, batch);
    if (step_ns > 0) SleepUntil(now_ns + step_ns);

    model.SetSgd(LearningRate(args, session.iteration()), args.momentum);
    auto step = session.Step({.samples = static_cast<std::int64_t>(args.batch)});
    if (!step.ok()) return step.status();
    log.Step(*step, MonotonicNs(), loss);
    ++done.steps;
    done.samples += static_cast<std::int64_t>(args.batch);
    if (!step->members.empty()) done.updates += 1.0 / static_cast<double>(step->members.size());
  }
  return {};
}

int Run(const example::TrainArgs& args) {
  example::ComputeOnOneThread();
  example::Dataset all = example::LoadDataset(args.data, "train");
  example::Model model(args.model, args.seed, example::MeanImage(all));
  example::StepLog log(args.log);
  Snapshots snapshots(args, model);

  auto session = prd::Session::FromEnvironment();
  if (!session.ok()) return Fail("session", session.status());
  g_session = &*session;
  prd::Replica replica;
  replica.parameters = Tensors(model.Parameters());
  replica.gradients = Tensors(model.Gradients());
  replica.apply = [&] { model.ApplySgd(); };
  const prd::Status attached = session->Attach(std::move(replica));
  if (!attached.ok()) return Fail("attach", attached);

  const example::Dataset shard =
      example::TakeShard(all, args.sharding, session->rank(), session->workers(), args.seed);
  all = {};  // many workers share a host
  example::SnapshotHeader done{.rank = session->rank()};
  const prd::Status trained = Train(args, *session, model, shard, log, snapshots, done);
  if (!trained.ok()) return Fail("step", trained);
  const prd::Status finished = session->Finish();
  if (!finished.ok()) return Fail("finish", finished);
  done.time_ns = MonotonicNs();
  done.final = 1;
  snapshots.Write(done);
  log.Finished(done.time_ns);
  g_session = nullptr;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  example::TrainArgs args;
  int exit_code = 0;
  if (!example::ParseTrainArgs(argc, argv, &args, &exit_code)) return exit_code;
  std::signal(SIGTERM, OnSignal);
  std::signal(SIGINT, OnSignal);
  try {
    return Run(args);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "prd-train: %s\n", error.what());
    return 1;
  }
}
