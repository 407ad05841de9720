// Which communicators a worker wants, when it tries to make one, and which one goes for it.
//
// The members of kInitial, kAverage and kRound want one at once, as a cover: it serves groups of
// some of its members, which may have other leaders than the cover. A cover grows by the members
// that its groups bring. Of a broken one, the surviving member with the lowest rank wants another,
// without the members that are gone. The members of a kTrain want one when their group has recurred
// (`recurs`). Attempts that fail put off the next one, by a number of groups that doubles.
//
// The score of a set of members is the number of its groups, halved every kHalfLife group ids. At
// the limit the communicator of the lowest score goes, if the new one's score is twice as high; of
// equal scores the one whose newest group is older. All members of a set are in all its groups, so
// they have the same scores, and give up in the same order.
//
// Not thread safe.
#ifndef PRD_WORKER_DEVICE_COMM_DEMAND_H_
#define PRD_WORKER_DEVICE_COMM_DEMAND_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "common/base/messages.h"
#include "worker/device/comm_table.h"

namespace prd {

class CommDemand {
 public:
  static constexpr GroupId kHalfLife = 4096;
  // So many sets of members are remembered. To forget one costs only time.
  static constexpr std::size_t kMaxSets = 1024;

  // *comms must outlive it.
  CommDemand(const CommTable* comms, std::uint32_t recurs, std::size_t max_members)
      : comms_(comms), recurs_(recurs), max_members_(max_members) {}

  // Forgets everything.
  void Join(Incarnation self);

  // A group is over here; before Succeeded.
  void GroupEnded();
  // Its members' score rises, and that of the cover that it used, if `used` is not null.
  void Succeeded(const Group& group, const CommSet& set, const Communicator* used);
  // It has no device, or no NCCL.
  void HasNoDevice(Incarnation member) { no_device_.insert(member); }

  // The cover that this worker is to propose now.
  std::optional<CommSet> DueCover();
  // After a group of these: whether this worker is to propose one of just them now.
  bool RecursEnough(const CommSet& set);

  // An attempt to make one of these comes to nothing. `soon`: nothing speaks against another after
  // the next group; at once, if it is of another set now.
  void Failed(const CommSet& set, bool cover, bool soon);
  void Made(const CommSet& set);
  // `gone`: members of it, if that is why.
  void Broke(const Communicator& comm, const CommSet& gone);

  // There is no room for one of this set, as of this group: the one that is to go; nullopt: none.
  std::optional<CommId> Replaceable(const CommSet& set, bool cover, GroupId group) const;

 private:
  struct Attempts {
    std::uint32_t failed = 0;  // in a row
    std::uint32_t wait = 0;    // groups until the next
    void Fail();
  };
  struct History {
    std::uint64_t groups = 0;
    double score = 0;
    GroupId at = kNoGroup;  // its newest group, which the score is of
    Attempts attempts{};
  };
  struct Wish {
    CommSet set;
    Attempts attempts{};
  };

  GroupId NewestOf(const CommSet& set) const;
  double ScoreAt(const CommSet& set, GroupId group) const;
  History* Count(const CommSet& set, GroupId group);
  CommSet WithDevices(const CommSet& set) const;
  void WantCover(const CommSet& set);

  const CommTable* comms_;
  const std::uint32_t recurs_;
  const std::size_t max_members_;
  Incarnation self_ = 0;
  std::map<CommSet, History> sets_;
  std::optional<Wish> wish_;  // a cover
  std::set<Incarnation> no_device_;
};

}  // namespace prd

#endif  // PRD_WORKER_DEVICE_COMM_DEMAND_H_
