// Engine hop, beside token queues that are counted in the paper's words (Luo et al., ASPLOS 2019).
// Iter is where a worker was let into: that it joined at, was told with its neighbours, or
// answered.
//
//   tokens      of each edge i -> j, TokenQ(j -> i) = Iter(j) - Iter(i) + max_ig is not negative
//               (section 4.2), and at most max_ig (length(Path_i->j) + 1) (Table 1)
//   gap         for every pair, Iter(i) - Iter(j) <= min(b0 length(Path_j->i), max_ig
//               length(Path_i->j)), with b0 = 1, or s + 1 with a staleness, and without it with
//               backups (Theorems 1 and 2, Table 1; notify-ack is max_ig = 2). Paths are shortest,
//               mixed ones too; where an edge is new, its two ends may be as far apart as they were
//               then, and the receiver's signal that stood lets it go one further
//   jump        nobody goes back, or further on than max_jump; who goes further than it asked to is
//               behind all who get its updates by skip_behind or more, and passes none of them
//   graph       whose updates a worker gets is who sends them; weights sum to 1 by receiver, and
//               by sender too; undirected, they are the same both ways
//   slots       there are max_ig + 1; without token queues as many as Theorem 1 asks for; with a
//               staleness 1 (section 6.1)
//
// Of jobs with more workers than EngineWatch looks at, nothing is. Where workers jump, Theorem 1's
// half is the true iterations' (neighbour_book.h): a jump is answered before it is made.
#ifndef PRD_TOOLS_SIM_HOP_RULES_H_
#define PRD_TOOLS_SIM_HOP_RULES_H_

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "engines/hop/options.h"
#include "tools/sim/engine_watch.h"

namespace prd::sim {

class HopRules final : public EngineRules {
 public:
  explicit HopRules(const HopOptions& options) : options_(options) {}
  void Check(Instant now, const Event& event, std::span<const Effect> effects,
             std::int64_t joined) override;
  void Archive(StateArchive& ar) override;

 private:
  struct In {
    double weight = 0;
    Iteration ahead = 0;   // the receiver of the sender, at most, while the edge is there
    Iteration behind = 0;  // the same, the sender of the receiver
    void Archive(StateArchive& ar) { ar(weight, ahead, behind); }
  };
  struct Worker {
    Iteration iteration = 0;
    bool told = false;
    double own_weight = 1;
    std::uint32_t slots = 0;
    std::map<Rank, In> in;
    std::vector<Rank> out;
    void Archive(StateArchive& ar) { ar(iteration, told, own_weight, slots, in, out); }
  };
  using Lengths = std::map<std::pair<Rank, Rank>, Iteration>;

  void Apply(const Event& event);
  void Tell(const NeighboursSet& set);
  void LetIn(const Answer& answer);
  void CheckGraph() const;
  // Of those who have moved, and others.
  void CheckGaps(const std::set<Rank>& moved) const;
  void CheckTokens(const std::set<Rank>& moved) const;
  void Measure();  // the edges' bounds again, and by them all pairs'
  Iteration OwnBound() const { return options_.staleness + 1; }
  bool Bounded() const { return options_.backups == 0 && options_.max_jump == 0; }

  const HopOptions options_;
  std::map<Rank, Worker> workers_;  // joined
  bool unseen_ = false;             // there have been more workers than are looked at
  // Derived: how far the first may be ahead of the second; hops from the first to the second.
  Lengths bounds_;
  Lengths hops_;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_HOP_RULES_H_
