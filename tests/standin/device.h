// A stand-in for a CUDA device: memory, streams that are queues, events, and faults to order.
//
// It shows that calls are made as they must be, and proves nothing about GPUs. What is queued runs
// when a test says so (Turn, Advance), one operation at a time, each time one of those that CUDA
// could run next, chosen by a seed; or on a thread of its own.
//
// Threads: any.
#ifndef PRD_TESTS_STANDIN_DEVICE_H_
#define PRD_TESTS_STANDIN_DEVICE_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/base/prng.h"
#include "prd/status.h"
#include "tests/standin/arena.h"
#include "tests/standin/problems.h"
#include "tests/standin/races.h"

namespace prd::testing {

class StandInDevice {
 public:
  struct Options {
    std::size_t memory = std::size_t{4} << 30;  // addresses; pages are used as they are written
    bool threaded = false;
    std::uint64_t seed = 0;              // which of what may run next; 0: the first stream's
    int delay_us = 0;                    // before each operation, if threaded
    bool find_races = true;              // those that races.h sees
    std::shared_ptr<Problems> problems;  // null: its own
    // When nothing here can run, and who waits cannot go on: lets others run. False: nor can they.
    std::function<bool()> others;
  };
  static Result<std::shared_ptr<StandInDevice>> Create(Options options);
  ~StandInDevice();

  Problems& problems() { return *options_.problems; }

  // ---- driving, if not threaded ----

  // One operation. False: none can run.
  bool Turn();
  // All that can run.
  void Advance();
  // Operations that have not run.
  std::size_t queued() const;

  // ---- faults ----

  // The k-th call (1: the next), or operation, fails, and all after it do.
  void FailCall(std::uint64_t k, Status status = Broken());
  void FailOperation(std::uint64_t k, Status status = Broken());
  // The k-th allocation finds no memory; those after it do.
  void FailMalloc(std::uint64_t k);
  static Status Broken() { return {Code::kInternal, "stand-in: an error that was ordered"}; }
  // How many there were.
  std::uint64_t calls() const;
  std::uint64_t operations() const;
  std::uint64_t mallocs() const;

  // A CUDA graph is captured from every stream; or from none again.
  void Capture(bool capture) { capturing_ = capture; }
  bool capturing() const { return capturing_; }

  // ---- what StandInGpu is made of ----

  struct Stream;
  struct Token {
    std::atomic<bool> done = false;
    Races::Clock clock;  // what it is after
  };
  struct Event {
    std::shared_ptr<Token> token;  // null: never recorded
  };
  struct Operation {
    std::string what;
    std::function<bool()> ready;  // null: always
    std::function<void()> run;    // on any thread, nothing locked
    std::vector<Use> uses;
  };
  enum class Place { kDevice, kPinned, kEither };

  // Begins a call that may fail.
  Status Call();
  // A bug of the caller: it is a problem, and an error.
  Status Wrong(const std::string& what);
  Result<std::byte*> Malloc(std::size_t bytes, bool device);
  void Free(std::byte* data, bool device);
  // Checks an operand and says where its bytes are.
  Result<std::byte*> Operand(const std::string& what, const void* data, std::size_t bytes,
                             Place place);
  Arena::Kind KindOf(const void* data, std::size_t bytes) const;
  std::size_t allocations() const;
  std::size_t free_memory() const;

  void* CreateStream();
  void DestroyStream(void* stream);
  Event* CreateEvent();
  void DestroyEvent(Event* event);
  Status Record(Event* event, void* stream);
  Status Wait(void* stream, Event* event);
  Result<bool> Done(Event* event);
  Status Synchronize(Event* event);
  // Behind what is there.
  Status Enqueue(void* stream, Operation operation);
  // The driver has something to put on the stream later: until then nothing else may come there.
  void Hold(void* stream);
  void Unhold(void* stream);
  // Beside all streams, on the Gpu's own thread.
  void InBackground(std::function<void()> task);
  // Something may run now that could not. Locks nothing.
  void Wake();
  // Blocks until done(), while all goes on. REQUIRES: nothing is locked. False: it never will be.
  bool RunUntil(const std::function<bool()>& done);

 private:
  std::atomic<bool> capturing_ = false;
  explicit StandInDevice(Options options, std::unique_ptr<Arena> arena);

  Stream* Find(void* stream);
  Status EnqueueLocked(void* stream, Operation operation);
  void LookForRaces(const Stream& stream, const Operation& operation);
  bool Known(Event* event) const;
  Status FailIfDue(std::optional<std::uint64_t>* due, std::uint64_t count);
  std::function<void()> Take();
  void Drop();
  void Loop();

  Options options_;
  std::unique_ptr<Arena> arena_;
  Races races_;
  std::size_t streams_made_ = 1;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Stream>> streams_;  // the first is the null stream
  std::set<Event*> events_;
  std::deque<std::function<void()>> background_;
  bool in_background_ = false;
  Prng prng_;
  Status error_;
  Status ordered_;
  std::optional<std::uint64_t> fail_call_, fail_operation_, fail_malloc_;
  std::uint64_t calls_ = 0, operations_ = 0, mallocs_ = 0;

  std::atomic<std::uint32_t> wakes_ = 0;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace prd::testing

#endif  // PRD_TESTS_STANDIN_DEVICE_H_
