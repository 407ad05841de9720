#include "tools/sim/control_links.h"

#include <algorithm>

#include "tools/sim/world.h"

namespace prd::sim {

void ControlLinks::SendToController(std::uint32_t from, const WorkerEnvelope& envelope, bool own) {
  for (int copies = Copies(from); copies > 0; --copies) {
    world_->queue.Push(Arrival(&up_[from]), EventKind::kToController, from,
                       to_controller_.Put({envelope, own ? ConnectionOf(from) : 0}));
  }
}

void ControlLinks::SendToWorker(const ControllerEnvelope& envelope) {
  const std::uint32_t to = WorkerOf(envelope.incarnation);
  for (int copies = Copies(to); copies > 0; --copies) {
    world_->queue.Push(Arrival(&down_[to]), EventKind::kToWorker, to, to_worker_.Put(envelope));
  }
}

bool ControlLinks::IsCut(std::uint32_t worker) const { return world_->now < cut_until_[worker]; }

bool ControlLinks::tells_ends() const { return world_->workload.faults.ends_told > 0; }

void ControlLinks::EndConnection(std::uint32_t worker, Instant again, bool told) {
  if (!tells_ends()) return;
  const Workload& workload = world_->workload;
  Prng& dice = world_->dice;
  Connection& connection = connections_[worker];
  if (told && connection.number > 0 && dice.Unit() < workload.faults.ends_told) {
    const DurationNs late = FromMs(dice.Unit() < 0.1 ? 500 * dice.Unit() : 0);
    world_->queue.Push(world_->now + FromUs(workload.network.delay_us) + late,
                       EventKind::kConnectionEnds, worker, connection.number);
  }
  connection = {.number = ++last_connection_, .from = again};
  world_->queue.Push(again, EventKind::kConnected, worker, connection.number);
}

int ControlLinks::Copies(std::uint32_t worker) {
  ++world_->messages;
  const FaultsPart& faults = world_->workload.faults;
  if (IsCut(worker) || world_->now < connections_[worker].from || world_->Fault(faults.loss)) {
    return 0;
  }
  return world_->Fault(faults.duplicate) ? 2 : 1;
}

Instant ControlLinks::Arrival(Instant* last) {
  const NetworkPart& network = world_->workload.network;
  Prng& prng = world_->prng;
  const Instant at = world_->now + FromUs(network.delay_us + network.jitter_us * prng.Unit());
  if (network.slow_probability > 0 && prng.Unit() < network.slow_probability) {
    return at + FromMs(network.slow_ms * prng.Unit());
  }
  *last = std::max(*last, at);
  return *last;
}

}  // namespace prd::sim
