#include "engines/batch_rule.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "engines/words.h"

namespace prd {
namespace {

constexpr std::int64_t kProbeInterval = 64;
constexpr std::int64_t kMostProbeInterval = 256;
constexpr double kProbeLength = 1.2;  // of a step with a probe, in steps without
// A probed worker has less than 1 / kSmallShare of the mean share, and its samples cost less than
// kSampledPart times its fixed part.
constexpr std::int64_t kSmallShare = 4;
constexpr double kSampledPart = 3;
constexpr std::int64_t kStepsToKnow = 2;  // before shares change unforced
constexpr double kDoubt = 2;

// t = scale * (fixed + samples).
struct Line {
  double scale = 1;
  double fixed = 0;
  double At(double samples) const { return scale * (fixed + samples); }
  double At(std::int64_t samples) const { return At(static_cast<double>(samples)); }
};

std::vector<Line> LinesOf(std::span<const WorkerLoad> workers) {
  double scales = 0, constants = 0, known = 0;
  for (const WorkerLoad& worker : workers) {
    if (worker.cost == nullptr || !worker.cost->known()) continue;
    scales += worker.cost->scale();
    constants += worker.cost->scale() * worker.cost->fixed();
    known += 1;
  }
  const Line mean = known > 0 ? Line{scales / known, constants / scales} : Line{};
  std::vector<Line> lines;
  lines.reserve(workers.size());
  for (const WorkerLoad& worker : workers) {
    const bool is_known = worker.cost != nullptr && worker.cost->known();
    lines.push_back(is_known ? Line{worker.cost->scale(), worker.cost->fixed()} : mean);
  }
  return lines;
}

// Gives samples to workers, each time to one with the least resulting time. Ties: the lower index.
class Divider {
 public:
  explicit Divider(std::vector<Line> lines) : lines_(std::move(lines)), shares_(lines_.size()) {}

  // The best division of `units` times `unit` samples, at least one unit and at most most[i] units
  // each. Workers with most[i] == 0 are left out. REQUIRES: as many units as such workers.
  void Divide(std::int64_t units, std::int64_t unit, const std::vector<std::int64_t>& most) {
    const auto whole = [&](std::size_t i, double time) {
      const double room = (time / lines_[i].scale - lines_[i].fixed) / static_cast<double>(unit);
      const double bounded = std::clamp(room, 0.0, static_cast<double>(units));
      return std::clamp(static_cast<std::int64_t>(bounded), std::min<std::int64_t>(1, most[i]),
                        most[i]);
    };
    const auto sum = [&](double time) {
      std::int64_t all = 0;
      for (std::size_t i = 0; i < lines_.size(); ++i) all += whole(i, time);
      return all;
    };
    double low = 0, high = 0;
    for (const Line& line : lines_) high = std::max(high, line.At(units * unit));
    for (int i = 0; i < kHalvings; ++i) {
      const double middle = low + (high - low) / 2;
      (sum(middle) <= units ? low : high) = middle;
    }
    std::int64_t left = units;
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      const std::int64_t given = whole(i, low);
      shares_[i] += given * unit;
      left -= given;
    }
    Fill(left, unit, [&](std::size_t i) { return most[i] * unit - shares_[i]; });
  }

  // Gives `count` parts of `part` samples to workers with room(i) samples left. Returns how many
  // parts found no room.
  std::int64_t Fill(std::int64_t count, std::int64_t part, const auto& room) {
    std::vector<std::pair<double, std::size_t>> heap;
    const auto offer = [&](std::size_t i) {
      if (room(i) >= part) heap.emplace_back(lines_[i].At(shares_[i] + part), i);
    };
    if (count > 0) {
      for (std::size_t i = 0; i < lines_.size(); ++i) offer(i);
    }
    std::make_heap(heap.begin(), heap.end(), std::greater<>());
    for (; count > 0 && !heap.empty(); --count) {
      std::pop_heap(heap.begin(), heap.end(), std::greater<>());
      const std::size_t i = heap.back().second;
      heap.pop_back();
      shares_[i] += part;
      const std::size_t size = heap.size();
      offer(i);
      if (heap.size() > size) std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
    return count;
  }

  double Longest() const {
    double longest = 0;
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      longest = std::max(longest, lines_[i].At(shares_[i]));
    }
    return longest;
  }
  std::size_t Slowest() const {
    std::size_t slowest = 0;
    for (std::size_t i = 1; i < lines_.size(); ++i) {
      if (lines_[i].At(shares_[i]) > lines_[slowest].At(shares_[slowest])) slowest = i;
    }
    return slowest;
  }
  std::vector<std::int64_t>& shares() { return shares_; }

