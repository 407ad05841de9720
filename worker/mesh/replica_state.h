// State of a replica beside its parameters (Replica::state), of two kinds.
//
// Parts of ReplicaStore, under its mutex and its rules.
#ifndef PRD_WORKER_MESH_REPLICA_STATE_H_
#define PRD_WORKER_MESH_REPLICA_STATE_H_

#include <atomic>
#include <cstddef>
#include <vector>

#include "worker/memory/layout.h"
#include "worker/memory/memory.h"

namespace prd {

// State that groups average is a part of the parameters, as it stands in a row of the store's own,
// the shadow: so all that is done to parameters is done to it. The caller's thread copies it there
// when a call begins and after `apply`, and back before `apply` and when a call ends; in between
// the tensors themselves are the caller's. Where a step averages before it applies, what the caller
// has written since the call before is added after the average, as gradients are: peers have got
// this worker's part already.
class AveragedState {
 public:
  // The tensors are these from now on. Gives them as they stand in the shadow.
  std::vector<Tensor> Set(Memory* memory, const std::vector<Tensor>& tensors);
  // The rows go.
  void Forget() {
    shadow_ = Row();
    given_ = Row();
  }
  // A step averages before it applies.
  void SetMixesFirst(bool mixes_first) { mixes_first_ = mixes_first; }
  std::size_t bytes() const { return tensors_.bytes(); }

  // From the caller's tensors to the shadow; at a step's beginning, perhaps later.
  void Take(Memory* memory, bool step_begins);
  // And back, if the shadow is newer. True: the caller's tensors have what the shadow lacks.
  bool Give(Memory* memory);
  // The parameters were written, or are about to be: the tensors do not have what the shadow has.
  // Any thread.
  void Written() { newer_ = true; }
  // They were replaced: what only the tensors have is void.
  void Replaced() {
    newer_ = true;
    caller_newer_ = false;
  }

 private:
  Layout tensors_;  // in the caller's memory
  Row shadow_;
  std::atomic<bool> newer_ = false;
  // The tensors have what the shadow does not have yet: what makes them differ from `given_`.
  bool caller_newer_ = false;
  Row given_;
  bool mixes_first_ = false;
};

// State that is not averaged is kept: it goes with copies of the replica. It is read and written in
// the caller's memory, while the caller is in a call. Between calls peers get a copy that the call
// before has made at its end. It does so for a while after a peer has asked; the first one waits
// for the next call. None of that is done where the program says that it changes kept state in
// `apply` alone.
class KeptState {
 public:
  // So many calls' ends leave a copy, once a peer has asked.
  static constexpr int kCopiesDue = 64;

  // The tensors are these from now on.
  void Set(const std::vector<Tensor>& tensors);
  // The copy goes.
  void Forget() { copy_ = Row(); }
  // It changes in `apply` and in the session's calls alone: it may be read at any time.
  void SetChangesInCalls(bool in_calls) { in_calls_ = in_calls; }
  const Layout& layout() const { return tensors_; }
  std::size_t bytes() const { return tensors_.bytes(); }
  bool changes_outside() const { return bytes() != 0 && !in_calls_; }

  // The copy of the end of the call before is too old.
  void BeginCall() { copied_ = false; }
  bool CopyIsDue() const { return changes_outside() && copies_due_ > 0; }
  // REQUIRES: CopyIsDue().
  void Copy(Memory* memory);
  // The ends of the next calls leave a copy.
  void LeaveCopies() { copies_due_ = kCopiesDue; }
  bool copied() const { return copied_; }
  bool holds_copy() const { return !copy_.empty(); }
  // Whether it can be copied now, with the parameters as they are, and from where. For a peer that
  // asks.
  bool CanBeCopied();
  Memory::Place Place() const { return lent || in_calls_ ? Memory::Tensors() : Memory::In(copy_); }

  // Whether the caller is in a call, or in its `apply`, with the mutex. The background thread's.
  bool lent = false;

 private:
  Layout tensors_;  // in the caller's memory
  bool in_calls_ = false;
  // Whether copy_ is what it was at the end of the call before, and so belongs to the parameters.
  // Made at the end of this many calls more.
  bool copied_ = false;
  int copies_due_ = 0;
  Row copy_;
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_REPLICA_STATE_H_
