#include "tools/prdbench/worker_comm.h"

#include <time.h>

namespace prd::bench {
namespace {

// Nobody tells of what NCCL's own thread does: it is asked so often.
void Pause() {
  const timespec pause{0, 100'000};
  nanosleep(&pause, nullptr);
}

template <typename Done>
Status Await(const Done& done, const char* what) {
  for (const Instant until = Now() + WorkerComm::kTimeout; !done(); Pause()) {
    if (Now() > until) return Status(Code::kDeadlineExceeded, what);
  }
  return Status::Ok();
}

std::string Times(Instant start) {
  return std::to_string(start.ns) + " " + std::to_string(Now().ns);
}

std::string ToHex(const Gpu::UniqueId& id) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const std::byte byte : id) {
    hex += kDigits[std::to_integer<unsigned>(byte) >> 4];
    hex += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return hex;
}

bool FromHex(const std::string& hex, Gpu::UniqueId* id) {
  if (hex.size() != 2 * id->size()) return false;
  if (hex.find_first_not_of("0123456789abcdef") != std::string::npos) return false;
  for (std::size_t i = 0; i < id->size(); ++i) {
    (*id)[i] = static_cast<std::byte>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  return true;
}

}  // namespace

Result<std::string> WorkerComm::Obey(const std::string& verb, std::istringstream* words,
                                     WorkerMemory* memory, Gpu::Comm used) {
  Gpu* gpu = memory->gpu();
  if (gpu == nullptr) return Status(Code::kFailedPrecondition, "it has no device");
  if (verb == "comm-id") return MakeId(gpu);
  if (verb == "comm-init") return Init(gpu, words);
  if (verb == "plain") return Plain(words, memory, used != nullptr ? used : comm_);
  if (verb == "comm-abort") return Abort(gpu);
  return Status(Code::kInvalidArgument, "found the command '" + verb + "'");
}

Result<std::string> WorkerComm::MakeId(Gpu* gpu) {
  PRD_RETURN_IF_ERROR(gpu->nccl());
  gpu->MakeUniqueId();
  std::unique_ptr<Gpu::Id> id;
  PRD_RETURN_IF_ERROR(Await([&] { return (id = gpu->TakeUniqueId()) != nullptr; }, "no unique id"));
  PRD_RETURN_IF_ERROR(id->status);
  return ToHex(id->id);
}

Result<std::string> WorkerComm::Init(Gpu* gpu, std::istringstream* words) {
  int ranks = 0;
  int rank = 0;
  std::string hex;
  Gpu::UniqueId id;
  if (!(*words >> ranks >> rank >> hex) || !FromHex(hex, &id) || comm_ != nullptr) {
    return Status(Code::kInvalidArgument, "found another communicator, or no RANKS RANK ID");
  }
  const Instant start = Now();
  comm_ = gpu->CommInit(ranks, id, rank);
  PRD_RETURN_IF_ERROR(AwaitIdle(gpu, comm_));
  return Times(start);
}

Result<std::string> WorkerComm::Plain(std::istringstream* words, WorkerMemory* memory,
                                      Gpu::Comm comm) {
  std::size_t bytes = 0;
  if (comm == nullptr || !(*words >> bytes)) {
    return Status(Code::kInvalidArgument, "there is no communicator, or no BYTES");
  }
  const Tensor tensor = memory->First(bytes).at(0);
  std::byte* data = static_cast<std::byte*>(tensor.data);
  const Instant start = Now();
  PRD_RETURN_IF_ERROR(memory->gpu()->AllReduce(comm, data, data, tensor.count, tensor.dtype,
                                               std::nullopt, memory->stream()));
  PRD_RETURN_IF_ERROR(AwaitIdle(memory->gpu(), comm));
  PRD_RETURN_IF_ERROR(memory->Finish());
  return Times(start);
}

Result<std::string> WorkerComm::Abort(Gpu* gpu) {
  if (comm_ != nullptr) gpu->CommAbort(comm_);
  comm_ = nullptr;
  PRD_RETURN_IF_ERROR(Await([&] { return gpu->aborting() == 0; }, "it is still being aborted"));
  return std::string("ok");
}

Status WorkerComm::AwaitIdle(Gpu* gpu, Gpu::Comm comm) {
  Status failure;
  PRD_RETURN_IF_ERROR(Await(
      [&] {
        const Result<bool> busy = gpu->CommBusy(comm);
        if (!busy.ok()) failure = busy.status();
        return !busy.ok() || !*busy;
      },
      "the communicator is busy"));
  return failure;
}

}  // namespace prd::bench
