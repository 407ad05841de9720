// One run of real meshes: its workers, and what is known of each beside its mesh. The laws are in
// mesh_run.h. Everything that a worker's mesh says comes to the run, which does what a controller,
// a training loop and faults would do.
#ifndef PRD_TOOLS_SIM_MESH_WORLD_H_
#define PRD_TOOLS_SIM_MESH_WORLD_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/prng.h"
#include "tools/sim/group_sums.h"
#include "tools/sim/mesh_run.h"
#include "tools/sim/mesh_setting.h"
#include "tools/sim/mesh_values.h"
#include "tools/sim/network.h"
#include "tools/sim/sim_device.h"
#include "worker/mesh/mesh.h"

namespace prd::sim::mesh {

inline constexpr DurationNs kLease = kSecond;
inline constexpr DurationNs kFaults = 6 * kSecond;    // from the beginning
inline constexpr DurationNs kSettles = 12 * kSecond;  // after that
inline constexpr RunId kRun = 7;
inline constexpr int kMostTries = 6;  // of one group

struct Dated {
  Instant since;
  Version version;
};

struct Taking {  // one member's part in a group
  std::size_t worker = 0;
  std::uint64_t life = 0;
  double weight = 0;
  bool begun = false;
  std::optional<std::vector<double>> gave;
  Bytes before;                                   // where the result goes
  std::optional<std::vector<double>> was, holds;  // as Part
  bool landed = false;
  bool over = false;
  bool ok = false;
};
struct Formed {
  Group group;
  std::vector<Taking> members;
  std::optional<Bytes> result;  // of the first that has it, where all have the same
  bool tried_again = false;
  int tries = 1;
};

struct Copying {
  std::size_t source = 0;
  std::uint64_t life = 0;
  Instant since;
  GroupId result = kNoGroup;
  bool in_place = false;
};
struct Pulling {
  std::size_t from = 0;
  std::uint64_t life = 0;
  Iteration stamp = 0;
  Instant since;
};

class MeshRun;

struct Worker : public MeshEvents {
  MeshRun* run = nullptr;
  std::size_t number = 0;
  std::size_t host = 0;
  std::uint64_t life = 0;
  Incarnation incarnation = 0;
  SimNetwork::Process process = 0;
  Tensors parameters, gradients, kept;
  std::unique_ptr<ReplicaStore> store;
  SimDevice* device = nullptr;  // null: in host memory
  std::unique_ptr<Mesh> mesh;   // null: dead
  bool started = false;         // has a replica of the run
  bool applying = false;
  bool woken = false;
  bool ends = false;  // its session has: it is served no more
  Instant frozen_until;
  std::optional<GroupId> reserved;  // is to begin it, or has
  bool reducing = false;
  std::optional<Copying> copying;
  std::optional<Copying> sampling;
  std::vector<Dated> versions;
  std::set<Incarnation> probing;
  std::map<Iteration, Bytes> published;
  Iteration newest = 0;  // published
  std::map<Ticket, Pulling> pulls;
  Ticket tickets = 0;
  std::vector<double> inbox;  // what is to be there, of rounds
  std::vector<double> inbox_size;
  GroupId offered_to = 0;         // whose gradients, or changes, are there
  std::optional<Alarm> deadline;  // of its mesh

  void OnReduced(GroupId group, const Status& status, std::uint64_t sent,
                 const std::vector<Rank>& unreachable, std::uint64_t digest) override;
  void OnFetched(const Status& status, Iteration iteration) override;
  void OnSampled(const Status& status, const std::shared_ptr<Buffer>& row) override;
  void OnProbed(Rank rank, Incarnation of) override;
  void OnRequest(Incarnation from, Request request, const PeerItem& parcel) override;
  void OnPulled(Ticket ticket, const Status& status, const ShardHeader& header) override;
  void OnIntruder(const std::string& what) override;
};

class MeshRun {
 public:
  explicit MeshRun(const MeshRunOptions& options)
      : options_(options),
        prng_(Mixed(options.seed)),
        setting_(Draw(&prng_)),
        network_(prng_.Next(), setting_.network),
        end_of_faults_(network_.now() + kFaults) {}
  ~MeshRun() {
    for (Worker& worker : workers_) Unlock(&worker);
  }
  MeshRunResult Run();

