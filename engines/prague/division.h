// Random groups: what Prague's Group Generator draws. Functions of their arguments and the random
// bits alone.
#ifndef PRD_ENGINES_PRAGUE_DIVISION_H_
#define PRD_ENGINES_PRAGUE_DIVISION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "common/base/ids.h"
#include "common/base/prng.h"
#include "engines/links.h"

namespace prd {

// `size` distinct of these, `caller` among them, each such set equally likely (section 4.1): one
// random group. All of them if there are no more. O(size). REQUIRES: size >= 1; `ranks` ascending,
// the caller among them.
std::vector<Rank> RandomGroup(Prng* random, const std::vector<Rank>& ranks, Rank caller,
                              std::size_t size);

// As RandomGroup, but of workers that reach each other, and fewer where no more can be added. O(n).
std::vector<Rank> RandomGroupAround(Prng* random, const std::vector<Rank>& ranks, Rank caller,
                                    std::size_t size, const BrokenLinks& broken);

// Takes out of each group those that do not reach all before them in it, and puts each into the
// smallest group that it reaches all of. Who finds none is in no group any more, and nor is who is
// left alone.
void Part(std::vector<std::vector<Rank>>* groups, const BrokenLinks& broken);

// Partitions these into floor(n / size) random groups, at least one, whose sizes differ by one at
// most (section 5.1, Global Division). O(n). REQUIRES: size >= 1, ranks not empty.
std::vector<std::vector<Rank>> RandomDivision(Prng* random, std::vector<Rank> ranks,
                                              std::size_t size);

// The groups of the two phases of section 5.2, in this order, for workers on several hosts.
// No group has a single member; a worker left over is in one group instead of two.
struct InterIntraGroups {
  // A random worker of each host is its head; the heads are divided among each other.
  std::vector<std::vector<Rank>> heads;
  std::vector<std::vector<Rank>> others;  // the rest of each host, divided within it
  std::vector<std::vector<Rank>> intra;   // all of a host together
};
// O(n log n). REQUIRES: size >= 2, workers on two hosts or more.
InterIntraGroups InterIntraDivision(Prng* random, const std::vector<Rank>& ranks,
                                    const std::function<std::int32_t(Rank)>& host_of,
                                    std::size_t size);

}  // namespace prd

#endif  // PRD_ENGINES_PRAGUE_DIVISION_H_
