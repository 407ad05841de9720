// Experiments of papers whose engines work in rounds, with the papers' figures beside ours.
//
// Eager-SGD (Li et al., Taming Unbalanced Training Workloads in Deep Learning with Partial
// Collective Operations, PPoPP 2020), sections 6.1, 6.2.1 and 6.2.3. The hyperplane's step without
// a delay follows from the throughput in 6.2.1: 3.8 times the single node's 0.64 steps/s with 400
// ms injected, when solo waits for nobody who is delayed, hence T = 1 / (3.8 * 0.64) = 411 ms. The
// three speedups are the check, and (T + d) / T comes near them; so does T = 400 ms exactly, but no
// speedup is used here. The paper's other throughputs, 1.64 steps/s of solo and 1.37 of majority at
// 200 ms, do not agree with T (solo's would then be 2.43, and 1.64 synchronous SGD's): only their
// ratio is used, for majority's speedup.
//
// ESync (Li et al., ESync: An Efficient Synchronous Parallel Algorithm for Distributed ML in
// Heterogeneous Clusters), section 5. The paper does not say how much slower its CPUs are than its
// GPUs, nor what its network carries: devices, sizes and the objective are chosen here.
#ifndef PRD_TOOLS_SIM_PAPERS_ROUNDS_H_
#define PRD_TOOLS_SIM_PAPERS_ROUNDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/sim/report.h"

namespace prd::sim {

struct PaperSpeedup {  // of eager-SGD, over all-reduce in updates per second
  std::string setting;
  std::string quorum;
  double paper = 0;
  double ours = 0;
  std::string basis;  // what the step time without delays comes from
};

struct PaperActive {  // processes, of 32, whose gradient of an iteration is in its round
  std::string quorum;
  double paper = 0;
  double ours = 0;  // mean
  std::int64_t iterations = 0;
};

struct PaperDevices {  // an engine on ESync's devices
  std::string engine;
  double slower = 0;    // how many times two of the six are
  double target_s = 0;  // until the target loss; 0: not reached
  double samples_per_s = 0;
  double bytes_per_s = 0;
  std::vector<double> computing;  // share of the time, by device; the slow ones first
};

struct RoundPapers {
  std::vector<PaperSpeedup> speedups;
  std::vector<PaperActive> active;
  std::vector<PaperDevices> devices;  // all-reduce first, of each `slower`
};

RoundPapers RunRoundPapers(std::uint64_t seed, std::int64_t updates);

std::string TextRoundPapers(const RoundPapers& papers);
Json JsonRoundPapers(const RoundPapers& papers);

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_PAPERS_ROUNDS_H_
