// Whole sessions with replicas on devices, under every strategy. The devices are those of a
// stand-in for CUDA and NCCL (tests/standin), which shows that the calls are made as they must be,
// and proves nothing about GPUs: what no event orders, it runs in any order.
//
// Every model starts at 0 and adds its gradients, to its parameters and to state of both kinds, on
// a stream of the training loop's own and without waiting for it; every engine leaves the sum of
// what was added as it is, so that the model at the end tells whether each gradient was counted
// once, in its place.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engines/registry.h"
#include "prd/session.h"
#include "tests/standin/device.h"
#include "tests/worker/fake_daemon.h"
#include "worker/device/gpu.h"
#include "worker/memory/memory.h"

namespace prd {
namespace {

using testing::FakeDaemon;
using testing::SpecFor;
using testing::StandInDevice;

constexpr int kWorkers = 4;
constexpr std::size_t kSize = testing::kModelSize;  // f32
constexpr int kSteps = 12;

void* Module() {
  static void* const module = [] {
    const std::string path = std::string(PRD_BIN_DIR) + "/libprd_standin_module.so";
    setenv("PRD_CUDA_MODULE", path.c_str(), 1);
    setenv("PRD_STANDIN_SEED", "7", 0);
    return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  }();
  return module;
}

std::unique_ptr<Gpu> OpenStandIn(int device) {
  const auto open = reinterpret_cast<GpuOpen>(dlsym(Module(), "prd_gpu_open"));
  char error[256] = "";
  return std::unique_ptr<Gpu>(open(kGpuInterface, PRD_VERSION, device, error, sizeof error));
}

StandInDevice* Standin(int device) {
  using Find = StandInDevice* (*)(int);
  return reinterpret_cast<Find>(dlsym(Module(), "prd_standin_device"))(device);
}

// The tensors of one worker, on the host or on a device.
class Model {
 public:
  virtual ~Model() = default;
  virtual Replica replica() = 0;
  virtual void Give(float gradient) = 0;  // to every parameter
  // Where the model's work is, if that is not the replica's stream.
  virtual std::optional<void*> stream() const { return std::nullopt; }
  // As they are after what was enqueued.
  virtual std::vector<float> Parameters() = 0;
  virtual std::vector<float> Averaged() = 0;
  virtual std::vector<float> Kept() = 0;
};

Replica ReplicaOf(float* parameters, float* gradients, float* averaged, float* kept) {
  Replica replica;
  replica.parameters = {{parameters, kSize - 3, DType::kF32},
                        {parameters + kSize - 3, 3, DType::kF32}};
  replica.gradients = {{gradients, kSize - 3, DType::kF32},
                       {gradients + kSize - 3, 3, DType::kF32}};
  replica.state = {{kept, kSize, DType::kF32},
                   {averaged, kSize - 2, DType::kF32, true},
                   {averaged + kSize - 2, 2, DType::kF32, true}};
  return replica;
}

class HostModel : public Model {
 public:
  Replica replica() override {
    Replica replica =
        ReplicaOf(parameters_.data(), gradients_.data(), averaged_.data(), kept_.data());
    replica.apply = [this] {
      for (std::vector<float>* values : {&parameters_, &averaged_, &kept_}) {
        for (std::size_t i = 0; i < kSize; ++i) (*values)[i] += gradients_[i];
      }
    };
    return replica;
  }
  void Give(float gradient) override { gradients_.assign(kSize, gradient); }
  std::vector<float> Parameters() override { return parameters_; }
  std::vector<float> Averaged() override { return averaged_; }
  std::vector<float> Kept() override { return kept_; }

