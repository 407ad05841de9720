// Real meshes on a simulated network: reductions, copies, questions and exchanges of a few workers,
// drawn from a seed, with faults. Replicas are a few real numbers of every dtype, in host memory or
// on a device.
//
// Laws:
//   result       whoever a group succeeds for has the weighted sum, in float64 within what the
//                dtypes round (exactly, where the numbers allow it), and all have equal bits
//   untouched    a group that fails changes nothing here
//   contributed  a group succeeds only if all who contribute have begun it
//   once         each group, copy, pull and sample that is not called off ends once
//   hang         and soon, once nothing goes wrong any more
//   torn         a copy is a replica as it was between two steps of its source, since it was asked
//                for; a result that is copied is the round's; a copy or a start that fails changes
//                nothing, or the store says that the replica is torn
//   ordered      and no more of them are given than the controller has ordered
//   honest       nobody finds that a member has sent what does not fit
//   mixed        an average with neighbours' updates is what they published
//   accused      a member is called unreachable only if something was wrong with it or its link
//   probed       who answers a question was asked it, and was there
//   let-in       nobody without a key is let in, and no frame of theirs counts; each is counted as
//                forged, and no other is
//   prompt       where nothing else goes wrong, a member's end breaks its groups within half a
//                lease
//   bounded      frames that come before their group are kept up to a bound
//   one-average  where a group failed, and its members try again, an element has the average that
//                one of them had of it, and is averaged again only if none had
//   device       what a device is to read or write is in a row that is there (sim_device.h)
//   recovers     at the end, a group of all workers succeeds
#ifndef PRD_TOOLS_SIM_MESH_RUN_H_
#define PRD_TOOLS_SIM_MESH_RUN_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace prd::sim {

struct MeshRunOptions {
  std::uint64_t seed = 1;
  // Called with what happens, in words.
  std::function<void(const std::string&)> trace;
};

struct MeshRunResult {
  std::string invariant;  // empty: all hold
  std::string what;
  std::string setting;                      // what the seed has drawn
  std::uint64_t groups = 0, succeeded = 0;  // at members
  std::uint64_t landed_in_part = 0;         // of groups that failed
  std::uint64_t held = 0;                   // elements that a group tried again had already
  std::uint64_t on_devices = 0;             // of those that succeeded
  std::uint64_t failed_devices = 0;
  std::uint64_t copies = 0, copied = 0;
  std::uint64_t pulls = 0, pulled = 0;
  std::uint64_t probes = 0;
  std::uint64_t kills = 0, breaks = 0, cuts = 0, attacks = 0, resumed = 0, forged = 0;
  std::uint64_t frames = 0;
  std::uint64_t hash = 0;  // of all that came about
};

// Never throws Violation.
MeshRunResult RunMeshes(const MeshRunOptions& options);

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_MESH_RUN_H_
