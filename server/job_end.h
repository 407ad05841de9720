// When the one job of an ephemeral prd is over. Not thread safe.
#ifndef PRD_SERVER_JOB_END_H_
#define PRD_SERVER_JOB_END_H_

#include <cstddef>
#include <optional>

#include "common/base/time.h"
#include "server/history/rocks_history.h"

namespace prd {

class JobEnd {
 public:
  // There is a run.
  void Goes() {
    had_job_ = true;
    ends_at_.reset();
  }
  // There is none. Workers that were lost may come back to a new run for 30 s; those that have
  // finished have 10 s to hear so, or until their connections are closed.
  bool IsOver(Instant now, const RocksHistory& history, std::size_t connections);

  // IsOver is to be asked then; nullopt: a run goes on, or none has begun yet.
  std::optional<Instant> at() const { return ends_at_; }

 private:
  bool had_job_ = false;
  std::optional<Instant> ends_at_;
  bool finished_ = false;  // its workers did not just go away
};

}  // namespace prd

#endif  // PRD_SERVER_JOB_END_H_
