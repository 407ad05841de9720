// A daemon inside the test's process: the controller behind a ROUTER socket, with its history in
// memory. Restart throws the controller away and restores it from that history, as a daemon does
// that was killed.
#ifndef PRD_TESTS_WORKER_FAKE_DAEMON_H_
#define PRD_TESTS_WORKER_FAKE_DAEMON_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "engines/controller.h"

namespace prd::testing {

class FakeDaemon : private History, private Messenger {
 public:
  // Every job gets this spec, by its own name.
  explicit FakeDaemon(JobSpec spec);
  ~FakeDaemon() override;

  const std::string& endpoint() const { return endpoint_; }

  // As kill -9 and a start: nothing is kept but the history. Connections break.
  void Restart();
  // Loses all that this rank says, but for Hellos, until another or kNoRank is named.
  void Mute(Rank rank) { muted_ = rank; }

  // A copy of the history.
  std::vector<Record> records() const;
  // Blocks until a record of the history, old or new, satisfies; false after 20 s.
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

  JobSpec spec_;
  zmq::context_t context_;
  zmq::socket_t router_;
  std::string endpoint_;
  std::unique_ptr<Controller> controller_;
  std::map<Incarnation, std::string> routes_;
  std::atomic<bool> stop_{false};
  std::atomic<Rank> muted_{kNoRank};
  std::thread thread_;
  mutable std::mutex mutex_;
  std::vector<Record> records_;
};

// The elements of a model that trains in whole sessions: as f32 just over Mesh::kDirectBytes, so
// that reductions take the ring. More would take sanitizers long, which look at each access.
inline constexpr std::size_t kModelSize = 17'000;

// A job for `workers` with a lease short enough for tests and long enough for sanitizers.
JobSpec SpecFor(EngineOptions engine, int workers);

}  // namespace prd::testing

#endif  // PRD_TESTS_WORKER_FAKE_DAEMON_H_
