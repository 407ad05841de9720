// The communicators that one worker has: those that are being made, those that groups use, and
// those that are over and not aborted yet. Says which of them serve a group. Not thread safe.
#ifndef PRD_WORKER_DEVICE_COMM_TABLE_H_
#define PRD_WORKER_DEVICE_COMM_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "worker/device/comm_message.h"
#include "worker/device/gpu.h"

namespace prd {

using CommSet = std::vector<Incarnation>;  // members by rank, ascending

CommSet SetOf(const std::vector<GroupMember>& members);

struct Communicator {
  enum class State : std::uint8_t {
    kProposed,  // its leader: answers are awaited; others: accepted
    kMaking,    // CommInit has been called
    kReady,     // here
  };
  CommId id;
  CommSet set;
  std::vector<GroupMember> members{};  // the same
  std::map<Incarnation, int> rank_of{};
  bool cover = false;
  State state = State::kProposed;
  bool usable = false;  // all are ready, for groups after:
  GroupId after = kNoGroup;
  bool leads = true;     // false: no further group is led on it here
  bool retired = false;  // goes when nothing uses it any more
  bool asked = false;    // its leader was asked to retire it
  bool broken = false;
  std::string why{};
  std::set<Incarnation> quit{};  // a cover: members that lead no further group on it
  Instant check_at;              // of a cover that is given up: to be over; of others: its leader
                                 // is asked whether it has it still
  Gpu::Comm comm = nullptr;
  int held = 0;

  Incarnation leader() const { return set.front(); }
  bool over() const { return broken || retired; }
  bool Has(Incarnation member) const { return rank_of.contains(member); }
  bool HasAll(const CommSet& all) const;
  // Whether a group of these members may be reduced on it.
  bool Serves(const CommSet& group) const { return cover ? HasAll(group) : set == group; }
};

class CommTable {
 public:
  // `gpu` may be null where none is added.
  explicit CommTable(Gpu* gpu) : gpu_(gpu) {}
  ~CommTable() { Clear(); }
  CommTable(const CommTable&) = delete;
  CommTable& operator=(const CommTable&) = delete;

  // Aborts all.
  void Clear();
  Communicator* Add(Communicator comm);
  // Aborts it, and forgets it.
  void Abort(CommId id);

  // Null: it is not here (any more). Live: nor if it is broken.
  const Communicator* Find(CommId id) const;
  const Communicator* Live(CommId id) const;
  Communicator* Find(CommId id) { return const_cast<Communicator*>(std::as_const(*this).Find(id)); }
  Communicator* Live(CommId id) { return const_cast<Communicator*>(std::as_const(*this).Live(id)); }

  const std::map<CommId, Communicator>& all() const { return comms_; }
  // In the order of ids. `visit` may abort the one that it gets.
  template <typename Visit>
  void ForEach(Visit visit) {
    for (auto at = comms_.begin(); at != comms_.end();) visit(&(at++)->second);
  }

  // Whether one of just these is here, or a cover of them, or either is on its way.
  bool HasLive(const CommSet& set) const;
  bool HasCover(const CommSet& set) const;
  // The usable cover that has most members, or null.
  const Communicator* LargestCover() const;
  // A member of any of them, or null.
  const GroupMember* Member(Incarnation member) const;
  // Ids and members of those that are usable.
  std::map<CommId, CommSet> Usable() const;
  // All members but this one. The version changes when they do.
  std::vector<GroupMember> Peers(Incarnation self) const;
  std::uint64_t peers_version() const { return peers_version_; }

 private:
  Gpu* gpu_;
  std::map<CommId, Communicator> comms_;
  std::uint64_t peers_version_ = 0;
};

}  // namespace prd

#endif  // PRD_WORKER_DEVICE_COMM_TABLE_H_
