// A daemon inside the test's process: the controller behind a ROUTER socket, with its history in
// memory. Restart throws the controller away and restores it from that history, as a daemon does
// that was killed.
#ifndef PRD_TESTS_WORKER_FAKE_DAEMON_H_
#define PRD_TESTS_WORKER_FAKE_DAEMON_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "engines/controller.h"
#include "prd/session.h"

namespace prd::testing {

class FakeDaemon : private History, private Messenger {
 public:
  // Every job gets this spec, by its own name.
  explicit FakeDaemon(JobSpec spec);
  ~FakeDaemon() override;

  const std::string& endpoint() const { return endpoint_; }

  // As kill -9 and a start: nothing is kept but the history. Connections break.
  void Restart();
  // From now on all that this rank says is lost, but for Hellos, and its lease runs out: the
  // daemon's clock runs ahead, in steps for which all others are heard, so that nobody else's does.
  // False: that took over a minute. Until Hear, which is for all.
  bool Lose(Rank rank);
  void Hear() { lost_ = kNoRank; }

  // A copy of the history.
  std::vector<Record> records() const;
  // Blocks until a record of the history, old or new, satisfies; false after a minute.
  bool WaitFor(const std::function<bool(const Record&)>& satisfies) const;

 private:
  Status Append(std::span<const Record> records) override;
  Status SaveSnapshot(RunId, std::uint64_t, std::string_view) override { return Status::Ok(); }
  void Send(const ControllerEnvelope& envelope) override;

  void MakePump();
  void Start();
  void Stop();
  void Run();
  void ReceiveAll();
  void Age();
  Instant Now() const;

  JobSpec spec_;
  zmq::context_t context_;
  zmq::socket_t router_;
  std::string endpoint_;
  std::unique_ptr<Controller> controller_;
  std::map<Incarnation, std::string> routes_;
  std::atomic<bool> stop_{false};
  std::atomic<Rank> lost_{kNoRank};
  // The thread's, or of Start while it does not run:
  std::int64_t ahead_ns_ = 0;
  std::set<Rank> here_;   // workers that have spoken and have not left
  std::set<Rank> heard_;  // since the clock ran ahead last
  std::thread thread_;
  mutable std::mutex mutex_;
  std::vector<Record> records_;
};

// The elements of a model that trains in whole sessions: as f32 just over Mesh::kDirectBytes, so
// that reductions take the ring. More would take sanitizers long, which look at each access.
inline constexpr std::size_t kModelSize = 17'000;

// A job for `workers`.
JobSpec SpecFor(EngineOptions engine, int workers);

// A worker of the job "job", with the time limits that a user has who names none: a group of a busy
// machine has the job's lease.
SessionOptions OptionsFor(const FakeDaemon& daemon, int rank);

}  // namespace prd::testing

#endif  // PRD_TESTS_WORKER_FAKE_DAEMON_H_
