#include "tools/prdbench/reduce_device.h"

#include <signal.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <numeric>

#include "tools/prdbench/device_line.h"
#include "tools/prdbench/way_team.h"
#include "tools/prdbench/worker_memory.h"

namespace prd::bench {
namespace {

constexpr std::array kWays = {Way::kCollective, Way::kExchange, Way::kStaged};

struct DTypeName {
  const char* name;
  DType dtype;
};
constexpr DTypeName kDTypes[] = {
    {"f32", DType::kF32}, {"f64", DType::kF64}, {"f16", DType::kF16}, {"bf16", DType::kBF16}};

DType DTypeOf(const std::string& name) {
  for (const DTypeName& one : kDTypes) {
    if (name == one.name) return one.dtype;
  }
  return DType::kF32;
}

// One way's processes, and what was measured of it.
struct Measured {
  std::unique_ptr<WayTeam> team;
  std::vector<double> first;
  std::vector<double> repeated;
};

class DeviceBench {
 public:
  explicit DeviceBench(const ReduceOptions& options)
      : options_(options), dtype_(DTypeOf(options.dtype)) {}

  Status Run() {
    PRD_RETURN_IF_ERROR(Start());
    PRD_RETURN_IF_ERROR(MeasureCommunicator());
    for (Measured& one : ways_) {
      PRD_RETURN_IF_ERROR(one.team->Prepare(*std::min_element(bytes().begin(), bytes().end())));
    }
    PRD_RETURN_IF_ERROR(MeasureFirst(bytes().front()));
    for (const std::size_t size : bytes()) {
      PRD_RETURN_IF_ERROR(MeasureRepeated(size));
      for (Measured& one : ways_) {
        Print(size, one);
        one.first.clear();
      }
    }
    return Status::Ok();
  }

 private:
  const std::vector<std::size_t>& bytes() const { return options_.bytes; }
  MeshTeam& collective() { return ways_.front().team->team(); }
  std::vector<int> ranks() const { return Ranks(ways_.front().team->shares()); }

  Status Start() {
    const Result<std::vector<int>> devices = DevicesOf(options_.devices);
    if (!devices.ok()) return devices.status();
    WayTeam::Options team;
    team.ranks = options_.workers;
    team.devices = *devices;
    const std::size_t most = *std::max_element(bytes().begin(), bytes().end());
    team.tensors = {{dtype_, std::max<std::size_t>(most / DTypeSize(dtype_), 1)}};
    for (const Way way : kWays) {
      Result<std::unique_ptr<WayTeam>> started = WayTeam::Start(way, team);
      if (!started.ok()) return started.status();
      ways_.push_back({std::move(*started), {}, {}});
    }
    about_ = collective().about();
    return Status::Ok();
  }

  nlohmann::ordered_json Line(const char* what) const {
    nlohmann::ordered_json line = DeviceLine("bench", what, about_);
    line["ranks"] = options_.workers;
    line["gpus"] =
        std::min<std::size_t>(options_.devices.size(), static_cast<std::size_t>(options_.workers));
    return line;
  }

  // Makes a communicator of the members on NCCL alone, uses it once, and gives it up.
  Status MeasureCommunicator() {
    MeshTeam& team = collective();
    const Result<double> before = Free();
    const Result<std::string> id = team.Ask(0, "comm-id");
    if (!id.ok()) return id.status();
    if (id->size() != 2 * sizeof(Gpu::UniqueId)) return Status(Code::kUnavailable, *id);
    for (const int rank : ranks()) {
      PRD_RETURN_IF_ERROR(team.Tell(rank, "comm-init " + std::to_string(options_.workers) + " " +
                                              std::to_string(rank) + " " + *id));
    }
    const Result<double> make = Hear();
    if (!make.ok()) return make.status();
    const Result<double> made = Free();
    const Result<double> plain = Plain(bytes().front());
    if (!plain.ok()) return plain.status();
    const Result<double> used = Free();
    const Instant start = Now();
    const Result<std::vector<std::string>> gone = team.AskAll(ranks(), "comm-abort");
    if (!gone.ok()) return gone.status();
    const double abort_s = static_cast<double>(Now() - start) * 1e-9;
    const Result<double> after = Free();
    for (const auto* free : {&before, &made, &used, &after}) {
      if (!free->ok()) return free->status();
    }
    nlohmann::ordered_json line = Line("communicator");
    const double count = options_.workers;
    line["make_s"] = *make;
    line["abort_s"] = abort_s;
    line["bytes_per_rank"] = (*before - *made) / count;
    line["bytes_per_rank_used"] = (*before - *used) / count;
    line["bytes_per_rank_after_abort"] = (*before - *after) / count;
    PrintLine(line);
    return Status::Ok();
  }

  // Free bytes of the device of rank 0.
  Result<double> Free() {
    const Result<std::string> line = collective().Ask(0, "free");
    if (!line.ok()) return line.status();
    char* end = nullptr;
    const double bytes = std::strtod(line->c_str(), &end);
    if (end == line->c_str()) return Status(Code::kUnavailable, *line);
    return bytes;
  }

