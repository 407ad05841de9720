// The user call in progress: which one, since when, how long it may wait, and when it says that it
// waits. Pure; a part of SessionCore.
#ifndef PRD_WORKER_CORE_CALL_SLOT_H_
#define PRD_WORKER_CORE_CALL_SLOT_H_

#include <cstdint>
#include <map>
#include <optional>

#include "common/base/time.h"

namespace prd {

enum class Call : std::uint8_t {
  kNone,
  kAttach,
  kStep,
  kFinish,
  kLeave,
  kPause,
  kResume,
  kAverage,
  kMean,
  kSwitch,  // what a kStep becomes that has ended, where the run is to end (EndRun)
};
const char* NameOf(Call call);  // as a user calls it

class CallSlot {
 public:
  // 0: for ever. `start`: for the job's start; 0: as `timeout`.
  void SetTimeouts(DurationNs timeout, DurationNs start);

  // REQUIRES: no call is in progress.
  void Begin(Instant now, Call call);
  // Takes the place of the call in progress.
  void BeginLeave(Instant now);
  // The call in progress goes on as another one.
  void Become(Call call) { call_ = call; }
  void End() { call_ = Call::kNone; }
  // No call but kLeave does anything from now on.
  void Cancel() { cancelled_ = true; }
  bool cancelled() const { return cancelled_; }

  Call kind() const { return call_; }
  bool is(Call call) const { return call_ == call; }
  bool in_progress() const { return call_ != Call::kNone; }
  // A call that waits for something: neither none nor kLeave.
  bool waits() const { return in_progress() && !is(Call::kLeave); }
  // The caller is in a call in which parameters may be written.
  bool lends() const { return waits() && !is(Call::kAverage); }
  Instant at() const { return at_; }  // when it began
  // When kLeave gives up waiting for the controller; nullopt where another call is in progress.
  std::optional<Instant> LeaveEnds() const;
  const char* name() const { return NameOf(call_); }

  // ---- how long it waits ----

  DurationNs timeout() const { return timeout_; }
  DurationNs start_timeout() const { return start_ != 0 ? start_ : timeout_; }
  // When it times out. The controller was heard at `heard`, or is missed since then; its newest
  // word came at `answered`. `starts`: the job has not begun for this worker.
  std::optional<Instant> TimeoutEnds(bool starts, Instant heard, Instant answered) const;
  // The job has not begun in time.
  bool StartIsLate(Instant now, Instant heard) const;

  // ---- what it says ----

  // When the next line says what the call waits for: after 5 s, 15 s, and then every minute. Calls
  // of one kind that follow each other say so once a minute.
  Instant line_at() const { return line_at_; }
  void OnLine(Instant now);

 private:
  Call call_ = Call::kNone;
  Instant at_;
  bool cancelled_ = false;
  DurationNs timeout_ = 0;
  DurationNs start_ = 0;
  Instant line_at_;
  std::map<Call, Instant> said_line_;  // the first line of the newest such call that had one
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_CALL_SLOT_H_