 private:
  std::vector<float> parameters_ = std::vector<float>(kSize, 0.f);
  std::vector<float> averaged_ = std::vector<float>(kSize, 0.f);
  std::vector<float> kept_ = std::vector<float>(kSize, 0.f);
  std::vector<float> gradients_ = std::vector<float>(kSize, 0.f);
};

class DeviceModel : public Model {
 public:
  explicit DeviceModel(int device) : device_(device), gpu_(OpenStandIn(device)) {
    for (std::byte** data : {&parameters_, &gradients_, &averaged_, &kept_}) {
      *data = gpu_->Malloc(kBytes).value();
    }
    pinned_ = gpu_->MallocHost(kBytes).value();
    stream_ = gpu_->CreateStream().value();
    replicas_ = gpu_->CreateStream().value();
    copied_ = gpu_->CreateEvent().value();
    for (std::byte* data : {parameters_, averaged_, kept_}) {
      tables_.push_back(gpu_->MakeTable(Layout({Tensor{data, kSize, DType::kF32}})).value());
      EXPECT_TRUE(gpu_->Zero(data, kBytes, replicas_).ok());
    }
    Order(replicas_, stream_);
  }
  ~DeviceModel() override {
    gpu_->DestroyStream(stream_);
    gpu_->DestroyStream(replicas_);
    gpu_->DestroyEvent(copied_);
    tables_.clear();
    for (std::byte* data : {parameters_, gradients_, averaged_, kept_}) gpu_->Free(data);
    gpu_->FreeHost(pinned_);
  }

  Replica replica() override {
    Replica replica =
        ReplicaOf(reinterpret_cast<float*>(parameters_), reinterpret_cast<float*>(gradients_),
                  reinterpret_cast<float*>(averaged_), reinterpret_cast<float*>(kept_));
    replica.device = "cuda:" + std::to_string(device_);
    replica.stream = replicas_;
    replica.apply = [this] {
      const Gpu::Input from[] = {{nullptr, {1, 1}}, {gradients_, {1, 1}}};
      std::byte* const to[] = {nullptr};
      for (const auto& table : tables_) {
        (void)gpu_->Launch({.table = table.get(), .length = kBytes, .to = to, .from = from},
                           stream_);
      }
    };
    return replica;
  }
  std::optional<void*> stream() const override { return stream_; }
  void Give(float gradient) override {
    (void)gpu_->Synchronize(copied_);  // the one before has left the pinned memory
    const std::vector<float> values(kSize, gradient);
    std::memcpy(pinned_, values.data(), kBytes);
    (void)gpu_->Copy(gradients_, pinned_, kBytes, stream_);
    (void)gpu_->Record(copied_, stream_);
  }
  // What is on the steps' stream now has been done by then.
  bool ThroughWithin(std::chrono::milliseconds limit) {
    const Gpu::Event event = gpu_->CreateEvent().value();
    EXPECT_TRUE(gpu_->Record(event, stream_).ok());
    const auto deadline = std::chrono::steady_clock::now() + limit;
    bool through = gpu_->Done(event).value();
    while (!through && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      through = gpu_->Done(event).value();
    }
    gpu_->DestroyEvent(event);
    return through;
  }
  std::vector<float> Parameters() override { return Read(parameters_); }
  std::vector<float> Averaged() override { return Read(averaged_); }
  std::vector<float> Kept() override { return Read(kept_); }
  std::vector<float> Gradients() { return Read(gradients_); }

 private:
  static constexpr std::size_t kBytes = kSize * sizeof(float);

  std::vector<float> Read(const std::byte* data) {
    std::vector<float> values(kSize);
    Order(replicas_, stream_);  // Attach and Finish are on that one
    EXPECT_TRUE(gpu_->Synchronize(copied_).ok());
    EXPECT_TRUE(gpu_->Copy(pinned_, data, kBytes, stream_).ok());
    EXPECT_TRUE(gpu_->Record(copied_, stream_).ok());
    EXPECT_TRUE(gpu_->Synchronize(copied_).ok());
    std::memcpy(values.data(), pinned_, kBytes);
    return values;
  }
  // `second` goes on after what `first` has now.
  void Order(Gpu::Stream first, Gpu::Stream second) {
    const Gpu::Event event = gpu_->CreateEvent().value();
    EXPECT_TRUE(gpu_->Record(event, first).ok());
    EXPECT_TRUE(gpu_->Wait(second, event).ok());
    gpu_->DestroyEvent(event);
  }

