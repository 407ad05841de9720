// Between processes on one host: who makes a unique id serves it, on a thread of its own, at a Unix
// socket that the id names.
//
// A process that is gone leaves its communicators: the others' calls do not end, as NCCL's do not.
// The same holds when the one that serves is gone.
#ifndef PRD_TESTS_STANDIN_SOCKET_HUB_H_
#define PRD_TESTS_STANDIN_SOCKET_HUB_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "tests/standin/hub.h"

namespace prd::testing {

class SocketHub : public Hub {
 public:
  // `problems`: of the communicators that are served here.
  explicit SocketHub(std::shared_ptr<Problems> problems);
  ~SocketHub() override;

  Result<Gpu::UniqueId> MakeId() override;
  Result<std::unique_ptr<Member>> Join(const void* device, int ranks, const Gpu::UniqueId& id,
                                       int rank, std::function<void()> changed) override;

 private:
  class Server;
  class End;
  std::shared_ptr<Problems> problems_;
  std::mutex mutex_;
  std::unique_ptr<Server> server_;  // once it is needed
};

}  // namespace prd::testing

#endif  // PRD_TESTS_STANDIN_SOCKET_HUB_H_
