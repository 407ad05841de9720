#include "tools/prdbench/mesh_team.h"

#include <time.h>

#include <algorithm>
#include <limits>
#include <sstream>

#include "tools/prdbench/worker_memory.h"

namespace prd::bench {
namespace {

std::string HostOf(bool tcp, int rank) { return tcp ? "host-" + std::to_string(rank) : "host"; }

// Not ok: what the line says instead.
MeshTeam::Outcome Parse(const std::string& line) {
  MeshTeam::Outcome outcome;
  std::istringstream words(line);
  if (!(words >> outcome.start_ns >> outcome.end_ns >> outcome.way)) {
    outcome.status = Status(Code::kAborted, line);
  }
  words >> outcome.worst >> outcome.hash;
  return outcome;
}

}  // namespace

Result<std::unique_ptr<MeshTeam>> MeshTeam::Start(const Options& options) {
  auto team = std::make_unique<MeshTeam>();
  for (int rank = 0; rank < options.workers; ++rank) {
    PRD_RETURN_IF_ERROR(team->Fork(options, rank));
  }
  for (int rank = 0; rank < options.workers; ++rank) {
    Result<std::string> hello = team->Hear(rank);
    if (!hello.ok()) return hello.status();
    if (hello->empty() || hello->find_first_of("0123456789") != 0) {
      return Status(Code::kUnavailable, *hello);
    }
    const Result<std::string> about = team->Hear(rank);
    if (!about.ok()) return about.status();
    if (rank == 0) team->about_ = DecodeAbout(*about);
    hello->insert(hello->find(' '), " " + HostOf(options.tcp, rank));
    for (int other = 0; other < options.workers; ++other) {
      PRD_RETURN_IF_ERROR(team->Tell(other, "peer " + std::to_string(rank) + " " + *hello));
    }
  }
  return team;
}

Status MeshTeam::Fork(const Options& options, int rank) {
  Result<Process> process =
      Process::ForkWithPipes("process " + std::to_string(rank), [&](int in, int out) {
        MeshWorkerOptions worker;
        worker.rank = rank;
        worker.host = HostOf(options.tcp, rank);
        worker.tensors = options.tensors;
        const std::size_t devices = options.devices.size();
        if (devices != 0) worker.device = options.devices[static_cast<std::size_t>(rank) % devices];
        worker.shares_device = static_cast<std::size_t>(options.workers) > devices;
        worker.timeout = options.timeout;
        worker.mesh_security = options.mesh_security;
        worker.communicators = options.communicators;
        worker.window_bytes = options.window_bytes;
        return RunMeshWorker(worker, in, out);
      });
  if (!process.ok()) return process.status();
  processes_.push_back(std::move(*process));
  return Status::Ok();
}

Result<double> MeshTeam::Reduce(const std::vector<int>& members, std::size_t bytes) {
  Work work;
  work.bytes = bytes;
  for (const int rank : members) {
    work.shares.push_back({rank, 1.0 / static_cast<double>(members.size())});
  }
  const Result<std::vector<Outcome>> outcomes = Run(work);
  if (!outcomes.ok()) return outcomes.status();
  return Seconds(*outcomes);
}

Result<GroupId> MeshTeam::Begin(const Work& work) { return Send(work, -1); }

Result<GroupId> MeshTeam::BeginWithout(const Work& work, int rank) { return Send(work, rank); }

Result<GroupId> MeshTeam::Send(const Work& work, int without) {
  const GroupId group = ++groups_;
  std::ostringstream line;
  line.precision(17);
  line << (work.bytes == 0 ? "verified " : "reduce ") << static_cast<int>(work.kind) << ' ' << group
       << ' ' << (work.bytes == 0 ? work.seed : work.bytes);
  if (work.bytes == 0) line << ' ' << work.tensor;
  for (const Share& share : work.shares) line << ' ' << share.rank << ':' << share.weight;
  for (const Share& share : work.shares) {
    if (share.rank != without) PRD_RETURN_IF_ERROR(Tell(share.rank, line.str()));
  }
  return group;
}

Result<std::vector<MeshTeam::Outcome>> MeshTeam::End(const std::vector<int>& ranks) {
  std::vector<Outcome> outcomes;
  for (const int rank : ranks) {
    Result<std::string> line = Hear(rank);
    if (!line.ok()) return line.status();
    outcomes.push_back(Parse(*line));
  }
  return outcomes;
}

Result<std::vector<MeshTeam::Outcome>> MeshTeam::Run(const Work& work) {
  const Result<GroupId> group = Begin(work);
  if (!group.ok()) return group.status();
  Result<std::vector<Outcome>> outcomes = End(Ranks(work.shares));
  if (!outcomes.ok()) return outcomes.status();
  for (const Outcome& outcome : *outcomes) PRD_RETURN_IF_ERROR(outcome.status);
  return outcomes;
}

double MeshTeam::Seconds(const std::vector<Outcome>& outcomes) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  std::int64_t last = 0;
  for (const Outcome& outcome : outcomes) {
    first = std::min(first, outcome.start_ns);
    last = std::max(last, outcome.end_ns);
  }
  return static_cast<double>(last - first) * 1e-9;
}

