// Makes a worker leave its job when a signal comes: SIGTERM, which schedulers send to a worker some
// time before they kill it.
//
//   prd::LeaveOnSignal leaver(*session);               // after the session is made
//   ...
//   const auto step = session->Step();
//   if (!step.ok() && leaver.came() != 0) return 0;    // it has left, and the others go on
#ifndef PRD_LEAVE_ON_SIGNAL_H_
#define PRD_LEAVE_ON_SIGNAL_H_

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <initializer_list>
#include <utility>
#include <vector>

#include "prd/session.h"

namespace prd {

// While it lives, the first of these signals makes the session leave (Session::LeaveSoon), and says
// so on stderr; the next one cancels the session (Session::Cancel), which then leaves at once. One
// at a time in a process. The session outlives it, and is not moved. A forked child has the default
// actions of these signals.
class LeaveOnSignal {
 public:
  // `grace`: as in LeaveSoon.
  explicit LeaveOnSignal(Session& session, std::initializer_list<int> signals = {SIGTERM},
                         std::chrono::milliseconds grace = std::chrono::milliseconds(0)) {
    grace_ = grace;
    came_ = 0;
    process_ = getpid();
    session_ = &session;
    struct sigaction action = {};
    action.sa_handler = OnSignal;
    action.sa_flags = SA_RESTART;
    for (const int number : signals) {
      former_.emplace_back(number, Action());
      sigaction(number, &action, &former_.back().second);
    }
  }
  ~LeaveOnSignal() {
    for (const auto& [number, action] : former_) sigaction(number, &action, nullptr);
    session_ = nullptr;
  }
  LeaveOnSignal(const LeaveOnSignal&) = delete;
  LeaveOnSignal& operator=(const LeaveOnSignal&) = delete;

  // The first signal; 0: none has come.
  int came() const { return came_; }

 private:
  using Action = struct sigaction;

  static void OnSignal(int number) {
    Session* const session = session_;
    if (session == nullptr) return;
    if (getpid() != process_) {
      signal(number, SIG_DFL);
      raise(number);  // comes once this has returned
      return;
    }
    int none = 0;
    if (!came_.compare_exchange_strong(none, number)) return session->Cancel();
    static constexpr char kLine[] =
        "prd: leaves the job after this step, and the others go on; once more: at once\n";
    [[maybe_unused]] const auto written = write(STDERR_FILENO, kLine, sizeof kLine - 1);
    session->LeaveSoon(number == SIGTERM  ? "SIGTERM"
                       : number == SIGINT ? "SIGINT"
                                          : "a signal",
                       grace_);
  }

  inline static std::atomic<Session*> session_ = nullptr;
  inline static std::atomic<int> came_ = 0;
  inline static pid_t process_ = 0;
  inline static std::chrono::milliseconds grace_{0};
  std::vector<std::pair<int, Action>> former_;
};

}  // namespace prd

#endif  // PRD_LEAVE_ON_SIGNAL_H_