 private:
  static constexpr int kHalvings = 32;

  std::vector<Line> lines_;
  std::vector<std::int64_t> shares_;
};

// The remainder goes where it ends first. Where the slowest worker has a single unit, the remainder
// may do for it, and another takes the unit.
void GiveRemainder(Divider& divider, std::int64_t remainder, std::int64_t unit,
                   const std::vector<std::int64_t>& limits) {
  if (remainder == 0) return;
  const auto room = [&](std::size_t i) { return limits[i] - divider.shares()[i]; };
  Divider other = divider;
  const std::int64_t unplaced = divider.Fill(1, remainder, room);
  if (unplaced > 0) divider.Fill(remainder, 1, room);
  const std::size_t slowest = other.Slowest();
  if (remainder >= unit || other.shares()[slowest] != unit) return;
  other.shares()[slowest] = remainder;
  const auto room_of_others = [&](std::size_t i) {
    return i == slowest ? 0 : limits[i] / unit * unit - other.shares()[i];
  };
  if (other.Fill(1, unit, room_of_others) == 0 && other.Longest() < divider.Longest()) {
    divider = other;
  }
}

// The standard error of a gain. A step now is as long as that of the slowest worker. The length of
// a step of the best division is (batch + sum(fixed)) / sum(1 / scale): there the error of each
// worker counts by its part of the work.
double ErrorOfGain(std::span<const WorkerLoad> loads, std::size_t slowest,
                   const std::vector<std::int64_t>& shares) {
  double all = 0, sum = 0;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    const double work = loads[i].cost->fixed() + static_cast<double>(shares[i]);
    all += work;
    sum += work * loads[i].cost->error() * work * loads[i].cost->error();
  }
  const double of_slowest = loads[slowest].cost->error();
  return std::sqrt(of_slowest * of_slowest + sum / (all * all));
}

// How many standard errors a gain must have. The largest of n normal numbers is near
// sqrt(2 * ln(n)) deviations.
double Doubt(std::size_t workers) {
  return std::sqrt(1 + kDoubt * static_cast<double>(std::bit_width(workers)));
}

double TimeOf(const WorkerLoad& load, std::int64_t samples) {
  return load.cost->Expect(static_cast<double>(samples));
}

std::size_t SlowestOf(std::span<const WorkerLoad> loads, const std::vector<std::int64_t>& shares) {
  std::size_t slowest = 0;
  double longest = 0;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    const double time = TimeOf(loads[i], shares[i]);
    if (time > longest) longest = time, slowest = i;
  }
  return slowest;
}

double LongestOf(std::span<const WorkerLoad> loads, const std::vector<std::int64_t>& shares) {
  const std::size_t slowest = SlowestOf(loads, shares);
  return TimeOf(loads[slowest], shares[slowest]);
}

std::string Duration(double ns) { return words::Duration(static_cast<DurationNs>(ns + 0.5)); }

// The worker whose share changes most is the one that is named.
std::string WhyRebalanced(std::span<const WorkerLoad> loads,
                          const std::vector<std::int64_t>& present,
                          const std::vector<std::int64_t>& best, double now, double then) {
  std::size_t named = 0;
  double others = 0;
  const auto for_each_sample = [&](std::size_t i) {
    return TimeOf(loads[i], present[i]) / static_cast<double>(present[i]);
  };
  for (std::size_t i = 0; i < loads.size(); ++i) {
    others += for_each_sample(i);
    if (std::abs(best[i] - present[i]) > std::abs(best[named] - present[named])) named = i;
  }
  const double mean = (others - for_each_sample(named)) /
                      static_cast<double>(std::max<std::size_t>(loads.size(), 2) - 1);
  return RankName(loads[named].rank) + " needs " + Duration(for_each_sample(named)) +
         " for each sample, the mean of the others is " + Duration(mean) + ": steps of " +
         Duration(then) + " instead of " + Duration(now);
}

