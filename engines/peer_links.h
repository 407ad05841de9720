// The controller's end of its links with workers, for all runs: since when each worker is silent,
// whether it acknowledges what it is sent, what it is sent again, and which acknowledgements it is
// due. The messages themselves are in the job (Run::link). Not thread safe.
//
// REQUIRES: times that are passed do not decrease; a rank has a worker, or had one.
#ifndef PRD_ENGINES_PEER_LINKS_H_
#define PRD_ENGINES_PEER_LINKS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "common/base/messages.h"
#include "common/base/reliable_link.h"
#include "common/base/time.h"
#include "engines/run.h"

namespace prd {

class PeerLinks {
 public:
  // About so many bytes of messages may wait for a worker's acknowledgement; or kMinUnacked
  // messages, if these have more. A worker is over the limit also if messages were sent to it again
  // kResentInVain times, and it has acknowledged none of them.
  static constexpr std::size_t kMaxUnacked = 1 << 20;
  static constexpr std::size_t kMinUnacked = 32;
  static constexpr int kResentInVain = 16;
  // What a worker does not acknowledge is sent again after growing pauses.
  static constexpr ResendLimits kResend{
      .first = 50 * kMillisecond, .longest = kSecond, .messages = 32, .bytes = 256 << 10};

  struct Counters {
    std::uint64_t resent = 0;
    std::uint64_t over_ack_limit = 0;  // times that a worker began to owe too many
    std::uint64_t leases_expired = 0;
    std::uint64_t processes_ended = 0;  // workers that were gone with their connection
  };
  // Told when a worker has begun to owe too many acknowledgements (OverAckLimit).
  using OnOverAckLimit = std::function<void(const Run& run, Rank rank)>;

  // Messages go to the end of *out, in the name of this life of the controller. *out and *counters
  // must outlive it.
  PeerLinks(std::uint64_t epoch, OnOverAckLimit over_ack_limit,
            std::vector<ControllerEnvelope>* out, Counters* counters)
      : epoch_(epoch), over_ack_limit_(std::move(over_ack_limit)), out_(out), counters_(counters) {}

  // The job must outlive its run here. Nobody counts as silent since before `now`.
  void AddRun(Instant now, const Run& run);
  void RemoveRun(const Run& run);

  // ---- what comes from workers ----

  // A new incarnation has this rank.
  void Joined(Instant now, const Run& run, Rank rank);
  void Heard(Instant now, const Run& run, Rank rank);
  // The worker has received all up to `ack`. REQUIRES: it was sent that.
  void OnAck(Instant now, Run* run, Rank rank, Seq ack);
  // The job has taken the worker's message `seq`: an acknowledgement is due, unless a message
  // carries it before.
  void OnTaken(Instant now, const Run& run, Rank rank, Seq seq);
  // Answers, and sends again what was sent before the heartbeat before.
  void OnHeartbeat(Instant now, const Run& run, Rank rank);
  // The worker has reached this life of the controller. What was on its way when the life before
  // ended is sent again.
  void OnReturn(Instant now, const Run& run, Rank rank);
  // Whether it owes too many acknowledgements. Nothing more should be taken from it, and nothing
  // should count as a sign of life.
  bool OverAckLimit(const Run& run, Rank rank);
  // The worker's connection has ended, or it has another one (`there`). True: NextDeadline may have
  // changed.
  bool OnConnection(Instant now, const Run& run, Rank rank, bool there);

  // ---- what goes to them ----

  void Send(const Run& run, Rank rank, ControllerEnvelope&& envelope);
  void Acknowledge(Instant now, const Run& run, Rank rank);
  // Sends again what is not acknowledged, if it is time.
  void Resend(Instant now, const Run& run, Rank rank) {
    Resend(now, run, rank, run.link(rank).last_out());
  }

  // ---- time ----

  // The end of the next worker of the run whose lease has run out, or that has not come back after
  // the end of its connection. REQUIRES: the run takes it before the next call.
  std::optional<Input> NextLost(Instant now, const Run& run);
  // When NextLost has something to do.
  std::optional<Instant> NextDeadline(const Run& run) const;
  void SendDueAcks(Instant now);
  std::optional<Instant> NextAck() const;
  // Call with every turn. A controller that was itself stopped for long (suspended, swapped out)
  // has heard nobody: all leases begin anew.
  void NoteSleep(Instant now);
  // The same where its caller has taken nothing from workers until now.
  void BeginLeases(Instant now);
  // ns since the worker was last heard of; nullopt if it is not there.
  std::optional<DurationNs> Silence(Instant now, RunId run, Rank rank) const;

 private:
  struct Contact {  // with one worker
    Instant heard;
    std::optional<Instant> ends_at;  // it has no connection, and is gone then
    bool watched = false;            // has an entry in `checks`
    bool ack_due = false;            // has an entry in `acks_`
    bool over_limit = false;         // has owed too much, and not acknowledged all since
    Seq acked = 0;                   // the last acknowledgement sent
    Seq sent_before = 0;  // last_out at the heartbeat before: what is still unacked was lost
    Resends<kResend> resends;
  };
  struct Timer {
    Instant at;
    Rank rank = kNoRank;
  };
  struct RunLinks {
    const Run* run = nullptr;
    std::vector<Contact> contacts;  // by rank
    std::deque<Timer> checks;       // of leases, in order of time
    std::deque<Timer> ends;         // Contact::ends_at, in order of time
    Instant floor;                  // nobody counts as silent since before this
  };
  struct Ack {
    Instant due;
    RunId run = kNoRun;
    Rank rank = kNoRank;
  };

  Contact& At(const Run& run, Rank rank);
  // To the worker, without a body.
  ControllerEnvelope& Append(const Run& run, Rank rank);
  void Resend(Instant now, const Run& run, Rank rank, Seq up_to);
  std::optional<Rank> NextEnded(Instant now, const Run& run);
  std::optional<Rank> NextExpired(Instant now, const Run& run);

  const std::uint64_t epoch_;
  const OnOverAckLimit over_ack_limit_;
  std::vector<ControllerEnvelope>* const out_;
  Counters* const counters_;
  std::map<RunId, RunLinks> runs_;
  std::map<DurationNs, std::size_t> leases_;  // how many runs have this one
  std::deque<Ack> acks_;                      // in order of time
  std::optional<Instant> last_turn_;
};

}  // namespace prd

#endif  // PRD_ENGINES_PEER_LINKS_H_
