// What is asked of each worker's message before the controller gets it: whether its sender may have
// that job, and whether it keeps to its quotas. Not thread safe.
#ifndef PRD_SERVER_GATE_H_
#define PRD_SERVER_GATE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/base/messages.h"
#include "common/base/newest.h"
#include "common/base/time.h"
#include "engines/controller.h"
#include "server/access.h"
#include "server/audit_log.h"

namespace prd {

class Gate {
 public:
  // All must outlive it. What *access says may change, and counts from then on.
  Gate(const Access* access, const Controller* controller, AuditLog* audit)
      : access_(access), controller_(controller), audit_(audit) {}

  enum class Verdict {
    kPass,
    kRefuse,  // with *refusal, to the connection that it came from
    kDrop,    // it comes again
  };
  // The connection that a message came over.
  struct Sender {
    zmq::message_t* part = nullptr;  // any of the message
    const Rights* rights = nullptr;  // as RightsOf gives them
    bool surplus = false;            // it is over max_connections
  };
  const Rights* RightsOf(zmq::message_t& part) const { return access_->Find(WhoSent(part)); }
  // While this is the same, RightsOf says the same of the same connection.
  std::uint64_t access_number() const { return access_->number(); }
  // A Hello that passes has the name of its sender's identity.
  Verdict Check(Instant now, const Sender& sender, WorkerEnvelope* envelope, Refused* refusal);

  std::uint64_t over_quota() const { return over_quota_; }

 private:
  struct Bucket {  // holds `most`, and fills with that in `per`
    double left = 0;
    std::optional<Instant> at;
    bool Take(Instant now, std::int64_t most, DurationNs per);
  };
  std::string Missing(Instant now, const Rights& rights, const WorkerEnvelope& envelope,
                      const Hello& hello);
  void NoteArrival(const Peer& peer, const Rights& rights, const WorkerEnvelope& envelope,
                   const Hello& hello);

  const Access* access_;
  const Controller* controller_;
  AuditLog* audit_;
  std::map<std::string, Bucket> messages_;  // by identity
  std::map<std::string, Bucket> runs_;      // that it begins, by identity
  std::uint64_t over_quota_ = 0;
  // The newest incarnations whose arrival is in the audit log.
  Newest<Incarnation> arrived_{16'384};
};

}  // namespace prd

#endif  // PRD_SERVER_GATE_H_
