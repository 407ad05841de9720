// Workers of a job at the level of their meshes, some with their replicas on devices: of a stand-in
// for CUDA and NCCL (tests/standin), which shows that the calls are made as they must be, and
// proves nothing about GPUs. What the devices run, and when, a seed says.
#ifndef PRD_TESTS_WORKER_MESH_DEVICES_H_
#define PRD_TESTS_WORKER_MESH_DEVICES_H_

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/base/prng.h"
#include "tests/standin/standin_gpu.h"
#include "tests/worker/mesh_job.h"
#include "worker/device/device_memory.h"
#include "worker/device/plane.h"

namespace prd::testing {

// One worker on a device, or on the host (no `hub`, `device` false).
class PlacedWorker {
 public:
  struct Options {
    Shapes shapes;
    Plan plan;
    int rank = 0;
    bool device = false;
    std::uint64_t seed = 1;
    std::shared_ptr<Hub> hub;  // null: without NCCL
    DurationNs timeout = 10 * kSecond;
  };

  explicit PlacedWorker(const Options& options)
      : parameters(MakeTensors(options.shapes)), gradients(MakeTensors(options.shapes)) {
    static std::random_device device;
    Mesh::Options mesh{.incarnation = (Incarnation{device()} << 20 | device() >> 12) / 1000 * 1000 +
                                      static_cast<Incarnation>(options.rank) + 1000,
                       .host = "host"};
    mesh.timeout = options.timeout;
    node = std::make_unique<MeshNode>(mesh, std::vector<Tensor>());
    if (options.device) Place(options);
    node->store.parameters = Layout(Views(&parameters));
    node->store.gradients = Layout(Views(&gradients));
    node->mesh->JoinRun(1, options.plan);
  }
  ~PlacedWorker() {
    node.reset();
    if (gpu == nullptr) return;
    for (const auto& [host, there] : there_) gpu->Free(there);
    gpu->device().Advance();
    EXPECT_EQ(gpu->problems(), std::vector<std::string>());
    EXPECT_EQ(gpu->comms(), 0u);
    EXPECT_EQ(gpu->handles(), 0u);
  }
  PlacedWorker(const PlacedWorker&) = delete;
  PlacedWorker& operator=(const PlacedWorker&) = delete;

  Mesh& mesh() { return *node->mesh; }
  ReplicaStore& store() { return node->store; }

  // Runs all that the device has to do, and gives the tensors' values.
  const Tensors& Read(Tensors* tensors) {
    for (Numbers& numbers : *tensors) {
      const Tensor view = numbers.tensor();
      if (gpu == nullptr || view.count == 0) continue;
      gpu->device().Advance();
      const std::size_t bytes = view.count * DTypeSize(view.dtype);
      const std::vector<std::byte> now = gpu->Read(there_.at(view.data), bytes);
      std::memcpy(view.data, now.data(), bytes);
    }
    return *tensors;
  }
  // The tensors become their values.
  void Write(Tensors* tensors) {
    for (Numbers& numbers : *tensors) {
      const Tensor view = numbers.tensor();
      if (gpu == nullptr || view.count == 0) continue;
      gpu->device().Advance();
      gpu->Write(there_.at(view.data), view.data, view.count * DTypeSize(view.dtype));
    }
  }

  Tensors parameters;
  Tensors gradients;
  std::shared_ptr<StandInGpu> gpu;  // null: on the host
  DeviceMemory* memory = nullptr;
  std::unique_ptr<MeshNode> node;

 private:
  void Place(const Options& options) {
    StandInOptions make;
    make.make.seed = options.seed;
    make.hub = options.hub;
    gpu = StandInGpu::Create(make).value();
    // Small pieces: what is staged goes through all of the memory's slots.
    auto made = DeviceMemory::Create(gpu, -1, 4096).value();
    memory = made.get();
    auto plane =
        DevicePlane::Create(memory, -1, {.timeout = options.timeout, .communicators = {}}).value();
    node->mesh->UseMemory(std::move(made), std::move(plane));
  }
  std::vector<Tensor> Views(Tensors* tensors) {
    std::vector<Tensor> views;
    for (Numbers& numbers : *tensors) {
      Tensor view = numbers.tensor();
      if (gpu != nullptr && view.count != 0) {
        std::byte* there = gpu->Malloc(view.count * DTypeSize(view.dtype)).value();
        there_[view.data] = there;
        view.data = there;
      }
      views.push_back(view);
    }
    return views;
  }

