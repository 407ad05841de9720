#include "tools/sim/laws.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "tools/sim/violation.h"

namespace prd::sim {
namespace {

std::string Number(std::uint64_t value) { return std::to_string(value); }
std::string RankText(Rank rank) { return "rank " + std::to_string(rank); }

void CheckWeights(const GroupFormed& formed) {
  double sum = formed.initial_weight;
  bool negative = !(formed.initial_weight >= 0);
  for (const GroupShare& share : formed.members) {
    sum += share.weight;
    negative = negative || !(share.weight >= 0);
  }
  if (negative || !(std::abs(sum - 1) < 1e-9)) {
    throw Violation("weights", "those of group " + Number(formed.id) + " sum to " +
                                   std::to_string(sum) + (negative ? ", one is negative" : ""));
  }
}

}  // namespace

Laws::Worker& Laws::At(Run* run, Rank rank) {
  const auto index = static_cast<std::size_t>(rank);
  if (index >= run->workers.size()) run->workers.resize(index + 1);
  return run->workers[index];
}

void Laws::Seen(const Record& record) {
  Run* run = &runs_[record.run];
  if (const auto* from = std::get_if<FromWorker>(&record.body)) OnMessage(record, from->envelope);
  if (const auto* joined = std::get_if<WorkerJoined>(&record.body)) {
    Worker& worker = At(run, joined->rank);
    worker.incarnation = joined->incarnation;
    worker.iteration = joined->iteration;
    worker.joined = true;
  }
  if (const auto* left = std::get_if<WorkerLeft>(&record.body)) OnLeft(run, *left);
  if (const auto* formed = std::get_if<GroupFormed>(&record.body)) OnFormed(run, *formed);
  if (const auto* ended = std::get_if<GroupEnded>(&record.body)) {
    const auto it = run->groups.find(ended->id);
    if (it == run->groups.end() || !it->second.pending.empty()) {
      throw Violation("finished-once",
                      "group " + Number(ended->id) + " ends, and " +
                          (it == run->groups.end() ? "it does not run" : "not all have reported"));
    }
    run->groups.erase(it);
  }
  if (const auto* ordered = std::get_if<AdoptOrdered>(&record.body)) {
    At(run, ordered->rank).ordered = true;
    At(run, ordered->rank).waiting = false;
  }
  if (std::holds_alternative<RunEnded>(record.body) && !run->groups.empty()) {
    throw Violation("finished-once", "the run ends while a group runs");
  }
}

void Laws::OnMessage(const Record& record, const WorkerEnvelope& envelope) {
  Life& life = lives_[envelope.incarnation];
  const bool hello = std::holds_alternative<Hello>(envelope.body);
  if (hello && !life.there) life.seq = 0;
  if (envelope.seq != life.seq + 1) {
    throw Violation("messages-once", "message " + Number(envelope.seq) + " of incarnation " +
                                         Number(envelope.incarnation) + " is acted on after " +
                                         Number(life.seq));
  }
  life.seq = envelope.seq;
  life.run = record.run;
  life.there = true;
  if (hello) return;
  life.rank = envelope.rank;
  Run* run = &runs_[record.run];
  Worker& worker = At(run, envelope.rank);
  if (const auto* ready = std::get_if<Ready>(&envelope.body)) {
    if (worker.joined && ready->iteration < worker.iteration) {
      throw Violation("iterations", RankText(envelope.rank) + " is ready with iteration " +
                                        std::to_string(ready->iteration) + " after " +
                                        std::to_string(worker.iteration));
    }
    worker.waiting = true;
  }
  if (const auto* adopted = std::get_if<Adopted>(&envelope.body)) {
    worker.waiting = false;
    if (adopted->ok) worker.iteration = adopted->iteration;
  }
  if (const auto* finished = std::get_if<Finished>(&envelope.body)) {
    OnFinished(run, envelope.rank, *finished);
  }
}

void Laws::OnFinished(Run* run, Rank rank, const Finished& finished) {
  const auto it = run->groups.find(finished.group);
  if (it == run->groups.end() || std::erase(it->second.pending, rank) != 1) {
    throw Violation("finished-once", RankText(rank) + " reports on group " +
                                         Number(finished.group) + ", which does not wait for it");
  }
  Worker& worker = At(run, rank);
  worker.group = kNoGroup;
  if (finished.outcome != Outcome::kOk) return;
  if (worker.joined && it->second.iteration < worker.iteration) {
    throw Violation("iterations", RankText(rank) + " goes back from " +
                                      std::to_string(worker.iteration) + " to " +
                                      std::to_string(it->second.iteration));
  }
  worker.iteration = it->second.iteration;
}

void Laws::OnLeft(Run* run, const WorkerLeft& left) {
  if (left.why == LeftReason::kEvicted) {
    throw Violation("no-evictions", RankText(left.rank) + ": " + left.reason);
  }
  Worker& worker = At(run, left.rank);
  worker.joined = false;
  worker.waiting = false;
  if (left.why == LeftReason::kFinished) return;
  lives_[left.incarnation].there = false;
  if (worker.group != kNoGroup) std::erase(run->groups.at(worker.group).pending, left.rank);
  // A message that was decided on before may still leave after it.
  const bool ordered = worker.ordered;
  worker = Worker{.ordered = ordered};
}

void Laws::OnFormed(Run* run, const GroupFormed& formed) {
  const std::string name = "group " + Number(formed.id);
  if (formed.id != run->last_group + 1) {
    throw Violation("history-whole", name + " follows group " + Number(run->last_group));
  }
  run->last_group = formed.id;
  if (formed.members.empty()) throw Violation("members", name + " has none");
  CheckWeights(formed);
  const bool train = formed.kind == GroupKind::kTrain;
  Running& running = run->groups[formed.id];
  running.iteration = formed.iteration;
  Iteration largest = 0;
  for (const GroupShare& share : formed.members) {
    Worker& worker = At(run, share.rank);
    largest = std::max(largest, share.iteration);
    if (worker.group != kNoGroup) {
      throw Violation("one-group", RankText(share.rank) + " is in group " + Number(worker.group) +
                                       " and put into " + name);
    }
    if (train && (!worker.joined || !worker.waiting)) {
      throw Violation("members", RankText(share.rank) + " is put into " + name +
                                     (worker.joined ? " without a signal" : ", and not there"));
    }
    if (train && share.iteration < worker.iteration) {
      throw Violation("iterations", RankText(share.rank) + " enters " + name + " with iteration " +
                                        std::to_string(share.iteration) + " after " +
                                        std::to_string(worker.iteration));
    }
    worker.group = formed.id;
    worker.waiting = false;
    running.pending.push_back(share.rank);
  }
  if (train && formed.iteration != largest) {
    throw Violation("iterations", name + " goes on at " + std::to_string(formed.iteration) +
                                      ", the largest of its members is " + std::to_string(largest));
  }
}

void Laws::Sent(const ControllerEnvelope& envelope) const {
  if (envelope.seq == 0) return;
  const auto life = lives_.find(envelope.incarnation);
  if (life == lives_.end()) {
    throw Violation("recorded-first",
                    "a message leaves for an incarnation of which no Hello is in "
                    "the history");
  }
  const Run& run = runs_.at(life->second.run);
  if (const auto* group = std::get_if<Group>(&envelope.body);
      group != nullptr && group->id > run.last_group) {
    throw Violation("recorded-first",
                    "group " + Number(group->id) + " is announced before it is recorded");
  }
  if (std::holds_alternative<Adopt>(envelope.body)) {
    const auto rank = static_cast<std::size_t>(life->second.rank);
    if (life->second.rank >= 0 && rank < run.workers.size() && !run.workers[rank].ordered) {
      throw Violation("recorded-first", "an order to adopt is sent before it is recorded");
    }
  }
}

}  // namespace prd::sim
