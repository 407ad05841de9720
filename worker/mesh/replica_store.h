// The replica as the two threads of a session share it.
#ifndef PRD_WORKER_MESH_REPLICA_STORE_H_
#define PRD_WORKER_MESH_REPLICA_STORE_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "prd/status.h"
#include "worker/memory/layout.h"
#include "worker/memory/memory.h"
#include "worker/mesh/copied_rows.h"
#include "worker/mesh/replica_state.h"

namespace prd {

struct ReplicaStore {
  // Held by the thread that writes the parameters or the fields below: the caller's around `apply`,
  // the background thread around a commit. All of them change under one lock, so its holder sees
  // the replica between two steps.
  std::mutex mutex;
  // Written under the mutex; atomic so that the caller may ask for it at any time, in `apply` too.
  std::atomic<Iteration> iteration = 0;
  // Where the tensors and all rows below are, but for Memory::rows_on_host. Set with parameters and
  // gradients.
  std::unique_ptr<Memory> memory = std::make_unique<HostMemory>();
  // The initial model as a row of bytes; empty when it is not kept.
  Row initial;

  // Rows of bytes besides the parameters, by the plan; a row that is not needed stays empty.
  // TrainsInRounds and AveragesInBackground need two, outbox and inbox; Payload::kChange the base,
  // and an outbox of what is small, or on a device; StorePlan the base (and shards.h); the others
  // none.
  //
  // What this worker contributes to a reduction that is not the parameters or gradients themselves.
  // The background thread's alone. TrainsInRounds: the sum of its gradients in no round yet, while
  // `owes`. Payload::kChange, where the parameters are not replaced in place: parameters - base,
  // while a round runs, and in place of it the mean.
  // AveragesInBackground: the virtual replica of the reduction's start, and in place of it average
  // - outbox; while `owes`, which ends when the replica is replaced. It becomes the inbox, or is
  // added to it.
  Row outbox;
  bool owes = false;
  // Until when a device writes what is to be contributed, where the outbox is in host memory.
  std::shared_ptr<Transfer> outbox_written;

  // What has come, and no parameters have yet.
  struct Inbox {
    // TrainsInRounds: the results of so many rounds that `apply` has not seen, as a sum (or the
    // newest alone, GroupPlan::newest_only). With it, the replica is that of round `iteration`.
    // AveragesInBackground: the sum of (average - outbox) of so many groups that the parameters
    // have not been given. With it, they are the virtual replica, `gain` iterations ahead. The row
    // is made when it is needed; on a device also a second one, where a reduction begins before the
    // parameters have been given what came of the one before.
    Row row;
    // Atomic, for TrainsInRounds: the caller takes the inbox and clears this last. The background
    // thread alone fills it, and need not wait for the mutex to know that it is empty.
    std::atomic<std::int64_t> rounds = 0;
    Iteration iteration = 0;
    Iteration gain = 0;
  } inbox;

  // On a host a reduction of AveragesInBackground folds the inbox: parameters + inbox take its
  // place, are contributed, and are replaced by the average. When the reduction is over, also if it
  // fails, what is there less the parameters of its start is the inbox.
  struct Fold {
    bool there = false;
    Row before;  // the parameters of the reduction's start, from when they change
    // The reduction may still write. Only the background thread writes this.
    std::atomic<bool> open = false;
  } fold;
  // TrainsInRounds, on a host: what a round's result comes to. It is the inbox's own row where the
  // inbox is empty, and becomes the inbox then. The background thread's alone.
  Row arriving;
  bool background = false;  // AveragesInBackground
  // The call returned before its reduction had ended; a device's stream waits for that instead.
  // Until the caller is back, no other group reads or writes the parameters.
  std::atomic<bool> away = false;
  // A reduction writes its result over the parameters, part by part: nobody may copy them. The
  // background thread's alone.
  bool landing = false;
  // A peer's replica is replacing the one here, part by part, or has failed to: until all has come,
  // parameters and state are a part of each. Nobody copies them, and no group takes them in. The
  // background thread's alone.
  bool torn = false;
  Status Whole() const;  // ok, or an error that tells the caller what torn means
  // Gradients that are averaged in place, or parameters whose changes are: the cells (reduction.h)
  // that are what a group for `iteration`, which failed, was to make of them. Until the call ends.
  // The background thread's, and the caller's as a call begins.
  struct Averaged {
    std::vector<bool> cells;
    Iteration iteration = 0;
  } partly_averaged;
  // The program may add to gradients that a group has had (SessionOptions::accumulates, in a job
  // with a batch): they stay as they are until a group has succeeded. Set before Prepare.
  bool keeps_gradients = false;
  // Payload::kChange: the parameters as after the round `iteration` (w_t of ESync, Algorithm 1).
  // HasStore: the parameters as they were read last, without this worker's own update. A peer
  // that copies the replica gets the base.
  Row base;