std::vector<ShareOf> SharesOf(std::span<const WorkerLoad> loads,
                              const std::vector<std::int64_t>& samples) {
  std::vector<ShareOf> shares;
  shares.reserve(loads.size());
  for (std::size_t i = 0; i < loads.size(); ++i) shares.push_back({loads[i].rank, samples[i]});
  return shares;
}

std::vector<std::int64_t> CountsOf(std::span<const ShareOf> shares) {
  std::vector<std::int64_t> counts;
  counts.reserve(shares.size());
  for (const ShareOf& share : shares) counts.push_back(share.samples);
  return counts;
}

bool AllMeasured(std::span<const WorkerLoad> loads) {
  return std::all_of(loads.begin(), loads.end(), [](const WorkerLoad& load) {
    return load.cost != nullptr && load.cost->measured() >= kStepsToKnow;
  });
}

// The ranks in `a` that are not in `b`; both are sorted.
std::vector<Rank> Without(std::span<const Rank> a, std::span<const Rank> b) {
  std::vector<Rank> ranks;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(ranks));
  return ranks;
}

template <typename T>
std::vector<Rank> RanksOf(std::span<const T> list) {
  std::vector<Rank> ranks;
  for (const T& each : list) ranks.push_back(each.rank);
  return ranks;
}

std::string Has(const std::vector<Rank>& ranks) { return ranks.size() == 1 ? " has " : " have "; }

}  // namespace

std::vector<std::int64_t> DivideBatch(std::int64_t batch, std::int64_t multiple,
                                      std::span<const WorkerLoad> workers) {
  if (workers.empty()) return {};
  PRD_CHECK(batch >= static_cast<std::int64_t>(workers.size()));
  PRD_CHECK(multiple >= 1);
  std::vector<std::int64_t> limits;
  std::int64_t all = 0, whole = 0, few = 0;  // few: workers with a limit below `multiple`
  for (const WorkerLoad& worker : workers) {
    limits.push_back(worker.limit == 0 ? batch : std::min(worker.limit, batch));
    all += limits.back();
    if (limits.back() < multiple) few += 1, whole += limits.back();
  }
  batch = std::min(batch, all);
  const std::int64_t others = static_cast<std::int64_t>(workers.size()) - few;
  const bool singles = batch - whole < others * multiple;
  const std::int64_t unit = singles ? 1 : multiple;

  Divider divider(LinesOf(workers));
  std::vector<std::int64_t> most;
  std::int64_t held = 0, left = batch;
  for (std::size_t i = 0; i < limits.size(); ++i) {
    most.push_back(limits[i] / unit);
    held += most.back();
    if (most.back() > 0) continue;
    divider.shares()[i] = limits[i];
    left -= limits[i];
  }
  const std::int64_t units = std::min(left / unit, held);
  if (held > 0) divider.Divide(units, unit, most);
  GiveRemainder(divider, left - units * unit, unit, limits);
  return divider.shares();
}

void BatchRule::Observe(Rank rank, std::int64_t samples, DurationNs computing) {
  if (samples <= 0 || computing <= 0) return;
  StepCost& cost = costs_[rank];
  cost.Observe(samples, computing);
  if (cost.changed()) probe_interval_ = kProbeInterval;
}

std::vector<ShareOf> BatchRule::Divide(std::int64_t samples, const std::vector<Rank>& ranks) const {
  std::vector<Asked> asked;
  for (const Rank rank : ranks) {
    if (std::ssize(asked) < samples) asked.push_back({.rank = rank});
  }
  const Counts counts = DivideBatch(samples, options_.multiple, LoadsOf(asked));
  std::vector<ShareOf> shares;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    shares.push_back({.rank = asked[i].rank, .samples = counts[i]});
  }
  return shares;
}

