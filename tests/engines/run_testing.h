// A run, fed message by message as the controller would: for what no transcript can say.
#ifndef PRD_TESTS_ENGINES_RUN_TESTING_H_
#define PRD_TESTS_ENGINES_RUN_TESTING_H_

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engines/replay.h"
#include "engines/run.h"

namespace prd {

// Remembers what the run said last.
class RunTest : public testing::Test {
 protected:
  using Verdict = Admission::Verdict;

  void Make(EngineOptions engine, int workers, JobSpec spec = {}) {
    spec.name = "toy";
    spec.engine = std::move(engine);
    spec.workers = workers;
    run_ = std::make_unique<prd::Run>(1, spec);
    out_ = {};
    run_->Start({1}, 0, {}, {}, &out_);
    history_ = out_.records;
  }

  WorkerEnvelope HelloOf(Rank rank) {
    return {.incarnation = 100u + static_cast<Incarnation>(next_++),
            .seq = 1,
            .body = Hello{.job = "toy",
                          .rank = rank,
                          .host = "h",
                          .host_name = "host",
                          .pid = 42,
                          .endpoints = {"tcp://127.0.0.1:1"},
                          .model_bytes = 4,
                          .model_hash = 9}};
  }
  void Join(Rank rank) {
    const WorkerEnvelope hello = HelloOf(rank);
    ASSERT_EQ(run_->Admit(hello).verdict, Verdict::kStep);
    incarnation_[rank] = hello.incarnation;
    seq_[rank] = 1;
    Step(FromWorker{hello});
  }
  WorkerEnvelope From(Rank rank, WorkerBody body) {
    return {.run = 1,
            .rank = rank,
            .incarnation = incarnation_[rank],
            .seq = ++seq_[rank],
            .body = std::move(body)};
  }
  void Say(Rank rank, WorkerBody body) {
    const WorkerEnvelope envelope = From(rank, std::move(body));
    ASSERT_EQ(run_->Admit(envelope).verdict, Verdict::kStep);
    Step(FromWorker{envelope});
  }
  void Step(const Input& input) {
    out_ = {};
    run_->Step({++now_}, input, &out_);
    history_.insert(history_.end(), out_.records.begin(), out_.records.end());
  }
  void Done(Rank rank, Outcome outcome = Outcome::kOk) {
    const GroupId group = run_->workers()[static_cast<std::size_t>(rank)].group;
    Say(rank, Finished{.group = group, .outcome = outcome, .detail = "test"});
  }
  // A run of n workers that have the common start.
  void Running(EngineOptions engine, int n, JobSpec spec = {}) {
    Make(std::move(engine), n, std::move(spec));
    for (Rank r = 0; r < n; ++r) Join(r);
    for (Rank r = 0; r < n; ++r) Done(r);
    for (Rank r = 0; r < n; ++r) ASSERT_EQ(State(r), WorkerState::kActive);
  }
  // A replay of all steps, and a snapshot of it, end in the same state.
  void ExpectReplays(const JobSpec& spec) {
    StateArchive saved = StateArchive::Saver();
    run_->Archive(saved);
    prd::Run again(1, spec);
    Replay replay(&again);
    for (const Record& record : history_) {
      const Status status = replay.Add(record);
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
    EXPECT_TRUE(replay.open().empty());
    EXPECT_EQ(again.StateHash(), run_->StateHash());
    prd::Run loaded(1, spec);
    ASSERT_TRUE(loaded.Load(saved.bytes()).ok());
    EXPECT_EQ(loaded.StateHash(), run_->StateHash());
  }
  WorkerState State(Rank rank) { return run_->workers()[static_cast<std::size_t>(rank)].state; }
  template <typename T>
  const T* Sent(Rank rank) {  // by the last step
    for (const auto& send : out_.sends) {
      const T* body = std::get_if<T>(&send.envelope.body);
      if (send.rank == rank && body != nullptr) return body;
    }
    return nullptr;
  }
  template <typename T>
  const T* Recorded() {
    for (const Record& record : out_.records) {
      if (const T* body = std::get_if<T>(&record.body)) return body;
    }
    return nullptr;
  }

  std::unique_ptr<prd::Run> run_;
  RunOutput out_;
  std::vector<Record> history_;  // of all steps
  std::map<Rank, Incarnation> incarnation_;
  std::map<Rank, Seq> seq_;
  int next_ = 0;
  std::int64_t now_ = 1;
};

}  // namespace prd

#endif  // PRD_TESTS_ENGINES_RUN_TESTING_H_
