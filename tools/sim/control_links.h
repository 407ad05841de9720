// What workers and the controller send each other, and the connections that it goes over. Messages
// may be lost, doubled or overtaken; partitions let none through; connections end.
#ifndef PRD_TOOLS_SIM_CONTROL_LINKS_H_
#define PRD_TOOLS_SIM_CONTROL_LINKS_H_

#include <cstdint>
#include <vector>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "tools/sim/event_queue.h"

namespace prd::sim {

struct World;

// To the controller. `connection` 0: somebody else's than the worker's, in its name.
struct Mailed {
  WorkerEnvelope envelope;
  std::uint64_t connection = 0;
};

class ControlLinks {
 public:
  // `world` may be made later.
  ControlLinks(World* world, std::size_t workers)
      : world_(world), cut_until_(workers), connections_(workers), up_(workers), down_(workers) {}

  // A message on its way. `own`: over the worker's own connection.
  void SendToController(std::uint32_t from, const WorkerEnvelope& envelope, bool own = true);
  void SendToWorker(const ControllerEnvelope& envelope);
  // What the events kToController and kToWorker say; each once.
  Mailed TakeToController(std::uint64_t what) { return to_controller_.Take(what); }
  ControllerEnvelope TakeToWorker(std::uint64_t what) { return to_worker_.Take(what); }

  // Nothing gets from the worker, or to it, until then.
  void Cut(std::uint32_t worker, Instant until) { cut_until_[worker] = until; }
  bool IsCut(std::uint32_t worker) const;

  // Whether ends of connections are told at all; where they are not, there are none.
  bool tells_ends() const;
  // What was sent over the worker's connection may still arrive, and be overtaken by its end; one
  // end in ten comes up to 500 ms late. The worker has another one from `again` on. `told`: the
  // controller may hear of the end.
  void EndConnection(std::uint32_t worker, Instant again, bool told = true);
  // The number of its connection, which ascends; 0: there is none.
  std::uint64_t ConnectionOf(std::uint32_t worker) const { return connections_[worker].number; }

 private:
  struct Connection {
    std::uint64_t number = 0;
    Instant from;  // nothing gets through before
  };

  // How many copies of a message get through.
  int Copies(std::uint32_t worker);
  // One connection keeps the order of its messages, but for those that are held up. `last`: when
  // the one before arrives.
  Instant Arrival(Instant* last);

  World* world_;
  std::vector<Instant> cut_until_;       // by worker
  std::vector<Connection> connections_;  // by worker
  std::vector<Instant> up_, down_;       // by worker: when the newest message arrives
  Mail<Mailed> to_controller_;
  Mail<ControllerEnvelope> to_worker_;
  std::uint64_t last_connection_ = 0;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_CONTROL_LINKS_H_
