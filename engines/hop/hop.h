// Engine `hop`: workers send their parameters to their neighbours on a graph and average with what
// those sent (Luo et al., Hop: Heterogeneity-aware Decentralized Training, ASPLOS 2019). The
// workers exchange updates themselves; a ready signal says that a worker has all it needs to enter
// its next iteration but tokens, and the answer gives them.
//
// Token queues (section 4.2) are counts: TokenQ(j -> i) holds Iter(j) - Iter(i) + max_ig tokens
// (proof of Theorem 2), so worker i may enter iteration k + 1 once k + 1 - Iter(j) <= max_ig for
// each j that gets its updates. Iter is the iteration that a worker has been let into.
//
// A worker that is behind all who get its updates skips iterations (section 5), at most to where
// the one nearest to it is: what it leaves out, nobody waits for.
//
// What else is decided where the paper says nothing:
//  - Workers come and go, and links break. kSettle after a change the graph is computed anew
//    (topology.h), and everybody whose neighbours or weights changed is told. A new edge carries
//    updates from the iteration on that its sender is in: the sender is told between two answers,
//    and so knows it.
//  - A worker that joins goes on where it is, or, if that is more, where the last of the others is:
//    less would let them wait for it.
//  - Of a worker that is gone no token is needed, at once.
//  - On a directed graph a worker might skip the very update that one of its out-neighbours waits
//    for to end a jump of its own (Recv(k - 1)). It goes one iteration less far then.
#ifndef PRD_ENGINES_HOP_HOP_H_
#define PRD_ENGINES_HOP_HOP_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engines/engine.h"
#include "engines/hop/options.h"
#include "engines/hop/topology.h"
#include "engines/links.h"
#include "engines/ring_order.h"

namespace prd {

class Hop final : public Engine {
 public:
  static constexpr DurationNs kSettle = 5 * kMillisecond;

  // REQUIRES: Validate(options, 0) is ok.
  explicit Hop(const HopOptions& options) : options_(options) {}

  Plan plan() const override;
  void Step(Instant now, const Event& event, GroupId* next_group, Effects* out) override;
  std::optional<Instant> NextDeadline() const override { return settles_; }
  std::string Explain(Instant now, Rank rank) const override;
  void Archive(StateArchive& ar) override;

 private:
  // What a signal needs, close together: with many workers reading costs most.
  struct Worker {
    Iteration iteration = 0;    // Iter: that it has been let into
    std::uint32_t first = 0;    // in around_ (derived)
    std::uint32_t outs = 0;     // there, those who get its updates (derived)
    std::uint32_t ins = 0;      // behind them, those whose updates it gets (derived)
    std::uint32_t lacking = 0;  // waiting: of its outs, those without a token for it (derived)
    bool joined = false;
    bool placed = false;   // has been told its neighbours
    bool waiting = false;  // its signal stands: it is to enter iteration + 1
    bool jumped = false;   // has entered its iteration by a jump, and not ended it
    void Archive(StateArchive& ar) { ar(iteration, joined, placed, waiting, jumped); }
  };
  // As it was told, but without those who have gone since.
  struct Told {
    std::vector<InEdge> in;  // by rank, ascending
    std::vector<Rank> out;   // ascending
    double own_weight = 1;
    std::uint32_t slots = 1;
    std::int32_t host = 0;
    void Archive(StateArchive& ar) { ar(in, out, own_weight, slots, host); }
  };

  Worker& At(Rank rank) { return workers_[static_cast<std::size_t>(rank)]; }
  const Worker& At(Rank rank) const { return workers_[static_cast<std::size_t>(rank)]; }
  Told& ToldTo(Rank rank) { return told_[static_cast<std::size_t>(rank)]; }
  const Told& ToldTo(Rank rank) const { return told_[static_cast<std::size_t>(rank)]; }
  std::span<const Rank> Outs(const Worker& worker) const {
    return std::span(around_).subspan(worker.first, worker.outs);
  }
  std::span<const Rank> Ins(const Worker& worker) const {
    return std::span(around_).subspan(worker.first + worker.outs, worker.ins);
  }
  bool Joined(Rank rank) const;
  // `other`, at this iteration, has a token for one that is to enter iteration `next`.
  bool HasToken(Iteration next, Iteration other) const;

  void OnJoined(Instant now, const JoinedEvent& event);
  void OnReady(const ReadyEvent& event, Effects* out);
  void OnLeft(Instant now, const LeftEvent& event, Effects* out);

  // Computes the graph, tells whom it changed for, and lets go on who can now.
  void Place(Effects* out);
  void SetNeighbours(const Topology::Node& node, std::uint32_t slots, Effects* out);
  std::uint32_t SlotsFor(std::uint32_t way_back) const;
  // around_, from what all were told.
  void LayOut();
  // This worker's part of it, which is no longer than it was.
  void Shrink(Rank rank);
  std::uint32_t CountLacking(const Worker& worker) const;
  // Where this worker goes on: the next iteration, or beyond.
  Iteration Target(const Worker& worker) const;
  // Lets this worker go on, and all who get a token by that.
  void LetGo(Rank rank, Effects* out);
  void LetGoIfFree(Rank rank, Effects* out);

  std::string ExplainWaiting(const Worker& worker) const;
  std::string ExplainMissing(Rank rank) const;
  bool Consistent(Rank rank) const;

  const HopOptions options_;
  std::vector<Worker> workers_;  // by rank
  std::vector<Told> told_;       // by rank
  HostTable hosts_;
  BrokenLinks links_;
  std::optional<Instant> settles_;  // kSettle after a change
  std::vector<Rank> around_;        // everybody's neighbours (derived)
  std::vector<Rank> freed_;         // during LetGo
};

}  // namespace prd

#endif  // PRD_ENGINES_HOP_HOP_H_
