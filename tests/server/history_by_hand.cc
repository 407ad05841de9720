// A history of many names against its bound of bytes: how much disk it has at most, and for how
// long it holds up whoever appends. Not a test: it writes gigabytes.
//
//   history_by_hand [RECORDS [NAMES [BYTES [RATE]]]]     default: 10000000 100000 536870912 40000
//
// RATE: records per second; 0: as fast as it goes.
#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "common/base/prng.h"
#include "common/io/clock.h"
#include "server/history/disk_use.h"
#include "tests/server/history_records.h"
#include "tests/server/scratch_dir.h"

namespace prd {
namespace {

constexpr double kMiB = 1 << 20;

double Ms(std::int64_t ns) { return static_cast<double>(ns) / static_cast<double>(kMillisecond); }

// A ready signal of some 100 bytes, of which compression makes little less.
Record Noise(RunId run, std::uint64_t index, Prng* prng) {
  Record record = Signal(run, index);
  std::string text;
  for (int i = 0; i < 80; ++i) text.push_back(static_cast<char>('0' + prng->Below(64)));
  std::get<FromWorker>(record.body).envelope.body = Leave{.reason = text};
  return record;
}

int Measure(std::uint64_t records, std::uint64_t names, std::uint64_t bytes, double rate) {
  const ScratchDir dir;
  const std::string state = dir / "state";
  Result<HistoryPtr> opened = RocksHistory::Open(state, {.bounds = {.bytes = bytes}});
  if (!opened.ok()) return std::fprintf(stderr, "%s\n", opened.status().message().c_str()), 1;
  RocksHistory& history = **opened;
  Prng prng(1);
  std::vector<std::int64_t> appends;
  std::uint64_t most = 0;
  std::uint64_t written = 0;
  const std::int64_t begin = MonotonicNs();
  const std::uint64_t each = std::max<std::uint64_t>(3, records / names);
  // Half of the names are of one who floods, the others of eight who do not.
  for (RunId run = 1; run <= names; ++run) {
    const std::string owner = run % 2 == 0 ? "eve" : "tenant-" + std::to_string(run % 16);
    std::vector<Record> batch{WholeOf(owner, run, "job-" + std::to_string(run))[0],
                              WholeOf(owner, run, "job")[1]};
    const auto append = [&] {
      written += batch.size();
      const std::int64_t at = MonotonicNs();
      const Status status = history.Append(batch);
      appends.push_back(MonotonicNs() - at);
      batch.clear();
      if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str()), std::exit(1);
    };
    for (std::uint64_t index = 2; index + 1 < each; ++index) {
      batch.push_back(Noise(run, index, &prng));
      if (batch.size() == 16) append();
    }
    batch.push_back(Ended(run, each - 1));
    append();
    if (rate > 0) {
      const double ahead_ms =
          static_cast<double>(written) / rate * 1000 - Ms(MonotonicNs() - begin);
      if (ahead_ms >= 1) (void)::poll(nullptr, 0, static_cast<int>(ahead_ms));
    }
    if (run % 200 == 0) most = std::max(most, DiskUseOf(state).bytes);
  }
  const double seconds = Ms(MonotonicNs() - begin) / 1000;
  std::sort(appends.begin(), appends.end());
  const auto quantile = [&](double q) {
    return Ms(appends[static_cast<std::size_t>(q * static_cast<double>(appends.size() - 1))]);
  };
  std::int64_t at = MonotonicNs();
  const std::size_t page = history.ListRuns(std::numeric_limits<RunId>::max(), 1000).size();
  const double page_ms = Ms(MonotonicNs() - at);
  at = MonotonicNs();
  const std::size_t all = history.ListRuns()->size();
  const double all_ms = Ms(MonotonicNs() - at);
  std::printf("%llu records over %llu names in %.1f s, %.0f records/s\n",
              static_cast<unsigned long long>(written), static_cast<unsigned long long>(names),
              seconds, static_cast<double>(written) / seconds);
  std::printf("cap %.1f MiB; kept %.1f MiB in %zu runs; disk at most %.1f MiB, %.2f of the cap\n",
              static_cast<double>(bytes) / kMiB,
              static_cast<double>(history.retention().total().bytes) / kMiB, all,
              static_cast<double>(most) / kMiB,
              static_cast<double>(most) / static_cast<double>(bytes));
  std::printf("append: p50 %.3f ms, p99 %.3f ms, p99.99 %.1f ms, most %.1f ms\n", quantile(0.5),
              quantile(0.99), quantile(0.9999), quantile(1));
  std::printf("a page of %zu runs %.2f ms, all %zu runs %.1f ms\n", page, page_ms, all, all_ms);
  for (const auto& [owner, use] : history.retention().Owners()) {
    std::printf("  %-10s %6llu runs, %8.1f MiB\n", owner.c_str(),
                static_cast<unsigned long long>(use.ended), static_cast<double>(use.bytes) / kMiB);
  }
  return static_cast<double>(most) <= 1.1 * static_cast<double>(bytes) ? 0 : 1;
}

}  // namespace
}  // namespace prd

int main(int argc, char** argv) {
  const auto number = [&](int i, std::uint64_t otherwise) {
    return argc > i ? std::strtoull(argv[i], nullptr, 10) : otherwise;
  };
  return prd::Measure(number(1, 10'000'000), number(2, 100'000), number(3, 512 << 20),
                      static_cast<double>(number(4, 40'000)));
}