DurationNs BatchRule::Expected(Rank rank, std::int64_t samples) const {
  const auto found = costs_.find(rank);
  if (found == costs_.end() || !found->second.known()) return 0;
  const double ns = found->second.Expect(static_cast<double>(samples)) + 0.5;
  return ns < 9e18 ? static_cast<DurationNs>(ns) : std::numeric_limits<DurationNs>::max();
}

BatchRule::Loads BatchRule::LoadsOf(std::span<const Asked> workers) const {
  Loads loads;
  loads.reserve(workers.size());
  auto cost = costs_.begin();
  for (const Asked& worker : workers) {
    while (cost != costs_.end() && cost->first < worker.rank) ++cost;
    const bool found = cost != costs_.end() && cost->first == worker.rank;
    loads.push_back({worker.rank, found ? &cost->second : nullptr, worker.limit});
  }
  return loads;
}

std::optional<BatchRule::Decision> BatchRule::Decide(std::span<const Asked> workers,
                                                     std::span<const ShareOf> present) {
  const Loads loads = LoadsOf(workers);
  const std::string why_forced = WhyForced(workers, present);
  if (!std::equal(workers.begin(), workers.end(), asked_.begin(), asked_.end())) {
    asked_.assign(workers.begin(), workers.end());
  }
  std::optional<Decision> decision;
  ++quiet_calls_;
  if (!why_forced.empty()) {
    before_probe_.clear();
    const Counts best = DivideBatch(options_.batch, options_.multiple, loads);
    decision = Decision{SharesOf(loads, best), why_forced};
  } else if (!before_probe_.empty()) {
    decision = EndProbe(loads, present);
  } else if (AllMeasured(loads)) {
    const Counts counts = CountsOf(present);
    decision = Rebalance(loads, counts);
    if (!decision) decision = Probe(loads, counts);
  }
  if (!decision || std::ranges::equal(decision->shares, present)) return std::nullopt;
  quiet_calls_ = 0;
  return decision;
}

// Empty: nothing forces a change.
std::string BatchRule::WhyForced(std::span<const Asked> workers,
                                 std::span<const ShareOf> present) const {
  if (workers.empty() && present.empty()) return "";
  if (present.empty()) return "the first shares of " + std::to_string(workers.size()) + " workers";
  const std::vector<Rank> now = RanksOf(workers), before = RanksOf(present);
  const std::vector<Rank> come = Without(now, before), gone = Without(before, now);
  std::string why;
  if (!come.empty()) why = words::Ranks(come) + Has(come) + "come";
  if (!gone.empty()) why += (why.empty() ? "" : ", ") + words::Ranks(gone) + Has(gone) + "gone";
  if (!why.empty()) return why;
  std::vector<Rank> limited;
  auto last = asked_.begin();
  for (std::size_t i = 0; i < workers.size(); ++i) {
    while (last != asked_.end() && last->rank < workers[i].rank) ++last;
    const bool same =
        last == asked_.end() || last->rank != workers[i].rank || last->limit == workers[i].limit;
    const bool fits = workers[i].limit == 0 || present[i].samples <= workers[i].limit;
    if (!same || !fits) limited.push_back(workers[i].rank);
  }
  if (limited.empty()) return "";
  return words::Ranks(limited) + Has(limited) + "another limit";
}

// A share at most doubles from what was measured: a line through noisy points says little far away.
BatchRule::Loads BatchRule::Bounded(const Loads& loads, const Counts& present) const {
  Loads bounded = loads;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    const auto measured = static_cast<std::int64_t>(loads[i].cost->most_measured());
    const std::int64_t multiples = (std::max(2 * measured, present[i]) - 1) / options_.multiple + 1;
    const std::int64_t most = multiples * options_.multiple;
    bounded[i].limit = loads[i].limit == 0 ? most : std::min(loads[i].limit, most);
  }
  return bounded;
}

