// Waits for what comes to the daemon: signals, requests of prdctl, connections that ask to be let
// in, and workers' messages. Asking a socket costs a system call, so those that others seldom use
// are asked when their descriptors have told of something. Not thread safe.
#ifndef PRD_SERVER_INPUT_WAIT_H_
#define PRD_SERVER_INPUT_WAIT_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/time.h"
#include "server/admin_server.h"
#include "server/worker_socket.h"
#include "server/zap.h"

namespace prd {

class InputWait {
 public:
  // `signals`: a signalfd. All must outlive it.
  InputWait(int signals, const AdminServer* admin, ZapHandler* zap, WorkerSocket* workers)
      : signals_(signals), admin_(admin), zap_(zap), workers_(workers) {}

  // Until something has come, or for so long. That a worker's connection has ended counts if
  // `ends` says so. Returns the signals that have come.
  std::vector<std::uint32_t> Wait(DurationNs time, bool ends);

  // Whether a request of prdctl may wait for the daemon's answer; once.
  bool TakeRequests() { return std::exchange(requests_, false); }
  // Lets in the connections that ask, if any may.
  void ServeArrivals();

 private:
  const int signals_;
  const AdminServer* admin_;
  ZapHandler* zap_;
  WorkerSocket* workers_;
  bool requests_ = true;  // something may be there
  bool arrivals_ = true;  // the same on the ZAP handler's socket
};

}  // namespace prd

#endif  // PRD_SERVER_INPUT_WAIT_H_
