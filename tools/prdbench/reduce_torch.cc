// Teams of processes that run PyTorch's all_reduce over Gloo.
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tools/prdbench/processes.h"
#include "tools/prdbench/team.h"

namespace prd::bench {
namespace {

// Answers each line "BYTES RANK RANK ..." with the start and end of the reduction. Every rank is
// told of every group, since PyTorch wants all of them to make it; making it counts.
constexpr const char* kScript = R"py(
import sys, time, torch
import torch.distributed as dist
rank, world, path, max_bytes = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=world)
values = torch.full((max_bytes // 4 + 1,), float(rank))
groups = {tuple(range(world)): None}
print("ready", flush=True)
for line in sys.stdin:
    words = [int(word) for word in line.split()]
    count, members = words[0] // 4, tuple(words[1:])
    start = time.monotonic_ns()
    if members not in groups:
        groups[members] = dist.new_group(list(members))
    if rank in members:
        dist.all_reduce(values[:count], group=groups[members])
        end = time.monotonic_ns()
        values.fill_(float(rank))
        print(start, end, flush=True)
)py";

class TorchTeam : public Team {
 public:
  ~TorchTeam() override {
    processes_.clear();
    if (!directory_.empty()) {
      unlink((directory_ + "/store").c_str());
      rmdir(directory_.c_str());
    }
  }

  Status Start(int workers, std::size_t max_bytes, const std::string& python) {
    const char* base = std::getenv("TMPDIR");
    std::string name = std::string(base != nullptr ? base : "/tmp") + "/prdbench-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) {
      return Status(Code::kUnavailable, "no temporary directory");
    }
    directory_ = name;
    for (int rank = 0; rank < workers; ++rank) {
      Result<Process> process = Process::ForkWithPipes(
          "the PyTorch process " + std::to_string(rank), [&](int in, int out) {
            dup2(in, STDIN_FILENO);
            dup2(out, STDOUT_FILENO);
            setenv("OMP_NUM_THREADS", "1", 1);
            setenv("OPENBLAS_NUM_THREADS", "1", 1);
            setenv("GLOO_SOCKET_IFNAME", "lo", 1);
            execl(python.c_str(), python.c_str(), "-c", kScript, std::to_string(rank).c_str(),
                  std::to_string(workers).c_str(), (directory_ + "/store").c_str(),
                  std::to_string(max_bytes).c_str(), nullptr);
            return 127;
          });
      if (!process.ok()) return process.status();
      processes_.push_back(std::move(*process));
    }
    for (Process& process : processes_) {
      const Result<std::string> ready = process.ReadLine(120'000);
      if (!ready.ok() || *ready != "ready") {
        return Status(Code::kUnavailable, python + " does not run torch.distributed with gloo");
      }
    }
    return Status::Ok();
  }

  Result<double> Reduce(const std::vector<int>& members, std::size_t bytes) override {
    std::string line = std::to_string(bytes);
    for (const int rank : members) line += " " + std::to_string(rank);
    for (Process& process : processes_) PRD_RETURN_IF_ERROR(process.WriteLine(line));
    std::vector<std::string> lines;
    for (const int rank : members) {
      Result<std::string> answer = processes_[static_cast<std::size_t>(rank)].ReadLine(60'000);
      if (!answer.ok()) return answer.status();
      lines.push_back(std::move(*answer));
    }
    return Span(lines);
  }

 private:
  std::vector<Process> processes_;
  std::string directory_;
};

}  // namespace

Result<std::unique_ptr<Team>> StartTorchTeam(int workers, std::size_t max_bytes,
                                             const std::string& python) {
  auto team = std::make_unique<TorchTeam>();
  PRD_RETURN_IF_ERROR(team->Start(workers, max_bytes, python));
  return std::unique_ptr<Team>(std::move(team));
}

}  // namespace prd::bench
