// Answers of the admin protocol that come from the history alone, each as far as an identity may
// see. Thread safe beside the history's writer.
#ifndef PRD_SERVER_ADMIN_ANSWERS_H_
#define PRD_SERVER_ADMIN_ANSWERS_H_

#include <cstdint>
#include <string>

#include "common/base/admin.h"
#include "prd/status.h"
#include "server/access.h"
#include "server/history/rocks_history.h"

namespace prd {

// About so many bytes of an answer at most. One record may be longer.
inline constexpr std::uint32_t kMaxReplyBytes = 1 << 20;

AdminReply ToReply(const Status& status);

class AdminAnswers {
 public:
  // *history must outlive it.
  explicit AdminAnswers(const RocksHistory* history) : history_(history) {}

  // A run of a job that is not its own is to an identity as if there were none.
  Status MaySee(const Rights& rights, RunId run) const;
  // There is no record yet that the request asks for.
  bool Waits(const ReadRecords& read) const;

  // A request that asks for nothing else is kInternal.
  AdminReply Answer(const Rights& rights, const AdminRequest& request) const;
  // What is of all jobs together is for operators.
  DaemonStatus StatusFor(const Rights& rights, DaemonStatus status) const;

 private:
  AdminReply Runs(const Rights& rights, const ListRuns& list) const;
  AdminReply Records(const Rights& rights, const ReadRecords& read) const;
  AdminReply PartOf(const Rights& rights, const ReadSnapshot& read) const;

  const RocksHistory* history_;
};

}  // namespace prd

#endif  // PRD_SERVER_ADMIN_ANSWERS_H_
