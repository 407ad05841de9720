// Workers of a job at the level of their meshes, some with their replicas on devices: of a stand-in
// for CUDA and NCCL (tests/standin), which shows that the calls are made as they must be, and
// proves nothing about GPUs. What the devices run, and when, a seed says.
#ifndef PRD_TESTS_WORKER_MESH_DEVICES_H_
#define PRD_TESTS_WORKER_MESH_DEVICES_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
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
class PlacedWorker : public MeshWorker {
 public:
  static constexpr std::size_t kWindowBytes = 4096;  // of reductions on a device

  struct Options {
    Shapes shapes;
    Plan plan;
    int rank = 0;
    bool device = false;
    std::uint64_t seed = 1;
    std::shared_ptr<Hub> hub;  // null: without NCCL
    bool rows_on_host = false;
    DurationNs timeout = 10 * kSecond;
  };

  explicit PlacedWorker(const Options& options)
      : MeshWorker(options.shapes, Mesh::Options{.incarnation = IncarnationOf(options.rank),
                                                 .timeout = options.timeout}) {
    if (options.device) Place(options);
    Join(Views(&parameters), Views(&gradients), options.plan);
  }
  ~PlacedWorker() override {
    node.reset();
    if (gpu == nullptr) return;
    for (const auto& [host, there] : there_) gpu->Free(there);
    gpu->device().Advance();
    EXPECT_EQ(gpu->problems(), std::vector<std::string>());
    EXPECT_EQ(gpu->comms(), 0u);
    EXPECT_EQ(gpu->handles(), 0u);
  }

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
  // The parameters as groups reduce them. REQUIRES: it is on a device.
  std::vector<std::byte> ReadRow() {
    gpu->device().Advance();
    std::vector<std::byte> row(store().parameters.bytes());
    for (const Layout::Piece& piece : store().parameters.pieces()) {
      const std::vector<std::byte> now = gpu->Read(piece.data, piece.end - piece.begin);
      std::copy(now.begin(), now.end(), row.begin() + static_cast<std::ptrdiff_t>(piece.begin));
    }
    return row;
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

  std::shared_ptr<StandInGpu> gpu;  // null: on the host
  DeviceMemory* memory = nullptr;

 private:
  // That says its rank (MeshNode::AsMember).
  static Incarnation IncarnationOf(int rank) {
    static std::random_device device;
    return (Incarnation{device()} << 20 | device() >> 12) / 1000 * 1000 +
           static_cast<Incarnation>(rank) + 1000;
  }
  void Place(const Options& options) {
    StandInOptions make;
    make.make.seed = options.seed;
    make.hub = options.hub;
    gpu = StandInGpu::Create(make).value();
    // Small pieces: what is staged goes through all of the memory's slots.
    auto made = DeviceMemory::Create(gpu, -1, 4096).value();
    memory = made.get();
    if (options.rows_on_host) memory->KeepRowsOnHost();
    const DevicePlane::Options plane_options{
        .timeout = options.timeout, .window_bytes = kWindowBytes, .communicators = {}};
    auto plane = DevicePlane::Create(memory, -1, plane_options).value();
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

// Without NCCL, every other worker has its rows in host memory.
class PlacedJob : public MeshJob {
 public:
  PlacedJob(const std::vector<bool>& on_device, const Shapes& shapes, const Plan& plan,
            std::uint64_t seed, bool nccl = true, DurationNs timeout = 10 * kSecond)
      : MeshJob(0, shapes, plan), hub(nccl ? std::make_shared<LocalHub>() : nullptr), prng_(seed) {
    for (std::size_t i = 0; i < on_device.size(); ++i) {
      workers_.push_back(std::make_unique<PlacedWorker>(
          PlacedWorker::Options{.shapes = shapes,
                                .plan = plan,
                                .rank = static_cast<int>(i),
                                .device = on_device[i],
                                .seed = on_device[i] ? seed * 100 + i + 1 : 0,
                                .hub = hub,
                                .rows_on_host = !nccl && i % 2 == 1,
                                .timeout = timeout}));
    }
  }
  ~PlacedJob() override {
    workers_.clear();
    if (hub != nullptr) {
      EXPECT_EQ(hub->problems().list(), std::vector<std::string>());
    }
  }

  PlacedWorker& operator[](std::size_t i) { return static_cast<PlacedWorker&>(*workers_[i]); }
  void Kill(std::size_t i) { workers_[i].reset(); }

  // Meshes and devices.
  bool RunUntil(const std::function<bool()>& done) override {
    const Instant deadline = MeshNow() + 20 * kSecond;
    while (MeshNow() < deadline) {
      std::vector<zmq::pollitem_t> items;
      bool turned = false;
      for (std::size_t i = 0; i < size(); ++i) {
        if (!alive(i)) continue;
        PlacedWorker& worker = (*this)[i];
        worker.mesh().Service(MeshNow());
        worker.node->AppendPollItems(&items);
        for (std::uint64_t n = prng_.Below(6); worker.gpu != nullptr && n > 0; --n) {
          turned = worker.gpu->device().Turn() || turned;
        }
      }
      if (done()) return true;
      zmq::poll(items, std::chrono::milliseconds(turned ? 0 : 1));
    }
    return false;
  }

  // Lets communicators that are being made become ready.
  void Settle() {
    EXPECT_TRUE(RunUntil([&] {
      for (const MeshNode* node : Nodes()) {
        const Communicators& comms = node->mesh->communicators();
        if (comms.Usable().size() != comms.counters().here) return false;
      }
      return true;
    }));
  }
  std::uint64_t groups(Way way) const {
    std::uint64_t sum = 0;
    for (const MeshNode* node : Nodes()) {
      sum += node->mesh->counters().groups[static_cast<std::size_t>(way)];
    }
    return sum;
  }

  const std::shared_ptr<LocalHub> hub;

 private:
  Prng prng_;
};

}  // namespace prd::testing

#endif  // PRD_TESTS_WORKER_MESH_DEVICES_H_
