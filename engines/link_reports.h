// What workers report about their links: a member that names another one as unreachable breaks
// their link, and probes the other until it answers. Not thread safe.
#ifndef PRD_ENGINES_LINK_REPORTS_H_
#define PRD_ENGINES_LINK_REPORTS_H_

#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "engines/group_table.h"
#include "engines/held_groups.h"
#include "engines/link_table.h"
#include "engines/run_context.h"

namespace prd {

// Reports return what is wrong with them, or empty.
class LinkReports {
 public:
  LinkReports(const RunContext& run, LinkTable* links, HeldGroups* held, const GroupTable* groups)
      : run_(run), links_(*links), held_(*held), groups_(*groups) {}

  // A report on no group. It names workers that this one does not reach, and with which it
  // exchanges, or draws groups itself. They may have gone since.
  std::string OnNoGroup(Rank rank, const Finished& finished);
  // A report on the group that the worker is in.
  std::string OnGroup(Rank rank, const Finished& finished);
  std::string OnProbed(Rank rank, const Probed& probed);
  // The worker could not copy the replica of `source`, which did not answer. It may have gone
  // since.
  void OnCopy(Rank rank, Rank source) { Break(rank, {source}, " to copy its replica"); }

  // The worker is new. If its rank was left apart, it is to probe the others.
  void Meet(Rank rank);
  // Hosts with a worker that does not reach one of another host: their workers are taken to reach
  // nobody outside until probes are answered. So one failed group is enough to know what is cut.
  void Survey();
  // The worker has gone, and is probed no more.
  void Forget(Rank rank);
  // Tells the engine of the broken links of a worker that has joined: to the engine all its links
  // work.
  void Tell(Rank rank);

 private:
  // False: all these links were broken already. `verb`, `where`: around the other's name.
  bool Break(Rank asks, const std::vector<Rank>& others, const std::string& where,
             const std::string& verb = " did not reach ");
  void Mend(Rank one, Rank other, const std::string& reason);
  void SendProbe(Rank rank);
  void ToEngine(Rank a, Rank b, bool works);

  const RunContext run_;
  LinkTable& links_;
  HeldGroups& held_;
  const GroupTable& groups_;
};

}  // namespace prd

#endif  // PRD_ENGINES_LINK_REPORTS_H_
