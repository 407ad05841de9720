#include "tests/tools/prdctl/story.h"

#include <set>
#include <tuple>

#include "config/config.h"
#include "engines/p_reduce/options.h"

namespace prd::ctl {

std::string DefaultSpecOf(const std::string& engine) {
  for (const EngineOptions& options : AllEngines()) {
    if (EngineName(options) != engine) continue;
    JobSpec spec;
    spec.name = "j";
    spec.engine = options;
    return JobSpecToToml(spec);
  }
  return "";
}

namespace {

// Workers that say what is needed to go on, in virtual time.
class Virtual {
 public:
  Virtual(RunId run, const JobSpec& spec, const RealRun& plan)
      : plan_(plan), run_(run, spec), workers_(plan.step_ns.size()) {}

  std::vector<Record> Go(std::uint64_t* hash, Snapshot* half) {
    RunOutput out;
    run_.Start(now_, 1'700'000'000 * kSecond, {}, {}, &out);
    Take(out);
    for (Rank rank = 0; rank < static_cast<Rank>(workers_.size()); ++rank) {
      Later(0, rank,
            Hello{.job = run_.spec().name,
                  .rank = rank,
                  .host = "boot",
                  .host_name = "host" + std::to_string(rank),
                  .pid = 100 + static_cast<std::uint32_t>(rank),
                  .endpoints = {"ipc:///x", "tcp://x:1"},
                  .model_bytes = 8,
                  .model_hash = 5,
                  .takes_shares = true});
    }
    bool dead = plan_.dies == kNoRank;
    while (!agenda_.empty()) {
      const std::int64_t at = std::get<0>(*agenda_.begin());
      if (at > plan_.until_ms * kMillisecond) break;
      if (!dead && at > plan_.dies_ms * kMillisecond) {
        dead = true;
        now_ = Instant{kSecond + plan_.dies_ms * kMillisecond};
        Worker& victim = Of(plan_.dies);
        victim.gone = true;
        Step(LeaseExpired{.rank = plan_.dies, .incarnation = victim.incarnation});
        continue;
      }
      const auto [time, order, rank] = *agenda_.begin();
      agenda_.erase(agenda_.begin());
      now_ = Instant{kSecond + time};
      if (!Of(rank).gone) Speak(rank, said_.at(order));
      if (half != nullptr && half->state.empty() && Of(0).iteration >= plan_.steps / 2) {
        *half = {.index = run_.next_index(), .state = SaveState(run_)};
      }
    }
    if (hash != nullptr) *hash = run_.StateHash();
    return records_;
  }

 private:
  struct Worker {
    Incarnation incarnation = 0;
    Seq seq = 0;
    Iteration iteration = 0;
    Instant ready;
    GroupId group = kNoGroup;
    bool gone = false;
    std::int64_t share = kSamples;  // of a job with a batch
  };
  static constexpr std::int64_t kSamples = 32;

  Worker& Of(Rank rank) { return workers_[static_cast<std::size_t>(rank)]; }

  static bool Has(const Group& group, Rank rank) {
    for (const GroupMember& member : group.members) {
      if (member.rank == rank) return true;
    }
    return false;
  }

  void Later(DurationNs by, Rank rank, WorkerBody body) {
    said_.push_back(std::move(body));
    agenda_.insert({now_.ns - kSecond + by, said_.size() - 1, rank});
  }

  // By value: what follows from it grows said_.
  void Speak(Rank rank, WorkerBody body) {
    Worker& worker = Of(rank);
    if (worker.incarnation == 0) worker.incarnation = 1000 + static_cast<Incarnation>(rank);
    if (const auto* done = std::get_if<Finished>(&body)) {
      if (done->group != worker.group) return;  // called off meanwhile
      worker.group = kNoGroup;
    }
    if (std::holds_alternative<Ready>(body)) worker.ready = now_;
    Step(FromWorker{{.run = run_.id(),
                     .rank = rank,
                     .incarnation = worker.incarnation,
                     .seq = ++worker.seq,
                     .body = body}});
    const auto* done = std::get_if<Finished>(&body);
    if (done == nullptr || worker.gone) return;
    if (done->outcome == Outcome::kOk) {
      worker.iteration = next_[done->group];
      if (final_.contains(done->group)) return;
      if (worker.iteration >= plan_.steps) return Later(0, rank, Finish{});
      const DurationNs step =
          plan_.step_ns[static_cast<std::size_t>(rank)] * worker.share / kSamples;
      Later(step, rank,
            Ready{.iteration = worker.iteration + 1, .step_ns = step, .samples = worker.share});
    } else {
      Later(0, rank,
            Ready{.iteration = worker.iteration + 1,
                  .step_ns = plan_.step_ns[static_cast<std::size_t>(rank)]});
    }
  }

  void Step(const Input& input) {
    RunOutput out;
    run_.Step(now_, input, &out);
    Take(out);
  }

  void Take(RunOutput& out) {
    for (Record& record : out.records) records_.push_back(std::move(record));
    for (const RunOutput::Outgoing& send : out.sends) {
      Worker& worker = Of(send.rank);
      if (const auto* group = std::get_if<Group>(&send.envelope.body)) {
        worker.group = group->id;
        next_[group->id] = group->iteration;
        if (group->kind == GroupKind::kFinal) final_.insert(group->id);
        const bool train = group->kind == GroupKind::kTrain;
        if (train && send.rank == plan_.parted && Has(*group, plan_.from)) {
          Later(plan_.reduce_ns, send.rank,
                Finished{.group = group->id,
                         .outcome = Outcome::kFailed,
                         .detail = "no answer",
                         .unreachable = {plan_.from}});
          continue;
        }
        Later(plan_.reduce_ns, send.rank,
              Finished{.group = group->id,
                       .detail = {},
                       .wait_ns = train ? now_ - worker.ready : 0,
                       .reduce_ns = plan_.reduce_ns,
                       .bytes = 64});
      } else if (const auto* share = std::get_if<SetShare>(&send.envelope.body)) {
        worker.share = share->samples;
      } else if (const auto* abort = std::get_if<Abort>(&send.envelope.body)) {
        Later(0, send.rank,
              Finished{.group = abort->group, .outcome = Outcome::kAborted, .detail = "told so"});
      }
    }
  }

  const RealRun& plan_;
  prd::Run run_;
  Instant now_{kSecond};
  std::vector<Worker> workers_;
  std::vector<WorkerBody> said_;
  std::set<std::tuple<std::int64_t, std::size_t, Rank>> agenda_;  // time, place in said_, who
  std::map<GroupId, Iteration> next_;
  std::set<GroupId> final_;
  std::vector<Record> records_;
};

}  // namespace

JobSpec PReduceSpec(int workers) {
  JobSpec spec;
  spec.name = "mnist";
  spec.workers = workers;
  spec.engine = PReduceOptions{.group_size = 2, .alpha = 0.25};
  spec.text = JobSpecToToml(spec);
  return spec;
}

RunInfo InfoOf(const std::vector<Record>& records) {
  const auto& started = std::get<RunStarted>(records.front().body);
  const auto* ended = std::get_if<RunEnded>(&records.back().body);
  return {.run = records.front().run,
          .job = started.job,
          .engine = started.engine,
          .started_wall_ns = started.wall_ns,
          .ended = ended != nullptr,
          .records = records.size(),
          .begun = true,
          .finished = ended != nullptr && ended->finished,
          .end = ended == nullptr ? "" : ended->reason};
}

std::vector<Record> MakeRun(RunId run, const JobSpec& spec, const RealRun& plan,
                            std::uint64_t* hash, Snapshot* half) {
  return Virtual(run, spec, plan).Go(hash, half);
}

}  // namespace prd::ctl