 private:
  friend struct Worker;

  // ---- workers ----

  void Go();
  void Start(Worker* worker);
  void UseDevice(Worker* worker);
  // The controller's word, which takes its time.
  void Tell(Worker* to, const GroupMember& member);
  void Kill(Worker* worker);
  void EndSoon(Worker* worker);
  // All members have begun it: those that are left notice soon.
  void WatchPrompt(GroupId id, std::size_t killed);
  // All are neighbours.
  void Meet(Worker* worker);
  void Tally(Worker* worker);
  GroupMember MemberOf(const Worker& worker) const;
  bool Lives(const GroupMember& member) const;
  Worker* Find(Incarnation incarnation);

  // ---- time ----

  void After(DurationNs delay, std::function<void()> what) {
    network_.At(network_.now() + delay, std::move(what));
  }
  DurationNs DelayNs(double most) { return static_cast<DurationNs>(prng_.Unit() * most); }
  void Wake(Worker* worker);
  void Serve(Worker* worker);

  // ---- what goes wrong ----

  bool FaultsOn() const { return network_.now() < end_of_faults_; }
  void Disturb(std::size_t worker, DurationNs time) {
    for (std::size_t other = 0; other < workers_.size(); ++other) Disturb(worker, other, time);
  }
  void Disturb(std::size_t a, std::size_t b, DurationNs time);
  // nullptr: the one that is drawn is dead.
  Worker* Any();
  void DoFault();
  void ScheduleFaults();

  // ---- what is done ----

  void ScheduleActions();
  void Act();
  void DoSomething();
  // What the replica's memory is asked for so far is done, as the caller's stream waits for it.
  static void Settle(const Worker& worker) {
    if (worker.device != nullptr) worker.device->Settle();
  }
  static void MayFail(const Worker& worker, bool may) {
    if (worker.device != nullptr) worker.device->MayFail(may);
  }
  // Its session is about to end: what it says of its replica counts no more.
  static bool Failed(const Worker& worker) {
    return worker.device != nullptr && !worker.device->failure().ok();
  }
  // As Failed; if not, all is done, and nothing fails while somebody looks.
  static bool Lost(const Worker& worker) {
    MayFail(worker, false);
    Settle(worker);
    return Failed(worker);
  }
  void Refill(Tensors* tensors, std::size_t from = 0, std::size_t to = ~std::size_t{0});
  // Whether a group reads or writes the parameters while it runs.
  bool InPlace() const { return !AveragesInBackground(setting_.plan); }
  // The caller's `apply`: half of the replica, and after a while the rest.
  void ForgetChanges(Worker* worker);
  void BeginApply(Worker* worker);
  void EndApply(Worker* worker);
  static void Unlock(Worker* worker) {
    if (std::exchange(worker->applying, false)) worker->store->mutex.unlock();
  }

  // ---- versions ----

  void SetVersion(Worker* worker);
  // One of the source's that was there at `since` or later.
  bool IsVersion(const Worker& source, Instant since,
                 const std::function<bool(const Version&)>& is) const;

  // ---- copies ----

  void Fetch(Worker* worker);
  void Order(Worker* source, const GroupMember& taker);
  void TakeOrder(const Worker& source, const Worker& taker);
  void Sample(Worker* worker, Worker* source = nullptr);
  void OnFetched(Worker* worker, const Status& status, Iteration iteration);
  void OnSampled(Worker* worker, const Status& status, const std::shared_ptr<Buffer>& row);

  // ---- questions ----

  void Probe(Worker* worker);
  void OnProbed(Worker* worker, Rank rank, Incarnation of);

