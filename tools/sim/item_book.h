// What workers with real meshes publish, serve and pull outside of groups (worker/core/exchange.h),
// as it is to be: in float64, beside their replica stores.
//
//   mix    parameters that are averaged with updates of neighbours are the average of the updates
//          as their workers published them
//   shard  the values of a shard that a worker reads are those of its owner as it served them: with
//          each update of a worker as that worker took it, and what was handed over with the shard
#ifndef PRD_TOOLS_SIM_ITEM_BOOK_H_
#define PRD_TOOLS_SIM_ITEM_BOOK_H_

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "worker/core/actions.h"
#include "worker/mesh/mesh.h"

namespace prd::sim {

class ItemBook {
 public:
  explicit ItemBook(std::size_t workers) : sides_(workers) {}

  // The worker is about to do this, if it is about items; and has done it. Throws Violation.
  void Before(std::uint32_t worker, Incarnation self, const Action& action,
              const ReplicaStore& store);
  void After(std::uint32_t worker, const Action& action, const ReplicaStore& store) const;
  // A peer asks it for something.
  void OnRequest(std::uint32_t worker, Request request, Incarnation from) {
    sides_[worker].requests[request] = from;
  }
  // One of its pulls has ended. False: it has not begun it, or it has ended before.
  bool OnPulled(std::uint32_t worker, Ticket ticket);
  // It has nothing of all that any more.
  void Clear(std::uint32_t worker) { sides_[worker] = {}; }

 private:
  using Numbers = std::vector<double>;
  struct Shard {
    Numbers values, pending;
    friend bool operator==(const Shard&, const Shard&) = default;
  };
  // An item of a worker, for another one.
  using Served = std::tuple<Incarnation, Incarnation, PeerItem>;  // by, to
  struct Answers {
    int pulls = 0;
    bool given = false;
    Shard newest;
    // Pulls of the item were answered with other values: a pull that was dropped may be answered
    // after the one that followed it.
    bool differ = false;
  };
  struct Side {
    std::map<Ticket, StartPull> pulls;   // that have not ended
    std::map<Ticket, StartPull> pulled;  // and those that have
    std::map<Request, Incarnation> requests;
    std::uint32_t cut = 0;
    Numbers delta;
    std::map<std::uint32_t, Shard> kept;
    // The parameters from `begin` on, after what is done now. Empty: they are not known.
    Numbers expected;
    std::size_t begin = 0;
  };

  void Serves(const Side& side, Incarnation self, const Serve& serve);
  // What came, or is to come. Null: it is not known.
  const Shard* AnswerTo(const Side& side, Incarnation self, Ticket ticket) const;
  static Numbers Cut(const Side& side, const Numbers& row, std::uint32_t shard);

  std::vector<Side> sides_;
  std::map<std::pair<Incarnation, Iteration>, Numbers> published_;
  std::map<Served, Answers> served_;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_ITEM_BOOK_H_
