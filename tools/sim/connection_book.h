// What the controller may conclude from the end of a worker's connection. The grace is
// JobSpec::death_grace_ms. Laws:
//   ended-alive  the controller records ProcessEnded only for a worker whose newest connection has
//                ended, and not before the grace is over. A connection counts once a message has
//                come over it
//   death-known  a worker whose newest connection has ended is out of its run after two and a half
//                times the grace. Time in which the controller is busy, stands still, cannot write
//                or has died does not count
#ifndef PRD_TOOLS_SIM_CONNECTION_BOOK_H_
#define PRD_TOOLS_SIM_CONNECTION_BOOK_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "common/base/history.h"
#include "common/base/ids.h"
#include "common/base/time.h"
#include "engines/controller.h"

namespace prd::sim {

// By incarnation and connection, as they are known where the controller runs. Connections have
// ascending numbers, from 1.
class ConnectionBook {
 public:
  explicit ConnectionBook(DurationNs grace) : grace_(grace) {}

  // A message of this incarnation has arrived over this connection.
  void Spoke(Instant now, Incarnation incarnation, std::uint64_t connection);
  void Ended(Instant now, std::uint64_t connection);
  // The controller does nothing from now on until then.
  void Held(Instant now, Instant until);
  // Its connections have ended with it, and it has noticed none of that.
  void ControllerDied();
  // Throw Violation. `decided`: when the controller decided so; what it wrote down later.
  void Seen(Instant decided, const ProcessEnded& ended) const;
  void Check(Instant now, const Controller& controller) const;

 private:
  struct Known {
    std::uint64_t connection = 0;
    Instant since;  // spoken over
    std::optional<Instant> ended;
    Instant late;  // the newest that was read over it since
  };

  const DurationNs grace_;
  Instant held_from_, held_until_;  // the newest time in which the controller did nothing
  Instant waits_anew_;              // the end of the newest one after which it waits once more
  std::map<Incarnation, Known> known_;
  std::set<std::uint64_t> ended_;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_CONNECTION_BOOK_H_
