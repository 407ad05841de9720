#include "engines/all_reduce/all_reduce.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "engines/samples.h"
#include "engines/words.h"

namespace prd {

std::unique_ptr<Engine> AllReduceOptions::Make() const {
  return std::make_unique<AllReduce>(*this);
}

const AllReduce::Worker* AllReduce::Find(Rank rank) const {
  if (rank < 0 || static_cast<std::size_t>(rank) >= workers_.size()) return nullptr;
  const Worker& worker = workers_[static_cast<std::size_t>(rank)];
  return worker.joined ? &worker : nullptr;
}

void AllReduce::Step(Instant, const Event& event, GroupId* next_group, Effects* out) {
  if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    OnReady(*ready);
  } else if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    OnJoined(*joined);
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    OnLeft(*left);
  } else {
    return;  // who is still busy with a round has no signal waiting: nothing else changes anything
  }
  FormIfAllReady(next_group, out);
}

void AllReduce::OnJoined(const JoinedEvent& event) {
  PRD_CHECK(event.rank >= 0 && Find(event.rank) == nullptr);
  const auto index = static_cast<std::size_t>(event.rank);
  if (index >= workers_.size()) {
    workers_.resize(index + 1);
    host_numbers_.resize(index + 1);
  }
  host_numbers_[index] = hosts_.Add(event.host);
  workers_[index] = {.iteration = event.iteration, .joined = true};
  ++joined_;
  ring_.clear();
}

void AllReduce::OnReady(const ReadyEvent& event) {
  PRD_CHECK(Find(event.rank) != nullptr);
  Worker& worker = workers_[static_cast<std::size_t>(event.rank)];
  PRD_CHECK(!worker.waiting);
  worker.waiting = true;
  worker.iteration = event.ready.iteration;
  worker.samples = StoredSamples(event.ready.samples);
  ++waiting_;
}

void AllReduce::OnLeft(const LeftEvent& event) {
  PRD_CHECK(Find(event.rank) != nullptr);
  Worker& worker = workers_[static_cast<std::size_t>(event.rank)];
  if (worker.waiting) --waiting_;
  --joined_;
  released_ = true;
  hosts_.Remove(host_numbers_[static_cast<std::size_t>(event.rank)]);
  worker = {};
  ring_.clear();
}

void AllReduce::SortRing() {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].joined) ring_.push_back(static_cast<Rank>(i));
  }
  std::sort(ring_.begin(), ring_.end(), InRingOrder([this](Rank rank) {
              return host_numbers_[static_cast<std::size_t>(rank)];
            }));
}

void AllReduce::FormIfAllReady(GroupId* next_group, Effects* out) {
  if (joined_ == 0 || waiting_ < joined_) return;
  if (ring_.empty()) SortRing();
  GroupFormed group;
  group.id = (*next_group)++;
  group.members.reserve(ring_.size());
  SampleShares shares(options_.weights == AllReduceOptions::Weights::kSamples);
  for (const Rank rank : ring_) shares.Add(workers_[static_cast<std::size_t>(rank)].samples);
  for (const Rank rank : ring_) {
    Worker& worker = workers_[static_cast<std::size_t>(rank)];
    worker.waiting = false;
    group.iteration = std::max(group.iteration, worker.iteration);
    group.members.push_back(
        {.rank = rank, .weight = shares.Of(worker.samples), .iteration = worker.iteration});
  }
  group.reason = std::to_string(joined_) + " of " + std::to_string(joined_) + " ready";
  group.reason += shares.Words();
  if (released_) group.reason += "; workers have left since the last round";
  released_ = false;
  waiting_ = 0;
  out->push_back(std::move(group));
}

std::string AllReduce::Explain(Instant, Rank rank) const {
  const Worker* worker = Find(rank);
  if (worker == nullptr || !worker->waiting) return "";
  std::vector<Rank> missing;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].joined && !workers_[i].waiting) missing.push_back(static_cast<Rank>(i));
  }
  return "waiting: " + std::to_string(waiting_) + " of " + std::to_string(joined_) +
         " ready; still to come: " + words::Ranks(missing);
}

void AllReduce::Archive(StateArchive& ar) {
  ar(workers_, host_numbers_, hosts_, joined_, waiting_, released_);
  if (ar.saving()) return;
  ring_.clear();
  if (!Consistent()) ar.Fail();
}

bool AllReduce::Consistent() const {
  std::int64_t joined = 0;
  std::int64_t waiting = 0;
  if (host_numbers_.size() != workers_.size()) return false;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const Worker& worker = workers_[i];
    if (worker.joined && !hosts_.Has(host_numbers_[i])) return false;
    if (worker.waiting && !worker.joined) return false;
    joined += worker.joined ? 1 : 0;
    waiting += worker.waiting ? 1 : 0;
  }
  return joined == joined_ && waiting == waiting_;
}

}  // namespace prd