  // What peers copy, from where it stands in parameters, base, initial and kept state. All that
  // writes these calls AboutToChange before.
  StandingRows standing;

  AveragedState averaged;  // in `parameters`
  KeptState kept;

  // The tensors are these from now on, and their averaged state is taken. The background thread, in
  // no run, while the caller waits; after UseMemory; without the mutex.
  void SetTensors(const std::vector<Tensor>& model, const std::vector<Tensor>& model_gradients,
                  const std::vector<StateTensor>& state);
  // Others of the same shapes, which hold no gradients yet. The background thread, while the caller
  // waits; without the mutex.
  void SetGradients(const std::vector<Tensor>& model_gradients);
  // What belongs to state, as a call begins and ends. REQUIRES: mutex is held by the caller's
  // thread.
  void BeginCall(bool step);
  void EndCall();
  // kept.lent ends. The background thread, while the caller waits; without the mutex.
  void GiveBack();
  // Before the replica changes, or the tensors are no longer to be read. REQUIRES: mutex is held.
  void AboutToChange() {
    standing.CopyRest();
    if (fold.there) KeepBefore();
  }
  // Averaged state, from the caller's tensors to the shadow; at a step's beginning, perhaps later.
  // And back, if the shadow is newer. REQUIRES: mutex is held; the caller's thread, or it waits.
  void TakeAveraged(bool step_begins = false);
  void GiveAveraged();
  // `apply` is to run. REQUIRES: mutex is held.
  void BeforeApply() {
    AboutToChange();
    GiveAveraged();
  }
  // What a group reduces that begins a run: parameters, and what is kept with them.
  const Layout* BeginsWith() const { return kept.bytes() == 0 ? &parameters : &whole; }

  // Bytes of the row that the results of training's groups come to in host memory. 0: there are no
  // such groups, or their results take the place of what was contributed.
  std::size_t TrainingRow(const Plan& plan) const;
  // Whether a worker that trains keeps a row for the outbox; and whether groups of training reduce
  // that row from host memory, though the replica is on a device.
  bool KeepsOutbox(const Plan& plan) const;
  bool ContributesFromHost(const Plan& plan) const {
    return memory->rows_on_host() && TrainsInGroups(plan) && KeepsOutbox(plan);
  }
  // Bytes of all rows of a worker that trains, where they are; of hop and ssp without what they
  // exchange. Where the averages of AveragesInBackground overlap, they need another one.
  struct RowBytes {
    std::size_t host = 0;
    std::size_t device = 0;
  };
  RowBytes TrainingBytes(const Plan& plan) const;
  // Bytes of the longest row that a group reduces.
  std::size_t LongestRow() const {
    return std::max({BeginsWith()->bytes(), parameters.bytes(), gradients.bytes()});
  }

