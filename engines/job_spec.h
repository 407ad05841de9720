// The settings of one run of a job: what the configuration says, and what the run's history keeps.
#ifndef PRD_ENGINES_JOB_SPEC_H_
#define PRD_ENGINES_JOB_SPEC_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/messages.h"
#include "engines/any_engine.h"
#include "engines/engine.h"

namespace prd {

struct JobSpec {
  std::string name;  // the name the workers gave, e.g. "mnist-7" for the pattern "mnist-*"
  EngineOptions engine;
  int workers = 0;  // the common start waits for these; 0 = the first worker's world size, or 1
  int max_workers = 4096;  // ranks are below this, whatever a message says
  // A common start of workers that have trained before proceeds without missing workers after
  // start_grace_ms, with at least min_workers.
  int min_workers = 1;
  std::uint32_t start_grace_ms = 3000;
  std::uint32_t lease_ms = 2000;
  std::uint32_t heartbeat_ms = 500;
  // A worker that does not reconnect within this time after its connection ended is gone. 0: only
  // its lease decides.
  std::uint32_t death_grace_ms = 200;
  Trained goal;  // the job is done at these steps or samples. 0: no goal
  // Samples of a step of all workers together, which the run divides among them (batch_shares.h).
  // 0: as the first worker says, or none.
  std::int64_t batch = 0;
  std::int64_t batch_multiple = 1;  // shares are multiples of this many samples, but for one
  double rebalance_min = 0.05;      // shares change for a gain in time of more than this part
  OnNonfinite on_nonfinite = OnNonfinite::kPass;
  MeshSecurity mesh_security = MeshSecurity::kNone;
  bool device_network_trusted = false;
  std::uint32_t check_replicas_ms = 5000;  // between comparisons of replicas; 0: none
  // What to do with a replica that should be equal to the others, and is not.
  enum class OnDivergence : std::uint8_t { kWarn, kRepair };
  OnDivergence on_divergence = OnDivergence::kWarn;
  std::string text;  // this spec as normalised TOML (config/), kept in history
  // Builds the engine. The simulator wraps the engine of MakeEngine in one that checks it.
  std::function<std::unique_ptr<Engine>(const EngineOptions&)> make_engine = MakeEngine;
};

}  // namespace prd

#endif  // PRD_ENGINES_JOB_SPEC_H_
