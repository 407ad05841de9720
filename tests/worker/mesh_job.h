// The workers of a job at the level of their meshes: tensors of any dtypes, a plan, and the few
// things a worker does between groups.
#ifndef PRD_TESTS_WORKER_MESH_JOB_H_
#define PRD_TESTS_WORKER_MESH_JOB_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/plans.h"
#include "tests/worker/mesh_ring.h"
#include "tests/worker/numbers.h"
#include "worker/mesh/mesh.h"

namespace prd::testing {

using Shapes = std::vector<std::pair<DType, std::size_t>>;
using Tensors = std::vector<Numbers>;

inline constexpr DType kDTypes[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16};

inline Shapes EveryDType(std::size_t count) {
  return {{DType::kF32, count}, {DType::kF16, count + 1}, {DType::kF64, count}, {DType::kBF16, 3}};
}

inline Tensors MakeTensors(const Shapes& shapes) {
  Tensors tensors;
  for (const auto& [dtype, count] : shapes) tensors.emplace_back(dtype, count);
  return tensors;
}

inline std::vector<Tensor> ViewsOf(Tensors* tensors) {
  std::vector<Tensor> views;
  for (Numbers& numbers : *tensors) views.push_back(numbers.tensor());
  return views;
}
inline Layout LayoutOf(Tensors* tensors) { return Layout(ViewsOf(tensors)); }

// One after another, in the caller's order.
inline std::vector<double> ValuesOf(const Tensors& tensors) {
  std::vector<double> values;
  for (const Numbers& numbers : tensors) {
    for (std::size_t i = 0; i < numbers.size(); ++i) values.push_back(numbers.Get(i));
  }
  return values;
}

// Sets each to f().
template <typename F>
void Fill(Tensors* tensors, F&& f) {
  for (Numbers& numbers : *tensors) {
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers.Set(i, f());
  }
}

class MeshWorker {
 public:
  // Draws an incarnation where the options have none.
  MeshWorker(const Shapes& shapes, NodeOptions options, const Plan& plan)
      : MeshWorker(shapes, std::move(options)) {
    Join(ViewsOf(&parameters), ViewsOf(&gradients), plan);
  }
  virtual ~MeshWorker() = default;
  MeshWorker(const MeshWorker&) = delete;
  MeshWorker& operator=(const MeshWorker&) = delete;

  Mesh& mesh() { return *node->mesh; }
  ReplicaStore& store() { return node->store; }

  Tensors parameters;
  Tensors gradients;
  std::unique_ptr<MeshNode> node;  // null: dead

 protected:
  // For tensors that are elsewhere: it has yet to Join.
  MeshWorker(const Shapes& shapes, NodeOptions options)
      : parameters(MakeTensors(shapes)), gradients(MakeTensors(shapes)) {
    if (options.incarnation == 0) options.incarnation = FreshIncarnation();
    if (options.host.empty()) options.host = "host";
    node = std::make_unique<MeshNode>(options, std::vector<Tensor>());
  }
  void Join(const std::vector<Tensor>& at, const std::vector<Tensor>& gradients_at,
            const Plan& plan) {
    store().SetTensors(at, gradients_at, {});
    mesh().JoinRun(1, plan);
  }
};

class MeshJob {
 public:
  MeshJob(std::size_t workers, Shapes shapes, Plan plan, NodeOptions options = {})
      : shapes_(std::move(shapes)), plan_(plan), options_(std::move(options)) {
    for (std::size_t i = 0; i < workers; ++i) Add();
  }
  virtual ~MeshJob() = default;
  MeshJob(const MeshJob&) = delete;
  MeshJob& operator=(const MeshJob&) = delete;

  void Add() { workers_.push_back(std::make_unique<MeshWorker>(shapes_, options_, plan_)); }
  // On a host of its own.
  void AddApart() {
    NodeOptions options = options_;
    options.host = "host" + std::to_string(size());
    workers_.push_back(std::make_unique<MeshWorker>(shapes_, options, plan_));
  }
  // A new worker in the place of one that may be dead.
  void Revive(std::size_t i) {
    workers_[i] = std::make_unique<MeshWorker>(shapes_, options_, plan_);
  }
  MeshWorker& operator[](std::size_t i) { return *workers_[i]; }
  std::size_t size() const { return workers_.size(); }
  bool alive(std::size_t i) const { return workers_[i] && workers_[i]->node; }
  const Shapes& shapes() const { return shapes_; }