  // The rows are there from now on, and empty. The background thread, in no run; not with the
  // mutex.
  void UseMemory(std::unique_ptr<Memory> other);
  // Sizes the rows for jobs of this plan, all empty, and frees those it has no use for. The
  // background thread, without the mutex.
  void Prepare(const Plan& plan);
  // Forgets what outbox and inbox hold. The background thread. REQUIRES: mutex is held.
  void Empty();
  // Makes room for a round's result, in `arriving`. The background thread, without the mutex.
  std::byte* MakeRoom();
  // The result of a round, in `arriving`, becomes the inbox or is added to it, as by AddToInbox.
  // Where it is from now on, until MakeRoom or AddToInbox. REQUIRES: mutex is held.
  const std::byte* LandArriving(Iteration round, bool latest_only);
  // Adds the gradients to the outbox. The background thread, while the caller waits in Step.
  void Deposit();
  // Moves the inbox into the gradients and empties it; false when it is empty. REQUIRES: mutex is
  // held; the gradients are not in use.
  bool TakeInbox();
  // Adds the inbox to the parameters and its gain to the iteration, and empties it. Returns its
  // rounds; 0 but under AveragesInBackground; nullopt: not while a reduction has folded it.
  // REQUIRES: mutex is held by the caller's thread.
  std::optional<std::int64_t> AddInbox();

  // For a mesh, on the background thread. REQUIRES: mutex is held (TakeDifference: or the caller
  // waits).
  //
  // Adds a round's result, a row, to the inbox, or lets it replace what is there if it is newer.
  void AddToInbox(const Memory::Place& result, Iteration round, bool latest_only);
  // outbox = parameters - base. REQUIRES: base is set.
  void TakeDifference();
  // base += share * mean, and the parameters become equal to it. REQUIRES: base is set.
  void AddToBase(const Memory::Place& mean, double share);
  // base = parameters. What has landed in them is a part of both.
  void SetBase();
  // delta = share * (parameters - base), a row. REQUIRES: base is set.
  std::shared_ptr<Transfer> TakeDelta(double share, const Memory::Place& delta) const;
  // parameters = own_weight * parameters + sum of weight * row, as a reduction adds: in this order,
  // with weights rounded together.
  struct Weighted {
    Memory::Place row;
    double weight;
  };
  void Mix(double own_weight, std::span<const Weighted> others);
  // The parameters become the row, or its sum with the initial model's share. After kInitial,
  // kFinal and a copied replica, the caller sets the other rows.
  void SetParameters(const Memory::Place& row, Weight initial_share = {0, 0});
  // The same, where the parameters have been written already.
  void ReplacedParameters();
  // Parameters and kept state become the row.
  void SetWhole(const Memory::Place& row);
  // initial = parameters.
  void KeepInitial();
  // What peers that copy the replica get as its parameters: `row` = the base, if the plan has one;
  // parameters + inbox under AveragesInBackground; else the parameters.
  std::shared_ptr<Transfer> ReadShared(const Memory::Place& row) const;
  // Where that stands; nullopt: it is a sum.
  std::optional<Memory::Place> SharedPlace() const;
  // AveragesInBackground: `row`, or what is contributed, = parameters + inbox.
  std::shared_ptr<Transfer> ReadVirtual(const Memory::Place& row) const;
  void TakeVirtual();
  // The row of what is contributed, if that is none of the caller's.
  std::byte* contributed() { return (fold.there ? inbox.row : outbox).data(); }
  // outbox = average - outbox. The average is a row and the initial model's share.
  void TakeChange(const Memory::Place& average, Weight initial_share);
  // inbox += outbox, which has average - outbox and is worth `gain` iterations. Groups that add
  // their changes one after another give what they would give in place. A folded inbox, which is
  // the average, is unfolded. REQUIRES: owes.
  void LandChange(Iteration gain);
  // The inbox is an inbox again, once no reduction writes to it. REQUIRES: mutex is held.
  void Unfold();

  void SwapBoxes();
  void KeepBefore();

  // The memory of the tensors is the caller's, but for the shadow.
  Layout parameters;  // averaged state included
  Layout gradients;   // empty when there are none
  Layout trained;     // the parameters without state
  Layout whole;       // parameters, then kept; where there is kept state
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_REPLICA_STORE_H_
