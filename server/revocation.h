// Evicts workers that the daemon's config lets in no longer. Not thread safe.
#ifndef PRD_SERVER_REVOCATION_H_
#define PRD_SERVER_REVOCATION_H_

#include <string>

#include "common/base/time.h"
#include "engines/controller.h"
#include "server/access.h"
#include "server/worker_socket.h"

namespace prd {

class Revocation {
 public:
  // All must outlive it. What *access says may change, and counts from then on.
  Revocation(const Access* access, const WorkerSocket* workers, Controller* controller)
      : access_(access), workers_(workers), controller_(controller) {}

  // Some who are here may have lost their rights.
  void SetDue() { due_ = true; }
  bool due() const { return due_; }

  // Workers that may not train in their jobs any more are out at once, for the others, too. A run
  // that waits to hear from its workers loses them once it takes input again: it stays due until
  // then. `by`: what the history names as the cause. REQUIRES: the history can be written.
  void Evict(Instant now, const std::string& by);

 private:
  std::string WhyRevoked(const Run& run, const RunWorker& worker) const;
  std::string Name(const RunWorker& worker) const;

  const Access* access_;
  const WorkerSocket* workers_;
  Controller* controller_;
  bool due_ = false;
};

}  // namespace prd

#endif  // PRD_SERVER_REVOCATION_H_
