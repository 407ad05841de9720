// Whom the controller has announced to this worker in its run: who may turn to it, and whom it may
// turn to. Nobody else is answered or dialled, whatever a peer says.
#ifndef PRD_WORKER_MESH_DIRECTORY_H_
#define PRD_WORKER_MESH_DIRECTORY_H_

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "common/base/messages.h"
#include "worker/mesh/keys.h"

namespace prd {

class Directory {
 public:
  // Members that are out, and are remembered: the newest. Messages that name one may wait yet.
  static constexpr std::size_t kMaxOut = 4096;

  explicit Directory(MeshKeyPair own, SecretOf secret_of = SharedSecret)
      : own_(own), secret_of_(secret_of) {}

  // From now on this worker is this incarnation in this run; kNoRun: in none. Forgets everybody.
  void Join(Incarnation self, RunId run);

  // A member that the controller has announced just now, also if it was out before: the controller
  // may have admitted it again, whose Hello it had heard and who has not heard it. Its rank has no
  // other incarnation any more: the directory is never larger than the run. False: nothing is new.
  bool Announce(const GroupMember& member);
  // The same, unless its rank has another incarnation already, or it is out: what the controller
  // said before that is of no use any more.
  bool Meet(const GroupMember& member);
  // It is no member any more.
  void Remove(Incarnation member);
  bool IsOut(Incarnation peer) const { return out_.contains(peer); }

  // nullptr: not announced.
  const GroupMember* Find(Incarnation peer) const;
  // What this worker and the peer derive from their keys. nullptr: not announced, or without a key
  // that can be used.
  const PairKeys* KeysOf(Incarnation peer) const;
  // The peer with this key.
  std::optional<Incarnation> HolderOf(const MeshKey& key) const;
  // The incarnation that has this rank, as far as it was announced; 0: none.
  Incarnation HolderOf(Rank rank) const;

  std::size_t size() const { return entries_.size(); }
  const MeshKeyPair& own() const { return own_; }
  Incarnation self() const { return self_; }
  RunId run() const { return run_; }

 private:
  struct Entry {
    GroupMember member;
    mutable bool agreed = false;
    mutable std::optional<PairKeys> keys;  // once they have been asked for
  };

  MeshKeyPair own_;
  SecretOf secret_of_;
  Incarnation self_ = 0;
  RunId run_ = kNoRun;
  std::map<Incarnation, Entry> entries_;
  std::map<Rank, Incarnation> holders_;
  std::set<Incarnation> out_;
  std::deque<Incarnation> out_order_;  // the oldest in front
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_DIRECTORY_H_
