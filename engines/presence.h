// Which workers are here, over all runs, and how many of them each identity has. Not thread safe.
#ifndef PRD_ENGINES_PRESENCE_H_
#define PRD_ENGINES_PRESENCE_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"

namespace prd {

class Presence {
 public:
  // Resources used by one identity.
  struct Share {
    std::int64_t workers = 0;
    std::map<RunId, std::int64_t> runs;  // to its workers there
  };

  // Adding again what is here, and removing what is not, does nothing. The identity may be empty.
  void Add(RunId run, Incarnation incarnation, const std::string& identity);
  void Remove(RunId run, Incarnation incarnation);

  // nullptr: nothing. The identity has a name.
  const Share* ShareOf(const std::string& identity) const;
  // A worker of this identity, in any run.
  bool IsHere(Incarnation incarnation, const std::string& identity) const;
  // Ascending.
  std::vector<RunId> RunsOf(Incarnation incarnation) const;

 private:
  // To the identity that the incarnation joined as. A process may be in several runs.
  std::map<std::pair<Incarnation, RunId>, std::string> here_;
  std::map<std::string, Share> shares_;  // by identity; none of those without a name
};

}  // namespace prd

#endif  // PRD_ENGINES_PRESENCE_H_