  std::map<void*, std::byte*> there_;  // by where the values are
};

class PlacedJob {
 public:
  PlacedJob(const std::vector<bool>& on_device, const Shapes& shapes, const Plan& plan,
            std::uint64_t seed, bool nccl = true, DurationNs timeout = 10 * kSecond)
      : hub(nccl ? std::make_shared<LocalHub>() : nullptr), prng_(seed) {
    for (std::size_t i = 0; i < on_device.size(); ++i) {
      workers_.push_back(std::make_unique<PlacedWorker>(
          PlacedWorker::Options{.shapes = shapes,
                                .plan = plan,
                                .rank = static_cast<int>(i),
                                .device = on_device[i],
                                .seed = on_device[i] ? seed * 100 + i + 1 : 0,
                                .hub = hub,
                                .timeout = timeout}));
    }
  }
  ~PlacedJob() {
    workers_.clear();
    if (hub != nullptr) {
      EXPECT_EQ(hub->problems().list(), std::vector<std::string>());
    }
  }

  PlacedWorker& operator[](std::size_t i) { return *workers_[i]; }
  std::size_t size() const { return workers_.size(); }
  void Kill(std::size_t i) { workers_[i].reset(); }
  bool alive(std::size_t i) const { return workers_[i] != nullptr; }

  // Meshes and devices go on until done() or 20 s are over; returns done().
  bool RunUntil(const std::function<bool()>& done) {
    const Instant deadline = MeshNow() + 20 * kSecond;
    while (MeshNow() < deadline) {
      std::vector<zmq::pollitem_t> items;
      bool turned = false;
      for (const auto& worker : workers_) {
        if (worker == nullptr) continue;
        worker->mesh().Service(MeshNow());
        worker->mesh().AppendPollItems(&items);
        for (std::uint64_t n = prng_.Below(6); worker->gpu != nullptr && n > 0; --n) {
          turned = worker->gpu->device().Turn() || turned;
        }
      }
      if (done()) return true;
      zmq::poll(items, std::chrono::milliseconds(turned ? 0 : 1));
    }
    return false;
  }

  Group MakeGroup(GroupKind kind, Iteration iteration, const std::vector<std::size_t>& members,
                  const std::vector<double>& weights) {
    Group group{.id = ++last_, .kind = kind, .iteration = iteration};
    for (std::size_t i = 0; i < members.size(); ++i) {
      group.members.push_back(workers_[members[i]]->node->AsMember(weights[i]));
    }
    return group;
  }
  void Start(std::size_t worker, const Group& group, Iteration gain = 0) {
    workers_[worker]->node->reduced.reset();
    workers_[worker]->mesh().StartReduce(MeshNow(), group, gain);
  }
  // Of those that are alive.
  std::vector<Status> Finish(const std::vector<std::size_t>& members) {
    const bool all = RunUntil([&] {
      for (const std::size_t m : members) {
        if (alive(m) && !workers_[m]->node->reduced) return false;
      }
      return true;
    });
    EXPECT_TRUE(all);
    std::vector<Status> statuses;
    for (const std::size_t m : members) {
      if (!alive(m)) continue;
      const auto& reduced = workers_[m]->node->reduced;
      statuses.push_back(reduced ? reduced->status : Status(Code::kInternal, "not reported"));
    }
    return statuses;
  }
  void ReduceOk(GroupKind kind, Iteration iteration, const std::vector<std::size_t>& members,
                const std::vector<double>& weights, Iteration gain = 0, double initial = 0) {
    Group group = MakeGroup(kind, iteration, members, weights);
    group.initial_weight = initial;
    for (const std::size_t m : members) Start(m, group, gain);
    for (const Status& status : Finish(members)) ASSERT_TRUE(status.ok()) << status.ToString();
  }
  // Lets communicators that are being made become ready.
  void Settle() {
    EXPECT_TRUE(RunUntil([&] {
      for (const auto& worker : workers_) {
        if (worker == nullptr) continue;
        const Communicators& comms = worker->mesh().communicators();
        if (comms.Usable().size() != comms.counters().here) return false;
      }
      return true;
    }));
  }
  std::uint64_t groups(Way way) const {
    std::uint64_t sum = 0;
    for (const auto& worker : workers_) {
      if (worker) sum += worker->mesh().counters().groups[static_cast<std::size_t>(way)];
    }
    return sum;
  }

  const std::shared_ptr<LocalHub> hub;

 private:
  std::vector<std::unique_ptr<PlacedWorker>> workers_;
  Prng prng_;
  GroupId last_ = 0;
};

}  // namespace prd::testing

#endif  // PRD_TESTS_WORKER_MESH_DEVICES_H_
