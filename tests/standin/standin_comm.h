// A communicator of StandInGpu, for its own files.
#ifndef PRD_TESTS_STANDIN_STANDIN_COMM_H_
#define PRD_TESTS_STANDIN_STANDIN_COMM_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "tests/standin/standin_gpu.h"

namespace prd::testing {

struct StandInGpu::TheComm {
  std::unique_ptr<Hub::Member> member;  // null: it could not be made
  int ranks = 0;
  int rank = 0;
  bool hangs = false;                 // its making never ends
  Status error;                       // what CommBusy tells
  std::atomic<bool> aborted = false;  // CommAbort was called
  std::atomic<bool> over = false;     // and has come to its end
  int busy_polls = 0;
  bool used = false;  // a call was made
  std::uint64_t numbers = 0;
  std::shared_ptr<Calls> pending;  // not handed to the device yet
};

// One call, with where its bytes are.
struct StandInGpu::TheCall {
  HubCall call;  // without its data
  std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::vector<Use> uses;
};

// Calls that are one, on a stream.
struct StandInGpu::Calls {
  std::shared_ptr<TheComm> comm;
  std::uint64_t number = 0;
  bool hangs = false;
  std::vector<TheCall> calls;
  Stream stream = nullptr;
  std::optional<HubResults> results;
};

struct StandInGpu::Background {
  std::mutex mutex;
  bool making = false;
  std::unique_ptr<Id> id;
  std::size_t aborting = 0;
};

}  // namespace prd::testing

#endif  // PRD_TESTS_STANDIN_STANDIN_COMM_H_
