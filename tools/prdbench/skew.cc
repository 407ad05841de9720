#include "tools/prdbench/skew.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "tools/prdbench/interrupts.h"
#include "tools/prdbench/processes.h"
#include "tools/prdbench/progress.h"
#include "tools/prdbench/skew_board.h"
#include "tools/prdbench/skew_report.h"

namespace prd::bench {
namespace {

constexpr std::int64_t kStallNs = 60'000'000'000;

// An operation is a job of the daemon's configuration.
struct Op {
  const char* name;
  const char* engine;
  const char* table;  // of the engine in the job
};
constexpr Op kOps[] = {
    {"solo", "eager", "quorum = \"solo\""},
    {"majority", "eager", "quorum = \"majority\""},
    {"all-reduce", "all-reduce", ""},
};

// One operation at one size.
struct Cell {
  const Op* op = nullptr;  // null: MPI_Allreduce
  std::size_t bytes = 0;
  SkewFigures figures;
};

class Folder {
 public:
  Folder() {
    char path[] = "/tmp/prdbench-XXXXXX";  // short: a socket's path has 107 bytes
    if (mkdtemp(path) != nullptr) name_ = path;
  }
  ~Folder() {
    std::error_code ignored;
    if (!name_.empty()) std::filesystem::remove_all(name_, ignored);
  }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

class Bench {
 public:
  explicit Bench(const SkewOptions& options)
      : options_(options),
        here_(std::filesystem::read_symlink("/proc/self/exe").parent_path()),
        daemon_(folder_.name() + "/prd.log") {}

  Status Run();
  SkewReport Report() const;

 private:
  Status Prepare();
  Status StartDaemon();
  Status FindMpi();
  Status Measure(Cell* cell, int round);
  Status StartProcesses(const Cell& cell, const std::string& board, Crew* crew);
  std::vector<std::string> MpiCommand() const;
  Status Await(const Cell& cell, int round, const Board& board, Crew* crew);

  SkewFigures Find(const Op* op, std::size_t bytes) const;

