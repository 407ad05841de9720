// State of replicas (Replica::state) in whole sessions, under every engine: what is averaged
// becomes what a parameter without a gradient would become; what is not averaged is copied with a
// replica and stays its worker's own else. Between calls it is the training loop's, which writes
// it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engines/registry.h"
#include "prd/session.h"
#include "tests/worker/fake_daemon.h"

namespace prd::session_state_test {
namespace {

using testing::FakeDaemon;
using testing::SpecFor;

constexpr int kWorkers = 4;
constexpr std::size_t kSize = testing::kModelSize;  // f32

void WaitUntil(const std::function<bool()>& holds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!holds()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// All of these are through; nobody goes on before.
class Meeting {
 public:
  explicit Meeting(int workers) : missing_(workers) {}
  void Come() {
    --missing_;
    WaitUntil([this] { return missing_ <= 0; });
  }

 private:
  std::atomic<int> missing_;
};

Result<Session> Open(const FakeDaemon& daemon, int rank) {
  return Session::Create(testing::OptionsFor(daemon, rank));
}

void InParallel(int workers, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < workers; ++rank) threads.emplace_back([&, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

struct Way {
  const char* name;
  EngineOptions engine;
};

template <typename Options, typename F>
Options With(F&& change) {
  Options options;
  change(options);
  return options;
}

// All leave the mean of what workers add as it is.
std::vector<Way> Ways() {
  const auto pairs = [](auto& o) {
    o.group_size = 2;
    o.weights = PReduceOptions::Weights::kConstant;
  };
  return {{"AllReduce", AllReduceOptions{}},
          {"Backup", With<BackupOptions>([](auto& o) { o.backups = 0; })},
          {"PReduce", With<PReduceOptions>(pairs)},
          {"PReduceOverlap", With<PReduceOptions>([&](auto& o) {
             pairs(o);
             o.overlap = true;
           })},
          {"Prague", With<PragueOptions>([](auto& o) {
             o.generator = PragueOptions::Generator::kRandom;
             o.group_size = 2;
           })},
          {"AdPsgd", AdPsgdOptions{}},
          {"AdPsgdOverlap", With<AdPsgdOptions>([](auto& o) { o.overlap = true; })},
          {"Eager", With<EagerOptions>([](auto& o) {
             o.quorum = kWorkers;
             o.sync_every = 3;
           })},
          {"ESync", With<EsyncOptions>([](auto& o) { o.stall_factor = 0; })},
          {"Hop", HopOptions{}},
          {"HopSerial", With<HopOptions>([](auto& o) { o.order = HopOptions::Order::kSerial; })},
          {"Ssp", SspOptions{}}};
}

// A parameter that trains, and one without a gradient that `apply` moves. Averaged state that
// `apply` moves in the same way, and averaged state that the training loop writes between calls.
// Last, state of the worker's own.
class Model {
 public:
  explicit Model(float first) : own(kSize, first) {}

  Replica replica() {
    Replica replica;
    replica.parameters = {{trained.data(), kSize, DType::kF32}, {twin.data(), kSize, DType::kF32}};
    replica.gradients = {{gradient.data(), kSize, DType::kF32}, {none.data(), kSize, DType::kF32}};
    replica.state = {{own.data(), kSize, DType::kF32},
                     {written.data(), kSize, DType::kF64, true},
                     {moved.data(), kSize - 1, DType::kF32, true},
                     {moved.data() + kSize - 1, 1, DType::kF32, true}};
    replica.apply = [this] {
      for (std::size_t i = 0; i < kSize; ++i) {
        trained[i] += gradient[i];
        twin[i] += step;
        moved[i] += step;
        own[i] += step;
      }
    };
    return replica;
  }

  // What no call may have changed since.
  void Remember() { seen_ = {trained, twin, moved, own}; }
  void ExpectUntouched() const {
    EXPECT_EQ(seen_, (std::vector<std::vector<float>>{trained, twin, moved, own}));
  }
  void ExpectTwins() const {
    for (std::size_t i = 0; i < kSize; ++i) {
      ASSERT_NEAR(moved[i], twin[i], 1e-5 * (1 + std::fabs(twin[i]))) << i;
    }
  }

  float step = 0;
  std::vector<float> trained = std::vector<float>(kSize, 0.f);
  std::vector<float> twin = std::vector<float>(kSize, 0.f);
  std::vector<float> gradient = std::vector<float>(kSize, 0.f);
  std::vector<float> none = std::vector<float>(kSize, 0.f);
  std::vector<float> moved = std::vector<float>(kSize, 0.f);
  std::vector<double> written = std::vector<double>(kSize, 0.);
  std::vector<float> own;

 private:
  std::vector<std::vector<float>> seen_;
};

class SessionStateTest : public ::testing::TestWithParam<std::size_t> {};

TEST_P(SessionStateTest, AveragedStateIsAsAParameterAndTheRestIsOnesOwn) {
  constexpr int kSteps = 12;
  const Way way = Ways()[GetParam()];
  JobSpec spec = SpecFor(way.engine, kWorkers);
  // A worker that finishes early leaves others a larger share, or other neighbours. Where models,
  // or changes of models, are averaged, an early replica has no part in the final average: all end
  // with the same step of the job.
  const Plan plan = MakeEngine(way.engine)->plan();
  const bool by_goal = TrainsInGroups(plan) && !NeedsGradients(plan);
  if (by_goal) spec.goal.steps = std::int64_t{kSteps} * kWorkers;
  FakeDaemon daemon(spec);
  Meeting meeting(kWorkers);
  std::atomic<std::int64_t> added{0};  // to `written`, by all
  InParallel(kWorkers, [&](int rank) {
    Result<Session> session = Open(daemon, rank);
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    Model model(static_cast<float>(100 * (rank + 1)));
    const Status attached = session->Attach(model.replica());
    ASSERT_TRUE(attached.ok()) << attached.ToString();
    EXPECT_EQ(model.own, std::vector<float>(kSize, 100.f)) << "rank 0's, with its parameters";
    model.step = static_cast<float>(rank + 1);
    std::int64_t applied = 0;
    bool done = false;
    const auto write = [&](Model* of) {  // as a forward pass does
      for (double& value : of->written) value += rank + 1;
      added += rank + 1;
    };
    for (int step = 0; by_goal ? !done : step < kSteps; ++step) {
      model.Remember();
      model.gradient.assign(kSize, static_cast<float>(rank + 1));
      write(&model);
      model.ExpectUntouched();
      const float before = model.own[0];
      const Result<StepResult> result = session->Step({.samples = 1});
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      done = result->done;
      ASSERT_FALSE(result->adopted);
      // Shards are read one by one: two tensors may be of different clocks.
      if (way.engine.As<SspOptions>() == nullptr) model.ExpectTwins();
      EXPECT_EQ(model.own, std::vector<float>(kSize, model.own[0]));
      applied += std::lround((model.own[0] - before) / model.step);
    }
    EXPECT_GT(applied, 0);
    write(&model);  // after the last step
    if (!TrainsInGroups(plan)) meeting.Come();
    const Status finished = session->Finish();
    ASSERT_TRUE(finished.ok()) << finished.ToString();
    model.ExpectTwins();
    // Finish may have applied what was left.
    const float moved = model.own[0] - 100;
    EXPECT_GE(moved, static_cast<float>(applied) * model.step);
    EXPECT_EQ(std::fmod(moved, model.step), 0.f) << "of its own steps alone";
    const double mean = static_cast<double>(added) / kWorkers;
    for (const double value : model.written) ASSERT_NEAR(value, mean, 1e-4 * kSteps);
  });
}

INSTANTIATE_TEST_SUITE_P(Engines, SessionStateTest, ::testing::Range(std::size_t{0}, Ways().size()),
                         [](const auto& what) { return std::string(Ways()[what.param].name); });

// ---- copies ----

// SGD with momentum, whose velocity may be state.
class Momentum {
 public:
  explicit Momentum(bool as_state) : as_state_(as_state) {}

  Replica replica() {
    Replica replica;
    replica.parameters = {{weights.data(), kSize, DType::kF32}};
    replica.gradients = {{gradient.data(), kSize, DType::kF32}};
    if (as_state_) replica.state = {{velocity.data(), kSize, DType::kF32}};
    replica.apply = [this] {
      for (std::size_t i = 0; i < kSize; ++i) {
        velocity[i] = 0.9f * velocity[i] + gradient[i];
        weights[i] -= 0.1f * velocity[i];
      }
    };
    return replica;
  }
  void ComputeGradient(float target) {
    for (std::size_t i = 0; i < kSize; ++i) {
      gradient[i] = weights[i] - target - static_cast<float>(i % 7);
    }
  }

  std::vector<float> weights = std::vector<float>(kSize, 0.f);
  std::vector<float> gradient = std::vector<float>(kSize, 0.f);
  std::vector<float> velocity = std::vector<float>(kSize, 0.f);

 private:
  bool as_state_;
};

// The models of all workers at each iteration.
class Book {
 public:
  void Put(std::int64_t iteration, const std::vector<float>& weights) {
    const std::lock_guard lock(mutex_);
    models_[iteration].push_back(weights);
  }
  // Iterations of which two workers have different models, and of which there are two at least.
  std::pair<int, int> Compare() const {
    const std::lock_guard lock(mutex_);
    int differ = 0;
    int compared = 0;
    for (const auto& [iteration, models] : models_) {
      if (models.size() < 2) continue;
      ++compared;
      for (const std::vector<float>& model : models) {
        if (std::memcmp(model.data(), models[0].data(), kSize * sizeof(float)) == 0) continue;
        ++differ;
        break;
      }
    }
    return {differ, compared};
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::int64_t, std::vector<std::vector<float>>> models_;
};

bool Formed(const Record& record, Iteration iteration) {
  const auto* formed = std::get_if<GroupFormed>(&record.body);
  return formed != nullptr && formed->kind == GroupKind::kTrain && formed->iteration >= iteration;
}

bool FromRankOne(const Record& record) {
  const auto* copy = std::get_if<AdoptOrdered>(&record.body);
  return copy != nullptr && copy->source == 1;
}

// One step, whose model goes into the book.
bool TrainOn(Session* session, Momentum* model, Book* book) {
  model->ComputeGradient(static_cast<float>(session->rank()));
  const Result<StepResult> result = session->Step({.samples = 1});
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  if (!result.ok()) return false;
  book->Put(result->iteration, model->weights);
  return result->adopted;
}

constexpr int kAfter = 6;  // steps after the copy

// A worker of three copies the others' replica: it joins late, or the controller gives it up for
// some time, or its step came too late. Returns in how many iterations replicas differed, and of
// how many.
std::pair<int, int> TrainWithALateJoiner(bool as_state) {
  FakeDaemon daemon(SpecFor(AllReduceOptions{}, 2));
  Book book;
  std::atomic<bool> joined{false};
  InParallel(3, [&](int rank) {
    if (rank == 2) {
      EXPECT_TRUE(daemon.WaitFor([](const Record& record) { return Formed(record, 4); }));
    }
    Result<Session> session = Open(daemon, rank);
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    Momentum model(as_state);
    const Status attached = session->Attach(model.replica());
    ASSERT_TRUE(attached.ok()) << attached.ToString();
    if (rank == 2) {
      EXPECT_GE(session->iteration(), 3);
      joined = true;
    }
    while (!joined) (void)TrainOn(&*session, &model, &book);
    for (int step = 0; step < kAfter; ++step) (void)TrainOn(&*session, &model, &book);
    ASSERT_TRUE(session->Finish().ok());
  });
  return book.Compare();
}

std::pair<int, int> TrainWithALostLease(bool as_state) {
  FakeDaemon daemon(SpecFor(AllReduceOptions{}, 3));
  Book book;
  std::atomic<bool> back{false};
  InParallel(3, [&](int rank) {
    Result<Session> session = Open(daemon, rank);
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    Momentum model(as_state);
    ASSERT_TRUE(session->Attach(model.replica()).ok());
    for (int step = 0; step < 3; ++step) (void)TrainOn(&*session, &model, &book);
    if (rank == 2) {
      EXPECT_TRUE(daemon.Lose(2));
      EXPECT_TRUE(daemon.WaitFor([](const Record& record) { return Formed(record, 6); }));
      daemon.Hear();
      EXPECT_TRUE(TrainOn(&*session, &model, &book));
      back = true;
    }
    while (!back) (void)TrainOn(&*session, &model, &book);
    for (int step = 0; step < kAfter; ++step) (void)TrainOn(&*session, &model, &book);
    ASSERT_TRUE(session->Finish().ok());
  });
  return book.Compare();
}

std::pair<int, int> TrainWithADroppedStep(bool as_state) {
  FakeDaemon daemon(SpecFor(BackupOptions{}, 3));
  Book book;
  std::atomic<bool> back{false};
  std::atomic<int> through{0};
  InParallel(3, [&](int rank) {
    Result<Session> session = Open(daemon, rank);
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    Momentum model(as_state);
    ASSERT_TRUE(session->Attach(model.replica()).ok());
    if (rank == 2) {
      model.ComputeGradient(2);
      WaitUntil([&] { return session->Interrupted(); });
      EXPECT_TRUE(daemon.WaitFor([](const Record& record) { return Formed(record, 4); }));
      EXPECT_TRUE(TrainOn(&*session, &model, &book));
      back = true;
    }
    while (!back) (void)TrainOn(&*session, &model, &book);
    // The rounds that follow are of the two others, whose steps are all in time. Whoever is to copy
    // from this one gets its model in a step.
    for (std::ptrdiff_t served = 0; rank == 1 && through < 2;) {
      const std::vector<Record> records = daemon.records();
      const std::ptrdiff_t asked = std::count_if(records.begin(), records.end(), FromRankOne);
      if (asked > served) (void)TrainOn(&*session, &model, &book);
      if (asked == served) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      served = asked;
    }
    for (int step = 0; rank != 1 && step < kAfter; ++step) {
      (void)TrainOn(&*session, &model, &book);
    }
    ++through;
    ASSERT_TRUE(session->Finish().ok());
  });
  return book.Compare();
}

TEST(SessionStateCopyTest, MomentumThatIsStateKeepsReplicasEqual) {
  const struct {
    const char* name;
    std::function<std::pair<int, int>(bool as_state)> train;
  } cases[] = {{"late joiner", TrainWithALateJoiner},
               {"lost lease", TrainWithALostLease},
               {"dropped step", TrainWithADroppedStep}};
  for (const auto& [name, train] : cases) {
    SCOPED_TRACE(name);
    const auto [differ, compared] = train(true);
    EXPECT_EQ(differ, 0);
    EXPECT_GE(compared, 3);
    EXPECT_GT(train(false).first, 0) << "the test sees no difference where there is one";
  }
}

// Averages of models keep each worker's own; who joins gets one of the others' as it was at the end
// of a step, however much that one's training loop writes between its steps.
TEST(SessionStateCopyTest, AJoinerGetsWholeState) {
  PReduceOptions pairs;
  pairs.group_size = 2;
  for (const EngineOptions& engine :
       {EngineOptions(pairs), EngineOptions(HopOptions{}), EngineOptions(SspOptions{}),
        EngineOptions(EagerOptions{}), EngineOptions(EsyncOptions{})}) {
    JobSpec spec = SpecFor(engine, 2);
    FakeDaemon daemon(spec);
    std::atomic<bool> trained{false};
    std::atomic<int> steps{0};
    InParallel(3, [&](int rank) {
      if (rank == 2) WaitUntil([&] { return steps >= 6; });
      Result<Session> session = Open(daemon, rank);
      ASSERT_TRUE(session.ok()) << session.status().ToString();
      Model model(-1);
      const Status attached = session->Attach(model.replica());
      ASSERT_TRUE(attached.ok()) << attached.ToString();
      if (rank == 2) {
        EXPECT_GE(model.own[0], 1.f);
        EXPECT_EQ(model.own, std::vector<float>(kSize, model.own[0]));
        // Two shards may be of different clocks.
        if (engine.As<SspOptions>() == nullptr) model.ExpectTwins();
        EXPECT_TRUE(session->Step({.samples = 1}).ok());
        trained = true;
      }
      for (int step = 0; rank != 2 && (step < 8 || !trained); ++step) {
        model.step = 1;
        // What counts is what it is when a call begins.
        const float own = std::max(model.own[0], 0.f);
        for (float& value : model.own) value = -7;
        for (double& value : model.written) value += 1;
        for (float& value : model.own) value = own;
        const Result<StepResult> result = session->Step({.samples = 1});
        ASSERT_TRUE(result.ok()) << result.status().ToString();
        ++steps;
      }
      const Status finished = session->Finish();
      EXPECT_TRUE(finished.ok()) << finished.ToString();
    });
  }
}

// ---- what is wrong ----

TEST(SessionStateErrorTest, WrongStateIsNamed) {
  FakeDaemon daemon(SpecFor(AllReduceOptions{}, 1));
  Result<Session> session = Open(daemon, 0);
  ASSERT_TRUE(session.ok());
  Model model(0);
  Replica replica = model.replica();
  replica.state[3].data = nullptr;
  Status status = session->Attach(replica);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("state[3]: data is null"), std::string::npos);
  replica = model.replica();
  replica.state[1].data = model.moved.data() + 1;
  status = session->Attach(replica);
  EXPECT_NE(status.message().find("state[1]: data is not aligned"), std::string::npos)
      << status.ToString();
}

TEST(SessionStateErrorTest, WorkersAgreeOnTheirState) {
  FakeDaemon daemon(SpecFor(AllReduceOptions{}, 1));
  Result<Session> first = Open(daemon, 0);
  Result<Session> other = Open(daemon, 1);
  Model model(0), second(0);
  ASSERT_TRUE(first->Attach(model.replica()).ok());
  for (int what = 0; what < 3; ++what) {
    Replica replica = second.replica();
    if (what == 0) replica.state[2].average = false;
    if (what == 1) --replica.state[2].count;
    if (what == 2) replica.state.pop_back();
    const Status status = other->Attach(replica);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("model differs"), std::string::npos) << status.ToString();
  }
  EXPECT_TRUE(first->Finish().ok());
}

// Whoever pauses may write state, and is copied all the same.
TEST(SessionStateCopyTest, AJoinerGetsTheStateOfAPausedWorker) {
  FakeDaemon daemon(SpecFor(AllReduceOptions{}, 1));
  Book book;
  Result<Session> first = Open(daemon, 0);
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  Momentum trained(true);
  ASSERT_TRUE(first->Attach(trained.replica()).ok());
  for (int step = 0; step < 3; ++step) (void)TrainOn(&*first, &trained, &book);
  ASSERT_TRUE(first->Pause().ok());
  const std::vector<float> velocity = trained.velocity;
  ASSERT_NE(velocity[1], 0.f);
  trained.velocity.assign(kSize, -5);  // counts from Resume on
  Result<Session> second = Open(daemon, 1);
  ASSERT_TRUE(second.ok()) << second.status().ToString();
  Momentum copied(true);
  const Status attached = second->Attach(copied.replica());
  ASSERT_TRUE(attached.ok()) << attached.ToString();
  EXPECT_EQ(copied.weights, trained.weights);
  EXPECT_EQ(copied.velocity, velocity);
  ASSERT_TRUE(first->Resume().ok());
}

}  // namespace
}  // namespace prd::session_state_test
