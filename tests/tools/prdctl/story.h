// Histories for tests of prdctl: hand-written ones, and those that a real job makes in virtual
// time.
#ifndef PRD_TESTS_TOOLS_PRDCTL_STORY_H_
#define PRD_TESTS_TOOLS_PRDCTL_STORY_H_

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engines/run.h"
#include "tools/prdctl/source.h"

namespace prd::ctl {

constexpr DurationNs kMs = kMillisecond;

// As TOML; "" where no engine has this name.
std::string DefaultSpecOf(const std::string& engine);

// Writes records one after the other; times are ms after the run's start.
class Story {
 public:
  // Without a spec, that of the engine with all defaults, if there is one of this name.
  explicit Story(RunId run = 1, const std::string& engine = "e", const std::string& spec = "")
      : run_(run) {
    At(0).Write(RunStarted{
        .job = "j", .engine = engine, .spec = spec.empty() ? DefaultSpecOf(engine) : spec});
  }

  Story& At(std::int64_t ms) {
    now_ = Instant{kSecond + ms * kMillisecond};
    return *this;
  }
  Story& Write(RecordBody body) {
    records_.push_back(
        {.run = run_, .index = records_.size(), .now = now_, .body = std::move(body)});
    return *this;
  }
  Story& Say(Rank rank, WorkerBody body) {
    return Write(FromWorker{{.run = run_,
                             .rank = rank,
                             .incarnation = 7,
                             .seq = ++seq_[rank],
                             .body = std::move(body)}});
  }
  Story& Join(Rank rank) { return Write(WorkerJoined{.rank = rank, .host_name = "h"}); }
  Story& Signal(Rank rank, Iteration iteration, std::int64_t step_ms) {
    return Say(rank, Ready{.iteration = iteration, .step_ns = step_ms * kMillisecond});
  }
  // To a signal of an engine without groups.
  Story& Answer(Rank rank, Iteration iteration, Iteration next = 0) {
    return Write(QueryAnswered{.rank = rank,
                               .iteration = iteration,
                               .reason = "because",
                               .next = next > 0 ? next : iteration});
  }
  Story& Form(std::vector<std::pair<Rank, double>> shares, GroupKind kind = GroupKind::kTrain,
              Iteration iteration = 0) {
    GroupFormed formed{
        .id = ++group_, .kind = kind, .members = {}, .iteration = iteration, .reason = "because"};
    for (const auto& [rank, weight] : shares) {
      formed.members.push_back({.rank = rank, .weight = weight});
    }
    return Write(std::move(formed));
  }
  Story& Report(Rank rank, GroupId group, std::int64_t wait_ms, std::int64_t reduce_ms,
                Outcome outcome = Outcome::kOk) {
    return Say(rank, Finished{.group = group,
                              .outcome = outcome,
                              .detail = {},
                              .wait_ns = wait_ms * kMillisecond,
                              .reduce_ns = reduce_ms * kMillisecond,
                              .bytes = 100});
  }
  Story& End(GroupId group, bool ok = true) {
    return Write(GroupEnded{.id = group, .ok = ok, .reason = ok ? "" : "broken"});
  }
  // A group that succeeds at once, with equal weights.
  Story& Sync(const std::vector<Rank>& ranks) {
    std::vector<std::pair<Rank, double>> shares;
    for (const Rank rank : ranks)
      shares.emplace_back(rank, 1.0 / static_cast<double>(ranks.size()));
    return Form(std::move(shares)).End(group_);
  }

  const std::vector<Record>& records() const { return records_; }

 private:
  RunId run_;
  Instant now_;
  GroupId group_ = 0;
  std::map<Rank, Seq> seq_;
  std::vector<Record> records_;
};

class MemorySource : public HistorySource {
 public:
  void Add(RunInfo info, std::vector<Record> records) {
    info.records = records.size();
    runs_.push_back(std::move(info));
    records_[runs_.back().run] = std::move(records);
  }
  void Save(RunId run, Snapshot snapshot) { snapshots_[run] = std::move(snapshot); }
  void Run(DaemonStatus daemon) { daemon_ = std::move(daemon); }

  Result<std::vector<RunInfo>> Runs() override { return runs_; }
  Result<std::vector<Record>> Read(RunId run, std::uint64_t from, std::uint32_t max_bytes,
                                   std::uint32_t) override {
    const std::vector<Record>& all = records_[run];
    std::vector<Record> some;  // a few at a time, as from a daemon
    const std::uint64_t most = max_bytes < 1000 ? 1 : 50;
    for (std::uint64_t i = from; i < all.size() && some.size() < most; ++i) some.push_back(all[i]);
    read_ += some.size();
    return some;
  }
  Result<Snapshot> NewestSnapshot(RunId run) override { return snapshots_[run]; }
  Result<DaemonStatus> Daemon() override {
    if (daemon_) return *daemon_;
    return Status(Code::kFailedPrecondition, "files");
  }
  std::size_t read() const { return read_; }

 private:
  std::vector<RunInfo> runs_;
  std::map<RunId, std::vector<Record>> records_;
  std::map<RunId, Snapshot> snapshots_;
  std::optional<DaemonStatus> daemon_;
  std::size_t read_ = 0;
};

struct RealRun {
  std::vector<DurationNs> step_ns;  // of each worker, or of 32 samples in a job with a batch
  int steps = 10;                   // of each worker, before it finishes
  DurationNs reduce_ns = kMillisecond;
  Rank dies = kNoRank;  // its lease runs out ...
  std::int64_t dies_ms = 0;
  Rank parted = kNoRank;  // it fails each group with this one, as it does not reach it, ...
  Rank from = kNoRank;
  std::int64_t until_ms = 1'000'000;  // the history ends here, in the middle of things
};

// The records of a p-reduce job (P = 2, constant weights unless the spec says otherwise) that a
// real Run writes for workers with these step times. `job` gets its last state, `half` a snapshot
// made half way.
std::vector<Record> MakeRun(RunId run, const JobSpec& spec, const RealRun& plan,
                            std::uint64_t* hash = nullptr, Snapshot* half = nullptr);

JobSpec PReduceSpec(int workers);

// As the history lists a run with these records.
RunInfo InfoOf(const std::vector<Record>& records);

}  // namespace prd::ctl

#endif  // PRD_TESTS_TOOLS_PRDCTL_STORY_H_