  const SkewOptions& options_;
  const std::filesystem::path here_;
  const Folder folder_;
  Crew daemon_;
  Progress progress_;
  std::vector<const Op*> ops_;
  std::string no_mpi_;  // why not; empty: it is there
  std::string mpi_library_;
  std::vector<Cell> cells_;
  int boards_ = 0;
};

Status Bench::Run() {
  PRD_RETURN_IF_ERROR(Prepare());
  for (const std::size_t bytes : options_.bytes) {
    if (no_mpi_.empty()) cells_.push_back({.bytes = bytes});
    for (const Op* op : ops_) cells_.push_back({.op = op, .bytes = bytes});
  }
  PRD_RETURN_IF_ERROR(StartDaemon());
  for (int round = 0; round < options_.rounds; ++round) {
    for (Cell& cell : cells_) PRD_RETURN_IF_ERROR(Measure(&cell, round));
  }
  return Status::Ok();
}

Status Bench::Prepare() {
  if (folder_.name().empty()) {
    return Status(Code::kUnavailable, "cannot make a folder under /tmp");
  }
  for (const std::string& name : options_.ops) {
    const auto* op =
        std::find_if(std::begin(kOps), std::end(kOps), [&](const Op& o) { return o.name == name; });
    if (op == std::end(kOps)) {
      return Status(Code::kInvalidArgument, "no operation is called " + name);
    }
    ops_.push_back(op);
  }
  return FindMpi();
}

Status Bench::FindMpi() {
  if (options_.without_mpi) {
    no_mpi_ = "Open MPI is left out, as asked";
  } else if (access((here_ / "prd-mpi-skew").c_str(), X_OK) != 0) {
    no_mpi_ =
        "Open MPI is absent: prd was built without Open MPI (Debian: openmpi-bin, libopenmpi-dev)";
  } else {
    Crew probe(folder_.name() + "/mpirun.log");
    PRD_RETURN_IF_ERROR(probe.Start("mpirun", {options_.mpirun, "--version"}));
    Status status;
    while (status.ok() && !probe.all_ended()) {
      std::vector<pollfd> items;
      probe.AppendPollItems(&items);
      if (poll(items.data(), items.size(), 200) < 0 && InterruptedBy() != 0) {
        return Status(Code::kCancelled, "interrupted");
      }
      status = probe.Check();
    }
    if (!status.ok() || probe.Log().find("Open MPI") == std::string::npos) {
      no_mpi_ = "Open MPI is absent: " + options_.mpirun +
                " is not Open MPI's mpirun (Debian: openmpi-bin)";
    }
  }
  if (!no_mpi_.empty()) std::fprintf(stderr, "prdbench: %s\n", no_mpi_.c_str());
  return Status::Ok();
}

Status Bench::StartDaemon() {
  const std::string binary = options_.daemon.empty() ? (here_ / "prd").string() : options_.daemon;
  if (access(binary.c_str(), X_OK) != 0) {
    return Status(Code::kNotFound, "no daemon at " + binary + "; name one with --daemon");
  }
  const std::string config = folder_.name() + "/prd.toml";
  std::ofstream file(config);
  file << "[daemon]\nlisten = \"ipc://" << folder_.name() << "/control.sock\"\nadmin = \"ipc://"
       << folder_.name() << "/admin.sock\"\nstate_dir = \"" << folder_.name() << "/state\"\n";
  for (const Op* op : ops_) {
    file << "[[job]]\nname = \"" << op->name << "\"\nengine = \"" << op->engine
         << "\"\nworkers = " << options_.processes << "\nlease_ms = 20000\n";
    if (*op->table != '\0') file << "[job." << op->engine << "]\n" << op->table << "\n";
  }
  file.close();
  if (!file) return Status(Code::kUnavailable, "cannot write " + config);
  return daemon_.Start("the daemon", {binary, "--config", config});
}

Status Bench::Measure(Cell* cell, int round) {
  const std::string name =
      "/prdbench-" + std::to_string(getpid()) + "-" + std::to_string(++boards_);
  const int iterations = options_.warmup + options_.iterations;
  Result<Board> board = Board::Create(name, options_.processes, iterations,
                                      static_cast<std::int64_t>(options_.skew_ms * 1e6));
  if (!board.ok()) return board.status();
  Crew crew(folder_.name() + "/processes-" + std::to_string(boards_) + ".log");
  PRD_RETURN_IF_ERROR(StartProcesses(*cell, name, &crew));
  PRD_RETURN_IF_ERROR(Await(*cell, round, *board, &crew));
  cell->figures.Add(&*board, options_.warmup);
  if (cell->op == nullptr) mpi_library_ = board->library();
  return Status::Ok();
}

// Shared memory between the ranks, no binding (more ranks than cores), and waits that yield the
// core to those whose turn comes: Open MPI never waits in the kernel.
std::vector<std::string> Bench::MpiCommand() const {
  std::vector<std::string> command = {options_.mpirun, "-n", std::to_string(options_.processes)};
  for (const char* word : {"--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle",
                           "1", "--mca", "pml", "ob1", "--mca", "btl", "self,vader"}) {
    command.push_back(word);
  }
  if (geteuid() == 0) command.push_back("--allow-run-as-root");
  return command;
}

Status Bench::StartProcesses(const Cell& cell, const std::string& board, Crew* crew) {
  const std::string bytes = std::to_string(cell.bytes);
  if (cell.op == nullptr) {
    std::vector<std::string> command = MpiCommand();
    command.insert(command.end(), {(here_ / "prd-mpi-skew").string(), board, bytes});
    return crew->Start("mpirun", command);
  }
  for (int p = 0; p < options_.processes; ++p) {
    const std::string process = std::to_string(p);
    PRD_RETURN_IF_ERROR(
        crew->Start("process " + process,
                    {(here_ / "prdbench").string(), "skew-process", "--board", board, "--process",
                     process, "--bytes", bytes, "--controller",
                     "ipc://" + folder_.name() + "/control.sock", "--job", cell.op->name}));
  }
  return Status::Ok();
}

// Until all have ended.
Status Bench::Await(const Cell& cell, int round, const Board& board, Crew* crew) {
  const std::string what = std::to_string(cell.bytes) + " bytes, round " +
                           std::to_string(round + 1) + " of " + std::to_string(options_.rounds) +
                           ", " + (cell.op == nullptr ? "MPI_Allreduce" : cell.op->name);
  int met = -1;
  std::int64_t met_at = MonotonicNow();
  while (!crew->all_ended()) {
    if (board.met() != met) {
      met = board.met();
      met_at = MonotonicNow();
    } else if (MonotonicNow() - met_at > kStallNs) {
      return Status(Code::kDeadlineExceeded, what + ": nothing in the 60 s after iteration " +
                                                 std::to_string(met) + "; what was printed:\n" +
                                                 crew->Log() + "\nand by the daemon:\n" +
                                                 daemon_.Log());
    }
    const int all = board.iterations();
    progress_.Show("prdbench: " + what +
                   (progress_.terminal()
                        ? ": " + std::to_string(std::min(met, all)) + "/" + std::to_string(all)
                        : ""));
    std::vector<pollfd> items;
    crew->AppendPollItems(&items);
    daemon_.AppendPollItems(&items);
    poll(items.data(), items.size(), 200);
    if (InterruptedBy() != 0) return Status(Code::kCancelled, "interrupted");
    Status status = daemon_.Check();
    if (status.ok() && daemon_.all_ended()) status = Status(Code::kUnavailable, "the daemon ended");
    if (status.ok()) status = crew->Check();
    if (!status.ok()) return Status(status.code(), what + ": " + status.message());
  }
  return Status::Ok();
}

SkewFigures Bench::Find(const Op* op, std::size_t bytes) const {
  for (const Cell& cell : cells_) {
    if (cell.op == op && cell.bytes == bytes) return cell.figures;
  }
  return {};
}

SkewReport Bench::Report() const {
  SkewReport report{.processes = options_.processes,
                    .skew_ms = options_.skew_ms,
                    .iterations = options_.rounds * options_.iterations,
                    .mpi = no_mpi_};
  if (no_mpi_.empty()) {
    report.mpi = mpi_library_ + ":";
    for (const std::string& word : MpiCommand()) report.mpi += " " + word;
  }
  for (const Op* op : ops_) {
    SkewReport::Operation operation{.name = op->name};
    for (const std::size_t bytes : options_.bytes) {
      operation.sizes.push_back(
          {.bytes = bytes, .ours = Find(op, bytes), .mpi = Find(nullptr, bytes)});
    }
    report.operations.push_back(std::move(operation));
  }
  return report;
}

}  // namespace

std::vector<std::string> SkewOps() {
  std::vector<std::string> names;
  for (const Op& op : kOps) names.emplace_back(op.name);
  return names;
}

int BenchSkew(const SkewOptions& options) {
  CatchInterrupts();
  Bench bench(options);
  const Status status = bench.Run();
  if (InterruptedBy() != 0) return EndInterrupted();
  if (!status.ok()) {
    std::fprintf(stderr, "prdbench: skew: %s\n", status.message().c_str());
    return status.code() == Code::kInvalidArgument ? 2 : 1;
  }
  const SkewReport report = bench.Report();
  options.json ? report.PrintJson() : report.PrintTable();
  return 0;
}

}  // namespace prd::bench