  int device_;
  std::unique_ptr<Gpu> gpu_;
  std::byte* parameters_ = nullptr;
  std::byte* gradients_ = nullptr;
  std::byte* averaged_ = nullptr;
  std::byte* kept_ = nullptr;
  std::byte* pinned_ = nullptr;
  Gpu::Stream stream_ = nullptr;    // of the steps
  Gpu::Stream replicas_ = nullptr;  // of all other calls
  Gpu::Event copied_ = nullptr;
  std::vector<std::shared_ptr<Gpu::Table>> tables_;  // of what `apply` adds to
};

std::unique_ptr<Model> ModelOn(bool device, int rank) {
  if (device) return std::make_unique<DeviceModel>(rank);
  return std::make_unique<HostModel>();
}

// `timeout` 0: the job's lease.
Result<Session> Open(const FakeDaemon& daemon, int rank, std::chrono::milliseconds timeout = {}) {
  SessionOptions options = testing::OptionsFor(daemon, rank);
  options.reduce_timeout = timeout;
  return Session::Create(options);
}

struct Strategy {
  const char* name;
  EngineOptions engine;
};

template <typename Options, typename F>
Options With(F&& change) {
  Options options;
  change(options);
  return options;
}

std::vector<Strategy> Strategies() {
  using Generator = PragueOptions::Generator;
  return {
      {"AllReduce", AllReduceOptions{}},
      {"PReduce", With<PReduceOptions>([](auto& o) {
         o.group_size = 2;
         o.weights = PReduceOptions::Weights::kConstant;
       })},
      {"PReduceOverlap", With<PReduceOptions>([](auto& o) {
         o.group_size = 2;
         o.weights = PReduceOptions::Weights::kConstant;
         o.overlap = true;
       })},
      {"Eager", With<EagerOptions>([](auto& o) { o.quorum = kWorkers; })},
      {"Backup", With<BackupOptions>([](auto& o) { o.backups = 0; })},
      // Nobody is too slow to be waited for.
      {"ESync", With<EsyncOptions>([](auto& o) { o.stall_factor = 0; })},
      {"PragueRandom", With<PragueOptions>([](auto& o) {
         o.generator = Generator::kRandom;
         o.group_size = 2;
       })},
      {"AdPsgd", AdPsgdOptions{}},
      {"Hop", HopOptions{}},
      {"Ssp", SspOptions{}},
  };
}

struct Mix {
  const char* name;
  std::vector<bool> on_device;
  std::vector<bool> rows_on_host;  // of those
};

const Mix kMixes[] = {{"Devices", {true, true, true, true}, {false, false, false, false}},
                      {"DevicesAndHosts", {true, false, true, false}, {false, false, true, false}}};

class SessionDeviceTest : public ::testing::TestWithParam<std::tuple<std::size_t, std::size_t>> {};

TEST(SessionDeviceAverageTest, GoesToHostMemoryAndToTheDevice) {
  ASSERT_NE(Module(), nullptr) << dlerror();
  AdPsgdOptions alone;  // no step of these synchronises
  alone.section_length = 1000;
  FakeDaemon daemon(SpecFor(alone, 2));
  std::barrier together(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Model> model = ModelOn(rank == 0, rank);
      Result<Session> session = Open(daemon, rank);
      ASSERT_TRUE(session.ok()) << session.status().ToString();
      const Status attached = session->Attach(model->replica());
      EXPECT_TRUE(attached.ok()) << attached.ToString();
      model->Give(static_cast<float>(rank + 1));
      EXPECT_TRUE(session->Step({.stream = model->stream()}).ok());
      together.arrive_and_wait();
      if (rank == 0) {
        std::vector<float> mean(kSize);
        const Status host = session->Average(
            {{mean.data(), kSize - 3, DType::kF32}, {mean.data() + kSize - 3, 3, DType::kF32}});
        EXPECT_TRUE(host.ok()) << host.ToString();
        EXPECT_EQ(mean, std::vector<float>(kSize, 1.5f));
        // Other tensors of the same sizes, on the device.
        const Status device = session->Average(model->replica().gradients);
        EXPECT_TRUE(device.ok()) << device.ToString();
        EXPECT_EQ(static_cast<DeviceModel&>(*model).Gradients(), mean);
        EXPECT_EQ(model->Parameters(), std::vector<float>(kSize, 1.f)) << "as they were";
      }
      together.arrive_and_wait();
      EXPECT_TRUE(session->Finish().ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// What worker/README.md, Memory, says of a worker that trains: nothing of the common start is left,
// whose row has the kept state in it.
void ExpectMemory(const Plan& plan, bool on_device, bool rows_on_host,
                  const std::vector<MemoryHeld>& memory) {
  const auto bytes = [](std::size_t elements) {
    return static_cast<std::int64_t>(elements * sizeof(float));
  };
  const auto of = [&memory](const std::string& use) {
    for (const MemoryHeld& held : memory) {
      if (held.use == use) return held;
    }
    return MemoryHeld{.use = use};
  };
  const std::int64_t row = bytes(2 * kSize);  // parameters, and averaged state
  const Rows rows = RowsOf(plan);
  // In host memory the result replaces what was contributed. Rounds' results come to the inbox.
  const std::int64_t result = !TrainsInGroups(plan) ? 0 : NeedsGradients(plan) ? bytes(kSize) : row;
  if (on_device) {
    // The group's own part and its result, and what the device has of the group before.
    EXPECT_LE(of("results").host, 3 * result);
    EXPECT_LE(of("results").device, 3 * std::max(result, row));
  } else {
    EXPECT_EQ(of("results").host, 0);
    EXPECT_EQ(of("all").device_peak, 0);
  }
  const std::pair<const char*, bool> others[] = {
      {"outbox", rows.outbox && (on_device || !rows.base)},
      {"inbox", rows.inbox},
      {"base", rows.base}};
  for (const auto& [use, there] : others) {
    const MemoryHeld held = of(use);
    const bool rows_on_device = on_device && !rows_on_host;
    EXPECT_LE(rows_on_device ? held.device : held.host, there ? row : 0) << use;
    EXPECT_EQ(rows_on_device ? held.host_peak : held.device_peak, 0) << use;
  }
  if (rows_on_host) {
    EXPECT_EQ(of("outbox").host_peak + of("base").host_peak != 0, rows.outbox || rows.base);
  }
  EXPECT_EQ(of("copies").host, 0);
  EXPECT_EQ(of("mean").host, 0);
  MemoryHeld sum;
  for (const MemoryHeld& held : memory) {
    EXPECT_LE(held.host, held.host_peak) << held.use;
    EXPECT_LE(held.device, held.device_peak) << held.use;
    if (held.use == "all") continue;
    sum.host += held.host;
    sum.device += held.device;
  }
  EXPECT_EQ(memory.front().use, "all");
  EXPECT_EQ(memory.front().host, sum.host);
  EXPECT_EQ(memory.front().device, sum.device);
}

TEST_P(SessionDeviceTest, EveryGradientCountsOnce) {
  ASSERT_NE(Module(), nullptr) << dlerror();
  const Strategy strategy = Strategies()[std::get<0>(GetParam())];
  const Mix& mix = kMixes[std::get<1>(GetParam())];
  JobSpec spec = SpecFor(strategy.engine, kWorkers);
  // A worker that finishes early leaves others a larger share, or other neighbours. Where models,
  // or changes of models, are averaged, an early replica has no part in the final average: all end
  // with the same step of the job.
  const Plan plan = MakeEngine(strategy.engine)->plan();
  const bool by_goal = TrainsInGroups(plan) && !NeedsGradients(plan);
  if (by_goal) spec.goal.steps = std::int64_t{kSteps} * kWorkers;
  FakeDaemon daemon(spec);
  std::vector<std::vector<float>> ends(kWorkers), averaged(kWorkers), kept(kWorkers);
  std::vector<int> steps(kWorkers);
  std::barrier training(kWorkers);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kWorkers; ++rank) {
    threads.emplace_back([&, rank] {
      const auto place = static_cast<std::size_t>(rank);
      const std::unique_ptr<Model> model = ModelOn(mix.on_device[place], rank);
      SessionOptions options = testing::OptionsFor(daemon, rank);
      options.rows_on_host = mix.rows_on_host[place];
      Result<Session> session = Session::Create(options);
      ASSERT_TRUE(session.ok()) << session.status().ToString();
      Replica replica = model->replica();
      std::vector<Tensor> gradients;
      replica.gradients_later = rank < 2;  // one of either mix's kinds
      if (replica.gradients_later) gradients.swap(replica.gradients);
      const bool later = replica.gradients_later;
      const Status attached = session->Attach(std::move(replica));
      ASSERT_TRUE(attached.ok()) << attached.ToString();
      if (later) {
        EXPECT_EQ(session->needs_gradients(), NeedsGradients(plan));
        const Status given = session->SetGradients(gradients);
        ASSERT_TRUE(given.ok()) << given.ToString();
      }
      for (bool done = false; by_goal ? !done : steps[place] < kSteps; ++steps[place]) {
        model->Give(static_cast<float>(rank + 1));
        const Result<StepResult> result = session->Step({.samples = 1, .stream = model->stream()});
        ASSERT_TRUE(result.ok()) << result.status().ToString();
        done = result->done;
      }
      if (!TrainsInGroups(plan)) training.arrive_and_wait();
      ExpectMemory(plan, mix.on_device[place], mix.rows_on_host[place], session->memory());
      const Status finished = session->Finish();
      ASSERT_TRUE(finished.ok()) << finished.ToString();
      ends[place] = model->Parameters();
      averaged[place] = model->Averaged();
      kept[place] = model->Kept();
    });
  }
  for (std::thread& thread : threads) thread.join();
  double mean = 0;
  for (int rank = 0; rank < kWorkers; ++rank) {
    mean += static_cast<double>(steps[static_cast<std::size_t>(rank)] * (rank + 1)) / kWorkers;
  }
  for (const auto& all : {ends, averaged}) {
    for (const std::vector<float>& values : all) {
      ASSERT_EQ(values.size(), kSize);
      for (std::size_t i = 0; i < kSize; ++i) {
        ASSERT_NEAR(values[i], mean, 1e-4 * mean) << "element " << i;
      }
    }
  }
  // What each worker has applied, which no average has changed: all gradients, or its own.
  const bool own = kept[0][0] != kept[kWorkers - 1][0];
  for (std::size_t rank = 0; rank < kWorkers; ++rank) {
    const double applied = own ? steps[rank] * static_cast<double>(rank + 1) : mean;
    for (const float value : kept[rank]) ASSERT_NEAR(value, applied, 1e-4 * mean) << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(StandIn, SessionDeviceTest,
                         ::testing::Combine(::testing::Range(std::size_t{0}, Strategies().size()),
                                            ::testing::Range(std::size_t{0}, std::size(kMixes))),
                         [](const auto& what) {
                           return std::string(Strategies()[std::get<0>(what.param)].name) + "On" +
                                  kMixes[std::get<1>(what.param)].name;
                         });

// ---- how groups are reduced ----

std::uint64_t Sum(const GroupTransports& groups) {
  return groups.collective + groups.exchange + groups.staged;
}

// Both workers are in every group, and know of it when its step returns.
TEST(SessionGroupTransportsTest, EachGroupIsCountedByItsTransport) {
  ASSERT_NE(Module(), nullptr) << dlerror();
  for (const bool device : {true, false}) {
    FakeDaemon daemon(SpecFor(AllReduceOptions{}, 2));
    std::vector<GroupTransports> groups(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const std::unique_ptr<Model> model = ModelOn(device, rank);
        Result<Session> session = Open(daemon, rank);
        ASSERT_TRUE(session.ok());
        ASSERT_EQ(Sum(session->group_transports()), 0u);
        ASSERT_TRUE(session->Attach(model->replica()).ok());
        const std::uint64_t before = Sum(session->group_transports());
        // A communicator of the two is made meanwhile, if they have devices.
        std::uint64_t steps = 0;
        while (steps < 5 ||
               (device && session->group_transports().collective < 3 && steps < 20'000)) {
          model->Give(1);
          const auto step = session->Step({.samples = 1, .stream = model->stream()});
          ASSERT_TRUE(step.ok()) << step.status().ToString();
          ASSERT_EQ(Sum(session->group_transports()), before + ++steps);
        }
        ASSERT_TRUE(session->Finish().ok());
        groups[static_cast<std::size_t>(rank)] = session->group_transports();
        EXPECT_GT(Sum(session->group_transports()), before + steps);  // the final average
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(groups[0].collective, groups[1].collective);
    EXPECT_EQ(groups[0].exchange, groups[1].exchange);
    EXPECT_EQ(groups[0].staged, groups[1].staged);
    EXPECT_EQ(device, groups[0].collective >= 3);
    EXPECT_TRUE(device || Sum(groups[0]) == groups[0].staged);
  }
}

// ---- what goes wrong ----

TEST(SessionDeviceFaultTest, ADeviceThatCannotBeUsedIsSaidAtOnceAndAnotherMayBeNamed) {
  ASSERT_NE(Module(), nullptr) << dlerror();
  FakeDaemon daemon(SpecFor(AllReduceOptions{}, 1));
  Result<Session> session = Open(daemon, 0);
  ASSERT_TRUE(session.ok());
  HostModel host;
  Replica replica = host.replica();
  replica.device = "gpu";
  EXPECT_EQ(session->Attach(replica).code(), Code::kInvalidArgument);
  replica.device = "cuda:99";
  const Status absent = session->Attach(replica);
  EXPECT_EQ(absent.code(), Code::kUnavailable);
  EXPECT_NE(absent.message().find("no such device"), std::string::npos) << absent.ToString();
  replica.device = "cuda:0";
  const Status elsewhere = session->Attach(replica);
  EXPECT_EQ(elsewhere.code(), Code::kInvalidArgument);
  EXPECT_NE(elsewhere.message().find("parameters[0]"), std::string::npos) << elsewhere.ToString();
  replica.device = "cpu";
  EXPECT_TRUE(session->Attach(replica).ok());
  host.Give(2);
  ASSERT_TRUE(session->Step().ok());
  EXPECT_EQ(host.Parameters().front(), 2.f);
  EXPECT_TRUE(session->Finish().ok());
}

// Two workers of p-reduce, each on a thread of its own, on devices where no collective ever ends.
template <typename Worker>
void RunTwoThatHang(std::chrono::milliseconds timeout, Worker&& worker) {
  ASSERT_NE(Module(), nullptr) << dlerror();
  ASSERT_EQ(setenv("PRD_STANDIN_HANG_COLLECTIVES", "1", 1), 0);
  FakeDaemon daemon(SpecFor(Strategies()[1].engine, 2));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      DeviceModel model(rank);
      Result<Session> session = Open(daemon, rank, timeout);
      ASSERT_TRUE(session.ok());
      worker(rank, &model, &*session);
    });
  }
  for (std::thread& thread : threads) thread.join();
  unsetenv("PRD_STANDIN_HANG_COLLECTIVES");
}

// Alone, nothing hangs: the other one has taken a slow step for one that hangs, and left.
bool TrainsWithTheOther(const Session& session) { return session.progress().workers > 1; }

// Steps return all the same, for their streams wait; the next ones hear that it was given up, and
// average by another way before they do anything else.
TEST(SessionDeviceFaultTest, AStepThatHasReturnedIsMadeGoodByTheNext) {
  std::vector<std::vector<float>> ends(2);
  RunTwoThatHang(std::chrono::milliseconds(300), [&](int rank, DeviceModel* model,
                                                     Session* session) {
    ASSERT_TRUE(session->Attach(model->replica()).ok());
    bool made_good = false;
    for (int step = 0; step < 20'000 && !made_good; ++step) {
      model->Give(static_cast<float>(rank + 1));
      const std::int64_t before = session->iteration();
      const Result<StepResult> result = session->Step({.samples = 1, .stream = model->stream()});
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      EXPECT_EQ(session->iteration(), result->iteration);
      EXPECT_GT(result->iteration, before);
      made_good = result->attempts > 1;
    }
    EXPECT_TRUE(made_good);
    ASSERT_TRUE(session->Finish().ok());
    ends[static_cast<std::size_t>(rank)] = model->Parameters();
  });
  ASSERT_EQ(ends[0].size(), kSize);
  EXPECT_EQ(ends[0], ends[1]);
}

// What hangs is the collective of a step that has returned, and the next step waits for it, or, for
// all that the test knows, a moment before that: either way who cancels may leave at once.
TEST(SessionDeviceFaultTest, ACancelledSessionLeavesWhatHangs) {
  RunTwoThatHang(std::chrono::minutes(10), [](int, DeviceModel* model, Session* session) {
    std::int64_t applied = 0;
    Replica replica = model->replica();
    replica.apply = [&applied, apply = std::move(replica.apply)] {
      ++applied;
      apply();
    };
    ASSERT_TRUE(session->Attach(std::move(replica)).ok());
    std::mutex mutex;
    std::condition_variable stepped;
    std::int64_t steps = 0;
    Status status;
    std::thread trainer([&] {
      while (status.ok()) {
        model->Give(1);
        const Status now = session->Step({.samples = 1, .stream = model->stream()}).status();
        const std::lock_guard lock(mutex);
        status = now;
        ++steps;
        stepped.notify_all();
      }
    });
    {
      std::unique_lock lock(mutex);
      for (std::int64_t seen = -1;
           TrainsWithTheOther(*session) &&
           stepped.wait_for(lock, std::chrono::milliseconds(200), [&] { return steps > seen; });) {
        seen = steps;
      }
    }
    session->Cancel();
    trainer.join();
    EXPECT_EQ(status.code(), Code::kCancelled) << status.ToString();
    EXPECT_EQ(applied, steps);  // the last one's gradient, too, is in the parameters
    EXPECT_EQ(session->Finish().code(), Code::kCancelled);
    (void)session->Leave("the test is over");
  });
}

// The same for who leaves without that, between two steps.
TEST(SessionDeviceFaultTest, WhoLeavesDoesNotWaitForWhatHangs) {
  RunTwoThatHang(std::chrono::minutes(10), [](int, DeviceModel* model, Session* session) {
    ASSERT_TRUE(session->Attach(model->replica()).ok());
    Status status;
    for (bool hangs = false; !hangs && status.ok() && TrainsWithTheOther(*session);) {
      model->Give(1);
      status = session->Step({.samples = 1, .stream = model->stream()}).status();
      hangs = !model->ThroughWithin(std::chrono::milliseconds(300));
    }
    // kAborted: the other one's leaving ended this one's step.
    EXPECT_TRUE(status.ok() || status.code() == Code::kAborted) << status.ToString();
    EXPECT_TRUE(session->Leave("the test is over").ok());
    EXPECT_EQ(session->Step().status().code(), Code::kFailedPrecondition);
  });
}

// The last device, which no other test uses, fails under one of three workers.
TEST(SessionDeviceFaultTest, ADeviceThatFailsLeavesTheJobWhichGoesOn) {
  ASSERT_NE(Module(), nullptr) << dlerror();
  constexpr int kBroken = 7;
  FakeDaemon daemon(SpecFor(AllReduceOptions{}, 3));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const int device = rank == 1 ? kBroken : rank;
      DeviceModel model(device);
      Result<Session> session = Open(daemon, rank);
      ASSERT_TRUE(session.ok());
      ASSERT_TRUE(session->Attach(model.replica()).ok());
      Status status;
      for (int step = 0; step < 6 && status.ok(); ++step) {
        model.Give(1);
        if (rank == 1 && step == 2) Standin(device)->FailOperation(5);
        status = session->Step({.samples = 1, .stream = model.stream()}).status();
      }
      if (rank == 1) {
        EXPECT_EQ(status.code(), Code::kInternal) << status.ToString();
        EXPECT_EQ(session->Step({.samples = 1, .stream = model.stream()}).status().code(),
                  Code::kInternal);
        EXPECT_EQ(session->Finish().code(), Code::kInternal);
        return;
      }
      EXPECT_TRUE(status.ok()) << status.ToString();
      EXPECT_TRUE(session->Finish().ok());
      EXPECT_FLOAT_EQ(model.Parameters().front(), 6.f);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(SessionMemoryTest, WhatFindsNoPlaceIsNamed) {
#if defined(PRD_ADDRESS_SANITIZER) || defined(PRD_THREAD_SANITIZER)
  GTEST_SKIP() << "the sanitizer ends a program that asks for so much";
#endif
  HostMemory memory;
  const std::size_t too_much = std::size_t{1} << 60;
  try {
    (void)memory.Allocate(MemoryUse::kOutbox, too_much);
    FAIL() << "found a place";
  } catch (const std::bad_alloc& error) {
    EXPECT_EQ(
        std::string(error.what()).find("no memory for 1152921504606846976 bytes of \"outbox\""),
        0u);
  }
  EXPECT_EQ(memory.meter()->all(), HeldMemory{});
}

// The replica that is taken at the start comes in place of the other one, and so it does where a
// worker joins later. The steps need nothing. (Averaged state has its copy.)
TEST(SessionMemoryTest, NeitherAStartNorACopyCostsAnything) {
  FakeDaemon daemon(SpecFor(AllReduceOptions{}, 2));
  std::vector<std::thread> threads;
  std::atomic<bool> stepped = false;
  std::atomic<bool> enough = false;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      HostModel model;
      Result<Session> session = Open(daemon, rank);
      ASSERT_TRUE(session.ok());
      if (rank == 2) stepped.wait(false);
      ASSERT_TRUE(session->Attach(model.replica()).ok());
      while (!enough) {  // one that has finished is not counted
        const Progress seen = session->progress();
        if (seen.workers == 3 && seen.steps >= 6) enough = true;
        model.Give(1);
        ASSERT_TRUE(session->Step({.samples = 1}).ok());
        stepped = true;
        stepped.notify_all();
      }
      for (const MemoryHeld& held : session->memory()) {
        const bool sends = held.use == "copies" && rank != 2;  // a source, chunk by chunk
        if (held.use == "all" || held.use == "state" || sends) continue;
        EXPECT_EQ(held.host_peak, 0) << held.use;
      }
      EXPECT_TRUE(session->Finish().ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A call while a CUDA graph is captured from the stream is refused, and the next one is as any
// other.
TEST(SessionDeviceFaultTest, NoCallBecomesAPartOfACudaGraph) {
  ASSERT_NE(Module(), nullptr) << dlerror();
  constexpr int kDevice = 6;
  FakeDaemon daemon(SpecFor(AllReduceOptions{}, 1));
  DeviceModel model(kDevice);
  Result<Session> session = Open(daemon, 0);
  ASSERT_TRUE(session.ok());
  ASSERT_TRUE(session->Attach(model.replica()).ok());
  for (int step = 0; step < 3; ++step) {
    model.Give(1);
    Standin(kDevice)->Capture(true);
    EXPECT_EQ(session->Step({.samples = 1, .stream = model.stream()}).status().code(),
              Code::kFailedPrecondition);
    EXPECT_EQ(session->Pause().code(), Code::kFailedPrecondition);
    EXPECT_EQ(session->Finish().code(), Code::kFailedPrecondition);
    Standin(kDevice)->Capture(false);
    ASSERT_TRUE(session->Step({.samples = 1, .stream = model.stream()}).ok());
  }
  ASSERT_TRUE(session->Finish().ok());
  EXPECT_FLOAT_EQ(model.Parameters().front(), 3.f);
}

}  // namespace
}  // namespace prd
