// prdbench broker: the real daemon under the load of many workers, beside a bare echo.
#ifndef PRD_TOOLS_PRDBENCH_BROKER_H_
#define PRD_TOOLS_PRDBENCH_BROKER_H_

#include <string>

namespace prd::bench {

struct BrokerOptions {
  int clients = 64;    // workers of one p-reduce job, in one load process; 3 to 1024
  int group_size = 3;  // P
  double seconds = 2;  // per round
  int rounds = 3;      // of each, alternating; the medians are reported
  std::string daemon;  // the prd binary; empty = the one beside prdbench
  bool keys = false;   // workers show themselves by a CURVE key; an echo with keys is measured, too
  bool json = false;
};

// Every client keeps one ready signal under way: it signals, gets its group, reports Finished and
// signals again at once. The echo gets the same messages of the same sizes from the same clients,
// and answers each signal with a message as long as a group's announcement, knowing nothing.
//
// signals_per_s: ready signals answered. Latency of prd: from the last signal of a group's members
// to its announcement at each member; of the echo: from the signal to its answer. cpu_us is the
// processor time of the daemon, or the echo, per signal; load_cpu_us that of all workers. Returns
// the exit code: 130 or 143 when interrupted, with all processes ended and nothing left in /tmp.
int BenchBroker(const BrokerOptions& options);

}  // namespace prd::bench

#endif  // PRD_TOOLS_PRDBENCH_BROKER_H_