  // The members' answers.
  Result<double> Hear() {
    std::vector<std::string> lines;
    for (const int rank : ranks()) {
      Result<std::string> line = collective().Hear(rank);
      if (!line.ok()) return line.status();
      lines.push_back(std::move(*line));
    }
    return Span(lines);
  }

  Result<double> Plain(std::size_t size) {
    const auto lines = collective().AskAll(ranks(), "plain " + std::to_string(size));
    if (!lines.ok()) return lines.status();
    return Span(*lines);
  }

  // Groups that have not been yet: each leaves out another one of the processes.
  Status MeasureFirst(std::size_t size) {
    MeshTeam::Work work;
    work.bytes = size;
    for (Measured& one : ways_) {
      if (one.team->way() == Way::kCollective) continue;  // it is for those that recur
      for (int out = 0; out < options_.workers; ++out) {
        std::vector<int> members(static_cast<std::size_t>(options_.workers));
        for (int i = 0; i < options_.workers; ++i) {
          members[static_cast<std::size_t>(i)] = i + (i >= out ? 1 : 0);
        }
        work.shares = Unequal(members);
        const auto outcomes = one.team->Run(work);
        if (!outcomes.ok()) return outcomes.status();
        one.first.push_back(MeshTeam::Seconds(*outcomes));
      }
    }
    return Status::Ok();
  }

  Status MeasureRepeated(std::size_t size) {
    PRD_RETURN_IF_ERROR(MeasurePairs(size));
    for (Measured& one : ways_) {
      if (one.team->way() == Way::kCollective) continue;
      one.repeated.clear();
      for (int repeat = -kWarmUp; repeat < options_.repeats * options_.trials; ++repeat) {
        const Result<double> ours = Ours(&one, size);
        if (!ours.ok()) return ours.status();
        if (repeat >= 0) one.repeated.push_back(*ours);
      }
    }
    return Status::Ok();
  }

  // A group's all-reduce and NCCL's alone, on the same communicator, in turns that begin with
  // either one, with nothing else between them: more of them, as their ratio is what is wanted.
  Status MeasurePairs(std::size_t size) {
    Measured& collective = ways_.front();
    collective.repeated.clear();
    plain_.clear();
    ratios_.clear();
    const Instant until = Now() + kPairsTime;
    const int least = options_.repeats * options_.trials;
    for (int pair = -kWarmUp; pair < kPairs * least; ++pair) {
      if (pair >= least && Now() > until) break;
      const bool plain_first = pair % 2 != 0;
      Result<double> plain = plain_first ? Plain(size) : Result<double>(0.0);
      if (!plain.ok()) return plain.status();
      const Result<double> ours = Ours(&collective, size);
      if (!ours.ok()) return ours.status();
      if (!plain_first) plain = Plain(size);
      if (!plain.ok()) return plain.status();
      if (pair < 0) continue;
      collective.repeated.push_back(*ours);
      plain_.push_back(*plain);
      ratios_.push_back(*plain / *ours);
    }
    return Status::Ok();
  }

  Result<double> Ours(Measured* one, std::size_t size) {
    MeshTeam::Work work;
    work.bytes = size;
    const auto outcomes = one->team->Run(work);
    if (!outcomes.ok()) return outcomes.status();
    return MeshTeam::Seconds(*outcomes);
  }

  void Print(std::size_t size, const Measured& one) const {
    const double median = Median(one.repeated);
    const double plain = Median(plain_);
    nlohmann::ordered_json line = Line("reduce");
    line["bytes"] = size;
    line["dtype"] = options_.dtype;
    line["way"] = WayName(one.team->way());
    line["weighted"] = true;
    line["median_s"] = median;
    line["min_s"] = *std::min_element(one.repeated.begin(), one.repeated.end());
    line["gb_per_s"] = static_cast<double>(size) / median * 1e-9;
    line["plain_s"] = plain;
    const bool pairs = one.team->way() == Way::kCollective;
    line["ratio"] = pairs ? Median(ratios_) : plain / median;
    line["repeats"] = one.repeated.size();
    line["first_use_s"] = nullptr;
    if (!one.first.empty()) line["first_use_s"] = Median(one.first);
    PrintLine(line);
  }

  static constexpr int kWarmUp = 2;
  static constexpr int kPairs = 4;  // times the other ways' repeats, but no longer than this
  static constexpr DurationNs kPairsTime = 15 * kSecond;

  const ReduceOptions& options_;
  DType dtype_;
  DeviceAbout about_;
  std::vector<Measured> ways_;
  std::vector<double> plain_;
  std::vector<double> ratios_;  // of each pair: what NCCL alone took to what the group did
};

}  // namespace

int BenchReduceDevice(const ReduceOptions& options) {
  signal(SIGPIPE, SIG_IGN);  // a process that is gone is an error of its own
  const Status status = DeviceBench(options).Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "prdbench: reduce on devices: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace prd::bench
