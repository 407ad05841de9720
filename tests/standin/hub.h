// What stands in for NCCL between its ranks: where they meet, and what they exchange.
#ifndef PRD_TESTS_STANDIN_HUB_H_
#define PRD_TESTS_STANDIN_HUB_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "prd/status.h"
#include "tests/standin/problems.h"
#include "worker/device/gpu.h"

namespace prd::testing {

// What one member asks of a communicator at once: a call, or those of a group.
struct HubCall {
  enum class Kind : std::uint8_t { kAllReduce = 0, kSend = 1, kReceive = 2 };
  Kind kind = Kind::kAllReduce;
  DType dtype = DType::kF32;  // of kAllReduce
  Weight weight = {1, 1};     // of kAllReduce
  bool weighted = true;       // not the plain sum
  int peer = 0;               // of kSend and kReceive
  std::uint64_t bytes = 0;
  std::vector<std::byte> data;  // what it gives; of kReceive, nothing
};
using HubCalls = std::vector<HubCall>;
// What each call gets; of kSend, nothing.
using HubResults = std::vector<std::vector<std::byte>>;

// One communicator, as NCCL has it in all of its members: pure. A member's calls are done one after
// another; one is complete when all that are in it have asked for their parts of it.
class Rendezvous {
 public:
  explicit Rendezvous(int ranks) : members_(static_cast<std::size_t>(ranks)) {}

  // False: this rank is taken, or is none, or that is not how many there are.
  bool Join(int ranks, int rank);
  bool ready() const { return joined_ == members_.size(); }
  void Post(int rank, std::uint64_t number, HubCalls calls);
  // The results of a post, once.
  std::optional<HubResults> Take(int rank, std::uint64_t number);
  // It asks for nothing any more; what it has asked for is withdrawn.
  void Leave(int rank);
  // What was done with it that NCCL does not allow, since the last call.
  std::vector<std::string> TakeProblems() { return std::exchange(problems_, {}); }

 private:
  struct Posted {
    std::uint64_t number = 0;
    HubCalls calls;
    HubResults results;
    std::vector<bool> done;
  };
  struct Member {
    bool joined = false;
    bool left = false;
    std::deque<Posted> posted;
    std::map<std::uint64_t, HubResults> results;
  };

  Posted* Head(std::size_t rank);
  static std::optional<std::size_t> Next(const Posted& posted, HubCall::Kind kind, int peer);
  bool AllReduce();
  bool Exchange(std::size_t from, std::size_t to);
  void Match();
  void Retire();
  std::vector<std::size_t> WaitsFor(std::size_t rank);
  void LookForDeadlock();
  void Problem(const std::string& what);

  std::vector<Member> members_;
  std::size_t joined_ = 0;
  std::vector<std::string> problems_;
  bool told_ = false;
};

// Threads: any.
class Hub {
 public:
  // One member's end of a communicator.
  class Member {
   public:
    virtual ~Member() = default;  // leaves
    virtual bool Ready() = 0;
    // In the order in which a device's calls are made, on all of its communicators.
    virtual void Issue(std::uint64_t number) = 0;
    virtual void Post(std::uint64_t number, HubCalls calls) = 0;
    virtual std::optional<HubResults> Take(std::uint64_t number) = 0;
    virtual void Leave() = 0;
  };
  virtual ~Hub() = default;
  virtual Result<Gpu::UniqueId> MakeId() = 0;
  // `device` names who asks; `changed` is called, on any thread, when Ready or Take may say
  // something else.
  virtual Result<std::unique_ptr<Member>> Join(const void* device, int ranks,
                                               const Gpu::UniqueId& id, int rank,
                                               std::function<void()> changed) = 0;
};

// Between the devices of one process.
class LocalHub : public Hub {
 public:
  explicit LocalHub(std::shared_ptr<Problems> problems = std::make_shared<Problems>())
      : shared_(std::make_shared<Shared>()) {
    shared_->problems = std::move(problems);
  }

  Result<Gpu::UniqueId> MakeId() override;
  Result<std::unique_ptr<Member>> Join(const void* device, int ranks, const Gpu::UniqueId& id,
                                       int rank, std::function<void()> changed) override;
  Problems& problems() { return *shared_->problems; }

 private:
  class End;
  struct Room {
    std::unique_ptr<Rendezvous> rendezvous;
    std::map<int, std::function<void()>> changed;  // by rank
  };
  // A call of a device that is not complete.
  struct Issued {
    std::uint64_t room = 0;
    std::uint64_t number = 0;
    friend bool operator==(const Issued&, const Issued&) = default;
  };
  struct Shared {
    std::shared_ptr<Problems> problems;
    std::mutex mutex;
    std::uint64_t ids = 0;
    std::map<std::uint64_t, Room> rooms;
    std::map<const void*, std::vector<Issued>> issued;  // by device, in order

    void LookAtOrder(const void* device);
    void Tell(std::unique_lock<std::mutex> lock, std::uint64_t room);
  };
  std::shared_ptr<Shared> shared_;
};

}  // namespace prd::testing

#endif  // PRD_TESTS_STANDIN_HUB_H_