// The gain is that of the best division; a bounded one is the way there.
std::optional<BatchRule::Decision> BatchRule::Rebalance(const Loads& loads,
                                                        const Counts& present) const {
  if (loads.empty()) return std::nullopt;
  const double now = LongestOf(loads, present);
  const Counts best = DivideBatch(options_.batch, options_.multiple, loads);
  const double doubt = Doubt(loads.size()) * ErrorOfGain(loads, SlowestOf(loads, present), best);
  const double gain = now / LongestOf(loads, best) - 1;
  if (gain <= std::max(options_.rebalance_min, doubt)) return std::nullopt;
  const Counts next = DivideBatch(options_.batch, options_.multiple, Bounded(loads, present));
  const double then = LongestOf(loads, next);
  if (then >= now) return std::nullopt;
  return Decision{SharesOf(loads, next), WhyRebalanced(loads, present, next, now, then)};
}

// A probe lasts for one step: the shares are the former ones again, or better ones if there are.
std::optional<BatchRule::Decision> BatchRule::EndProbe(const Loads& loads,
                                                       std::span<const ShareOf> present) {
  const std::vector<ShareOf> before = std::exchange(before_probe_, {});
  if (std::ranges::equal(before, present)) return std::nullopt;  // the probe did not take place
  if (AllMeasured(loads)) {
    if (auto better = Rebalance(loads, CountsOf(before))) {
      probe_interval_ = kProbeInterval;
      return better;
    }
  }
  probe_interval_ = std::min(2 * probe_interval_, kMostProbeInterval);
  return Decision{before, "probe: " + RankName(probed_) + " has its former share again"};
}

// How many samples to try: what the worker would do in kProbeLength times the length of a step, at
// most the mean share. 0: no probe is of use.
std::int64_t BatchRule::ProbeShare(const Loads& loads, const Counts& present,
                                   std::size_t index) const {
  const StepCost& cost = *loads[index].cost;
  const std::int64_t workers = static_cast<std::int64_t>(loads.size());
  const std::int64_t samples = present[index];
  if (samples * kSmallShare * workers >= options_.batch) return 0;
  if (kSampledPart * cost.fixed() <= static_cast<double>(samples)) return 0;
  const double time = kProbeLength * LongestOf(loads, present);
  std::int64_t most = options_.batch / workers;
  if (loads[index].limit > 0) most = std::min(most, loads[index].limit);
  most = std::min(most, static_cast<std::int64_t>(
                            std::max(0.0, std::min(time / cost.scale() - cost.fixed(), 1e15))));
  if (most > options_.multiple) most -= most % options_.multiple;
  return most >= 2 * samples ? most : 0;
}

std::optional<BatchRule::Decision> BatchRule::Probe(const Loads& loads, const Counts& present) {
  if (quiet_calls_ < probe_interval_) return std::nullopt;
  const auto first = std::upper_bound(loads.begin(), loads.end(), probed_,
                                      [](Rank rank, const WorkerLoad& l) { return rank < l.rank; });
  const std::size_t begin = static_cast<std::size_t>(first - loads.begin());
  for (std::size_t k = 0; k < loads.size(); ++k) {
    const std::size_t index = (begin + k) % loads.size();
    const std::int64_t samples = ProbeShare(loads, present, index);
    if (samples == 0) continue;
    Loads others = loads;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(index));
    Counts shares = DivideBatch(options_.batch - samples, options_.multiple, others);
    shares.insert(shares.begin() + static_cast<std::ptrdiff_t>(index), samples);
    probed_ = loads[index].rank;
    before_probe_ = SharesOf(loads, present);
    return Decision{SharesOf(loads, shares),
                    "probe: " + RankName(probed_) + " has " + std::to_string(samples) +
                        " samples for one step instead of " + std::to_string(present[index])};
  }
  quiet_calls_ = 0;
  return std::nullopt;
}

void BatchRule::Archive(StateArchive& ar) {
  ar(costs_, asked_, quiet_calls_, probe_interval_, probed_, before_probe_);
}

}  // namespace prd