  // ---- updates of neighbours ----

  void Exchange(Worker* worker);
  void OnRequest(Worker* worker, Incarnation from, Request request, const PeerItem& parcel);
  void OnPulled(Worker* worker, Ticket ticket, const Status& status, const ShardHeader& header);
  void Mix(Worker* worker, Ticket ticket, const std::optional<Bytes>& update);

  // ---- groups ----

  Formed& FormedOf(GroupId id) { return formed_[id]; }
  void MakeInitial();
  void MakeGroup();
  // Its members have the same gradients to average, where none has a result of all of them.
  void TryAgain(GroupId id);
  double DrawWeight(bool nulls);
  void Join(Formed* formed, Worker* worker, double weight);
  void Launch(Formed formed);
  void Begin(GroupId id, std::size_t index);
  const Layout& ShapeOf(const Worker& worker, GroupKind kind) const;
  // What the result changes.
  Bytes LandingOf(const Worker& worker, GroupKind kind) const;
  // A virtual replica is taken as soon as the caller is not in `apply`.
  void NoteVirtual(Worker* worker);
  void EndMember(Worker* worker);
  void OnReduced(Worker* worker, GroupId id, const Status& status,
                 const std::vector<Rank>& unreachable);
  static void CheckHonest(Worker* worker, const Status& status);
  void CheckAccused(Worker* worker, std::size_t accused, GroupId id);
  bool NotesWhatLands() const;
  void AddBase(const std::vector<double>& base, std::vector<double>* sum,
               std::vector<double>* size) const;
  static std::vector<Part> PartsOf(const Formed& formed);
  Due SumOf(const Formed& formed) const;
  // As mesh::HoldToEarlier.
  void HoldToEarlier(const Formed& formed, const std::vector<double>& values,
                     const std::vector<double>& before, std::vector<double>* sum);
  void CheckResult(Worker* worker, Formed* formed, Taking* member);
  void CheckInbox(Worker* worker, const Formed& formed, const Taking& member,
                  const std::vector<double>& sum, const std::vector<double>& size,
                  const Bytes& after, double steps);
  void CheckNear(const char* law, Worker* worker, const Layout& layout, const Bytes& row,
                 const std::vector<double>& sum, const std::vector<double>& size, double steps,
                 bool exact) const;

  // ---- rounds ----

  void SetInbox(Worker* worker);
  void TakeInbox(Worker* worker);
  // A group that failed has changed nothing, or some elements where averages land in place.
  void CheckUntouched(Worker* worker, const Formed& formed, const Taking& member,
                      const std::string& why);
  // What a round that fails has not taken is owed still.
  void CheckOutbox(Worker* worker, const Formed& formed, const Taking& member) const;
  // What failed here, others may have.
  void FetchResult(Worker* worker, Formed* formed, bool contributed);
  void OnResultFetched(Worker* worker, const Copying& copying, const Status& status);

  // ---- the end ----

  void CheckAllOver();
  void Hash(const Bytes& bytes);
  static std::string Name(std::size_t worker) { return "worker " + std::to_string(worker); }
  void Say(const std::string& what) const;

  const MeshRunOptions& options_;
  Prng prng_;
  const Setting setting_;
  SimNetwork network_;
  const Instant end_of_faults_;
  std::vector<Worker> workers_;
  std::map<GroupId, Formed> formed_;
  std::map<std::pair<std::size_t, std::size_t>, Instant> disturbed_;
  std::map<std::pair<Incarnation, Incarnation>, std::int64_t>
      orders_;  // copies, by source and taker
  GroupId last_group_ = 0;
  Iteration rounds_ = 0;
  Incarnation incarnations_ = 0;
  std::map<Incarnation, Instant> killed_;
  bool last_ = false;
  MeshRunResult result_;
};

}  // namespace prd::sim::mesh

#endif  // PRD_TOOLS_SIM_MESH_WORLD_H_
