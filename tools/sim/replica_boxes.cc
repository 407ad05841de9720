#include "tools/sim/replica_boxes.h"

#include <algorithm>

namespace prd::sim {

void ReplicaBoxes::Empty(std::uint32_t worker) {
  book_.Lost(worker);
  world_->replicas[worker].inbox.clear();
  world_->replicas[worker].overlap = {};
}

// ---- rounds ----

void ReplicaBoxes::Deposit(std::uint32_t worker) {
  Replica& replica = world_->replicas[worker];
  book_.Deposit(worker);
  replica.outbox.resize(replica.gradient.size(), 0.0);
  for (std::size_t j = 0; j < replica.gradient.size(); ++j) {
    replica.outbox[j] += replica.gradient[j];
  }
}

std::uint32_t ReplicaBoxes::Take(std::uint32_t worker, RunId run,
                                 const std::shared_ptr<const RoundResult>& round,
                                 bool contributed) {
  Replica& replica = world_->replicas[worker];
  const std::uint32_t included = book_.Took(worker, run, *round, contributed);
  replica.inbox.push_back(round);
  return included;
}

std::int64_t ReplicaBoxes::TakeInbox(std::uint32_t worker, bool latest_only) {
  Replica& replica = world_->replicas[worker];
  const auto rounds = static_cast<std::int64_t>(replica.inbox.size());
  if (rounds == 0) return 0;
  std::fill(replica.gradient.begin(), replica.gradient.end(), 0.0);
  replica.gradient.resize(replica.x.size(), 0.0);
  for (std::size_t i = latest_only ? replica.inbox.size() - 1 : 0; i < replica.inbox.size(); ++i) {
    const RoundResult& round = *replica.inbox[i];
    for (std::size_t j = 0; j < round.sum.size(); ++j) replica.gradient[j] += round.sum[j];
    replica.tag += Mixed(round.group);
  }
  replica.inbox.clear();
  return rounds;
}

// ---- averages in the background ----

void ReplicaBoxes::FillOutbox(std::uint32_t worker, Iteration gain) {
  Replica& replica = world_->replicas[worker];
  Overlap& overlap = replica.overlap;
  overlap.outbox = replica.x;
  for (std::size_t j = 0; j < overlap.inbox.size(); ++j) overlap.outbox[j] += overlap.inbox[j];
  overlap.outbox_tag = overlap.averages > 0 ? Mixed(replica.tag ^ overlap.inbox_tag) : replica.tag;
  overlap.gain = gain;
}

void ReplicaBoxes::Average(std::uint32_t worker, const std::vector<double>& sum, std::uint64_t tag,
                           double initial_weight) {
  Replica& replica = world_->replicas[worker];
  Overlap& overlap = replica.overlap;
  overlap.inbox.resize(sum.size(), 0.0);
  for (std::size_t j = 0; j < sum.size(); ++j) {
    const double initial = initial_weight > 0 ? initial_weight * replica.initial[j] : 0;
    const double kept = mutation_ == Mutation::kInboxOverwritten ? 0 : overlap.inbox[j];
    overlap.inbox[j] = kept + sum[j] + initial - overlap.outbox[j];
  }
  ++overlap.averages;
  overlap.inbox_tag = Mixed(overlap.inbox_tag ^ tag);
  overlap.gained += overlap.gain;
}

std::int64_t ReplicaBoxes::AddInbox(std::uint32_t worker) {
  Replica& replica = world_->replicas[worker];
  Overlap& overlap = replica.overlap;
  const std::int64_t averages = overlap.averages;
  if (averages == 0) return 0;
  for (std::size_t j = 0; j < replica.x.size(); ++j) replica.x[j] += overlap.inbox[j];
  replica.tag = Mixed(replica.tag ^ overlap.inbox_tag);
  replica.iteration += overlap.gained;
  overlap.inbox.clear();
  overlap.averages = 0;
  overlap.inbox_tag = 0;
  overlap.gained = 0;
  return averages;
}

}  // namespace prd::sim
