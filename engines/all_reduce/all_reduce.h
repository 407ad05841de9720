// Engine `all-reduce`: the baseline. Every iteration, all joined workers reduce their gradients in
// one round.
//
// A round forms as soon as every joined worker has a signal waiting. A worker that joins belongs to
// the barrier at once; one that leaves releases it. The round's iteration is the largest that a
// member offers (they differ only after a join, engine.h).
#ifndef PRD_ENGINES_ALL_REDUCE_ALL_REDUCE_H_
#define PRD_ENGINES_ALL_REDUCE_ALL_REDUCE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engines/all_reduce/options.h"
#include "engines/engine.h"
#include "engines/ring_order.h"

namespace prd {

class AllReduce final : public Engine {
 public:
  explicit AllReduce(const AllReduceOptions& options) : options_(options) {}

  Plan plan() const override { return {.by = GroupPlan{.payload = Payload::kGradients}}; }
  Joining joining() const override { return Joining::kBarrier; }
  Batches batches() const override {
    const bool weighs = options_.weights == AllReduceOptions::Weights::kSamples;
    return weighs ? Batches::kWhole : Batches::kNone;
  }
  void Step(Instant now, const Event& event, GroupId* next_group, Effects* out) override;
  std::optional<Instant> NextDeadline() const override { return std::nullopt; }
  std::string Explain(Instant now, Rank rank) const override;
  void Archive(StateArchive& ar) override;

 private:
  // What a signal touches: small, for at many workers a signal costs what its cache lines cost.
  struct Worker {
    Iteration iteration = 0;
    std::uint32_t samples = 0;  // of the waiting signal
    bool joined = false;
    bool waiting = false;
    void Archive(StateArchive& ar) { ar(iteration, samples, joined, waiting); }
  };

  const Worker* Find(Rank rank) const;
  void OnJoined(const JoinedEvent& event);
  void OnReady(const ReadyEvent& event);
  void OnLeft(const LeftEvent& event);
  void FormIfAllReady(GroupId* next_group, Effects* out);
  void SortRing();
  bool Consistent() const;

  const AllReduceOptions options_;
  std::vector<Worker> workers_;             // by rank
  std::vector<std::int32_t> host_numbers_;  // by rank
  HostTable hosts_;
  std::int64_t joined_ = 0;
  std::int64_t waiting_ = 0;
  bool released_ = false;   // a worker has left since the last round: for the reason only
  std::vector<Rank> ring_;  // the joined ranks in ring order; empty = to be made (derived state)
};

}  // namespace prd

#endif  // PRD_ENGINES_ALL_REDUCE_ALL_REDUCE_H_