Status MeshTeam::Tell(int rank, const std::string& line) {
  return processes_.at(static_cast<std::size_t>(rank)).WriteLine(line);
}

Result<std::string> MeshTeam::Hear(int rank, int timeout_ms) {
  return processes_.at(static_cast<std::size_t>(rank)).ReadLine(timeout_ms);
}

Result<std::string> MeshTeam::Ask(int rank, const std::string& line, int timeout_ms) {
  PRD_RETURN_IF_ERROR(Tell(rank, line));
  return Hear(rank, timeout_ms);
}

Result<std::vector<std::string>> MeshTeam::AskAll(const std::vector<int>& ranks,
                                                  const std::string& line, int timeout_ms) {
  for (const int rank : ranks) PRD_RETURN_IF_ERROR(Tell(rank, line));
  std::vector<std::string> answers;
  for (const int rank : ranks) {
    Result<std::string> answer = Hear(rank, timeout_ms);
    if (!answer.ok()) return answer.status();
    answers.push_back(std::move(*answer));
  }
  return answers;
}

void MeshTeam::Kill(int rank) { processes_.at(static_cast<std::size_t>(rank)).Kill(); }

Result<std::vector<MeshTeam::Counters>> MeshTeam::CountersOf(const std::vector<int>& ranks) {
  const Result<std::vector<std::string>> lines = AskAll(ranks, "counters");
  if (!lines.ok()) return lines.status();
  std::vector<Counters> all;
  for (const std::string& line : *lines) {
    Counters one;
    std::istringstream words(line);
    if (!(words >> one.made >> one.broken >> one.given_up >> one.here >> one.making)) {
      return Status(Code::kUnavailable, line);
    }
    all.push_back(one);
  }
  return all;
}

Status MeshTeam::Settle(const std::vector<int>& ranks, DurationNs timeout) {
  constexpr timespec kLook{0, 20'000'000};
  constexpr int kTimes = 3;  // looks at which nothing has changed, and none is being made
  std::vector<Counters> last;
  int same = 0;
  for (const Instant until = Now() + timeout; Now() < until; nanosleep(&kLook, nullptr)) {
    Result<std::vector<Counters>> counters = CountersOf(ranks);
    if (!counters.ok()) return counters.status();
    const bool making = std::any_of(counters->begin(), counters->end(),
                                    [](const Counters& one) { return one.making; });
    same = *counters == last && !making ? same + 1 : 0;
    last = std::move(*counters);
    if (same >= kTimes) break;
  }
  return Status::Ok();
}

std::vector<int> Ranks(const std::vector<Share>& shares) {
  std::vector<int> ranks;
  for (const Share& share : shares) ranks.push_back(share.rank);
  return ranks;
}

Result<double> Span(const std::vector<std::string>& lines) {
  std::vector<MeshTeam::Outcome> outcomes;
  for (const std::string& line : lines) {
    outcomes.push_back(Parse(line + " -"));
    PRD_RETURN_IF_ERROR(outcomes.back().status);
  }
  return MeshTeam::Seconds(outcomes);
}

Result<std::unique_ptr<Team>> StartMeshTeam(int workers, std::size_t max_bytes, bool tcp,
                                            MeshSecurity security) {
  MeshTeam::Options options;
  options.workers = workers;
  options.tcp = tcp;
  options.mesh_security = security;
  options.tensors = {{DType::kF32, max_bytes / sizeof(float) + 1}};
  Result<std::unique_ptr<MeshTeam>> team = MeshTeam::Start(options);
  if (!team.ok()) return team.status();
  return std::unique_ptr<Team>(std::move(*team));
}

}  // namespace prd::bench