  std::vector<MeshNode*> Nodes() const {
    std::vector<MeshNode*> nodes;
    for (std::size_t i = 0; i < size(); ++i) {
      if (alive(i)) nodes.push_back(workers_[i]->node.get());
    }
    return nodes;
  }
  // All go on until done() or 20 s are over; returns done().
  virtual bool RunUntil(const std::function<bool()>& done) {
    return testing::RunUntil(Nodes(), done);
  }

  // Among these, with these weights; a new id each time.
  Group MakeGroup(GroupKind kind, Iteration iteration, const std::vector<std::size_t>& members,
                  const std::vector<double>& weights) {
    Group group{.id = ++last_, .kind = kind, .iteration = iteration};
    for (std::size_t i = 0; i < members.size(); ++i) {
      group.members.push_back(workers_[members[i]]->node->AsMember(weights[i]));
    }
    // The controller tells all of them, before any begins here.
    for (const std::size_t m : members) {
      if (alive(m)) workers_[m]->mesh().Announce(MeshNow(), group.members);
    }
    return group;
  }

  Reduced WhatReduces(GroupKind kind) const { return plans::WhatReduces(plan_, kind); }
  void Start(std::size_t worker, const Group& group, Iteration gain = 0) {
    workers_[worker]->node->reduced.reset();
    workers_[worker]->mesh().StartReduce(MeshNow(), group, WhatReduces(group.kind), gain);
  }

  // By member.
  std::vector<Status> Reduce(GroupKind kind, Iteration iteration,
                             const std::vector<std::size_t>& members,
                             const std::vector<double>& weights, Iteration gain = 0,
                             double initial = 0) {
    Group group = MakeGroup(kind, iteration, members, weights);
    group.initial_weight = initial;
    for (const std::size_t m : members) Start(m, group, gain);
    return Finish(members);
  }

  // The statuses of those that are alive.
  std::vector<Status> Finish(const std::vector<std::size_t>& members) {
    EXPECT_TRUE(RunUntil([&] {
      for (const std::size_t m : members) {
        if (alive(m) && !workers_[m]->node->reduced) return false;
      }
      return true;
    }));
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
    for (const Status& status : Reduce(kind, iteration, members, weights, gain, initial)) {
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
  }

  void StartFetch(std::size_t taker, std::size_t source, GroupId result = kNoGroup,
                  bool contributed = false) {
    MeshWorker& worker = *workers_[taker];
    worker.node->fetched.reset();
    workers_[source]->mesh().Announce(MeshNow(), {worker.node->AsMember(0)}, result == kNoGroup);
    worker.mesh().StartFetch(MeshNow(), workers_[source]->node->AsMember(0), result, contributed);
  }

  MeshNode::Fetched FinishFetch(std::size_t taker) {
    EXPECT_TRUE(RunUntil([&] { return workers_[taker]->node->fetched.has_value(); }));
    return workers_[taker]->node->fetched.value_or(
        MeshNode::Fetched{Status(Code::kInternal, "not reported"), -1});
  }

  MeshNode::Fetched Fetch(std::size_t taker, std::size_t source, GroupId result = kNoGroup,
                          bool contributed = false) {
    StartFetch(taker, source, result, contributed);
    return FinishFetch(taker);
  }

  // A row of bytes as values.
  std::vector<double> Decode(const std::vector<std::byte>& row) const {
    Tensors tensors = MakeTensors(shapes_);
    const Layout layout = LayoutOf(&tensors);
    EXPECT_EQ(row.size(), layout.bytes());
    if (row.size() == layout.bytes()) layout.Write(0, row.size(), row.data());
    return ValuesOf(tensors);
  }

  GroupId last_group() const { return last_; }

 protected:
  std::vector<std::unique_ptr<MeshWorker>> workers_;

 private:
  Shapes shapes_;
  Plan plan_;
  NodeOptions options_;
  GroupId last_ = 0;
};

}  // namespace prd::testing

#endif  // PRD_TESTS_WORKER_MESH_JOB_H_
