// Communicators of several workers over a network and a device that are values: everything that
// happens is one step that a test, or a seed, chooses.
#ifndef PRD_TESTS_WORKER_DEVICE_COMM_CLUSTER_H_
#define PRD_TESTS_WORKER_DEVICE_COMM_CLUSTER_H_

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/prng.h"
#include "worker/device/communicators.h"

namespace prd::testing {

// What the members of communicators share: who has called CommInit with which id.
struct FakeNccl {
  struct Rendezvous {
    int ranks = 0;
    std::set<int> joined;
    bool aborted = false;  // by a member, before all had joined
  };
  std::map<Gpu::UniqueId, Rendezvous> rendezvous;
  std::uint64_t ids = 0;
  int inits = 0;
  int aborts = 0;
};

// The calls about communicators; no other is made.
class FakeGpu : public Gpu {
 public:
  explicit FakeGpu(FakeNccl* nccl) : nccl_(nccl) {}

  Status nccl_status;      // not ok: NCCL is not there
  bool fail_next = false;  // the next CommInit fails
  bool hang_next = false;  // the next one never ends
  bool no_ids = false;     // MakeUniqueId fails
  int polls = 2;           // CommBusy, before it is ready
  std::size_t aborting_now = 0;
  std::size_t open() const { return comms_.size(); }

  Status nccl() const override { return nccl_status; }
  void MakeUniqueId() override { asked_ = true; }
  std::unique_ptr<Id> TakeUniqueId() override {
    if (!std::exchange(asked_, false)) return nullptr;
    auto id = std::make_unique<Id>();
    if (no_ids) id->status = Status(Code::kInternal, "no interface");
    const std::uint64_t number = ++nccl_->ids;
    std::memcpy(id->id.data(), &number, sizeof number);
    return id;
  }
  Comm CommInit(int ranks, const UniqueId& id, int rank) override {
    ++nccl_->inits;
    FakeNccl::Rendezvous& at = nccl_->rendezvous[id];
    EXPECT_TRUE(at.ranks == 0 || at.ranks == ranks);
    EXPECT_TRUE(at.joined.insert(rank).second) << "a rank twice";
    at.ranks = ranks;
    const Comm comm = reinterpret_cast<Comm>(++handles_);
    comms_[comm] = {id, polls, std::exchange(fail_next, false), std::exchange(hang_next, false)};
    return comm;
  }
  Result<bool> CommBusy(Comm comm) override {
    const auto at = comms_.find(comm);
    if (at == comms_.end()) {
      ADD_FAILURE() << "asked of one that is not there";
      return false;
    }
    FakeNccl::Rendezvous& meeting = nccl_->rendezvous[at->second.id];
    if (at->second.fails) return Status(Code::kAborted, "unhandled system error");
    if (at->second.ready) return false;
    if (at->second.hangs || meeting.aborted) return true;
    if (meeting.joined.size() < static_cast<std::size_t>(meeting.ranks)) return true;
    if (at->second.polls-- > 0) return true;
    at->second.ready = true;
    return false;
  }
  void CommAbort(Comm comm) override {
    ++nccl_->aborts;
    const auto at = comms_.find(comm);
    if (at == comms_.end()) {
      ADD_FAILURE() << "aborted twice";
      return;
    }
    FakeNccl::Rendezvous& meeting = nccl_->rendezvous[at->second.id];
    meeting.aborted |= meeting.joined.size() < static_cast<std::size_t>(meeting.ranks);
    comms_.erase(at);
  }
  std::size_t aborting() const override { return aborting_now; }

  std::string name() const override { return "fake"; }
  std::string cuda_version() const override { return ""; }
  std::string nccl_version() const override { return ""; }
  Status CheckPointer(const void*) const override { return None(); }
  Result<std::byte*> Malloc(std::size_t) override { return None(); }
  void Free(std::byte*) override {}
  Result<std::size_t> FreeMemory() override { return None(); }
  Result<std::byte*> MallocHost(std::size_t) override { return None(); }
  void FreeHost(std::byte*) override {}
  Status Copy(void*, const void*, std::size_t, Stream) override { return None(); }
  Status Zero(std::byte*, std::size_t, Stream) override { return None(); }
  Result<Stream> CreateStream() override { return None(); }
  void DestroyStream(Stream) override {}
  Result<Event> CreateEvent() override { return None(); }
  void DestroyEvent(Event) override {}
  Status Record(Event, Stream) override { return None(); }
  Status Wait(Stream, Event) override { return None(); }
  Result<bool> Capturing(Stream) override { return false; }
  Result<bool> Done(Event) override { return None(); }
  Status Synchronize(Event) override { return None(); }
  Status Notify(Stream, int) override { return None(); }
  Result<std::shared_ptr<Table>> MakeTable(const Layout&) override { return None(); }
  Status Launch(const Combine&, Stream) override { return None(); }
  Status Decide(const std::uint32_t*, std::uint32_t*, std::uint32_t*, Stream) override {
    return None();
  }
  Status AllReduce(Comm, const std::byte*, std::byte*, std::size_t, DType, std::optional<Weight>,
                   Stream) override {
    return None();
  }
  Status Send(Comm, const std::byte*, std::size_t, int, Stream) override { return None(); }
  Status Receive(Comm, std::byte*, std::size_t, int, Stream) override { return None(); }
  Status GroupStart() override { return None(); }
  Status GroupEnd(Comm) override { return None(); }

 private:
  struct Made {
    UniqueId id;
    int polls = 0;
    bool fails = false;
    bool hangs = false;
    bool ready = false;
  };
  static Status None() { return Status(Code::kInternal, "a fake has communicators alone"); }

  FakeNccl* nccl_;
  bool asked_ = false;
  std::uintptr_t handles_ = 0;
  std::map<Comm, Made> comms_;
};

class CommCluster {
 public:
  using Choice = Communicators::Choice;

  // One worker. It takes part in its groups in their order, one at a time.
  struct Node {
    Incarnation self = 0;
    Rank rank = kNoRank;
    bool alive = true;
    std::unique_ptr<FakeGpu> gpu;  // null: none
    std::unique_ptr<Communicators> comms;
    std::deque<GroupId> announced;
    GroupId runs = kNoGroup;
    std::optional<Choice> choice;
    bool asked = false;  // takes part in the way it has been told
  };
  struct TheGroup {
    Group group;
    bool failed = false;
    bool done = false;  // nothing can fail any more
    std::map<Incarnation, Choice> chosen;
  };

  explicit CommCluster(Communicators::Options options = {}, std::uint64_t seed = 1)
      : random(seed), options_(options) {}
  ~CommCluster();

  // A worker of this rank joins; a new incarnation if there was one before.
  Node& Add(Rank rank, bool device = true);
  Node& At(Rank rank) { return *nodes_.at(by_rank_.at(rank)); }
  // All who live, by rank.
  std::vector<Node*> Alive();

  GroupId Announce(const std::vector<Rank>& ranks, GroupKind kind = GroupKind::kTrain);
  // Announces it, and goes on until all are through with it and the network is quiet; the choice of
  // its members, who agree, or nullopt: it failed.
  std::optional<Choice> Reduce(const std::vector<Rank>& ranks, GroupKind kind = GroupKind::kTrain);
  // So many groups are others'.
  void Skip(GroupId groups) { newest_ += groups; }
  // Until nothing is left to happen but time's passing.
  void Settle();

  // ---- faults ----

  void Kill(Rank rank);  // others see its connections break, sooner or later
  // What is on its way from one to the other is lost; the sender sees that.
  void Cut(Rank from, Rank to);
  // The same, and nobody sees it.
  void Lose(Rank from, Rank to) { links_[{At(from).self, At(to).self}].clear(); }
  void Fail(GroupId group) { groups_.at(group).failed = true; }

  // ---- steps; false: there is nothing of the kind ----

  bool Deliver(std::uint64_t pick);
  bool See(std::uint64_t pick);  // a connection's end
  bool Proceed(Node* node);
  void Serve(Node* node);
  void RandomStep();

  // Members that share a communicator agree on that; nobody has a handle too many.
  void ExpectAgreed();
  void Check();

  std::size_t on_their_way() const;
  std::uint64_t sent() const { return sent_; }

  Prng random;
  Instant now{1};
  FakeNccl nccl;
  std::map<GroupId, TheGroup>& groups() { return groups_; }
  // Groups whose members did not choose the same, each with a communicator that was broken.
  int disagreed = 0;
  std::map<Way, int> ended;  // groups that succeeded

 private:
  void Controller(Node* node);
  void Leave(Node* node, bool ok);
  bool Gone(Incarnation member) const { return !nodes_.at(member)->alive; }
  void Judge(TheGroup* group);
  bool Excused(const TheGroup& group, CommId comm) const;

  Communicators::Options options_;
  std::map<Incarnation, std::unique_ptr<Node>> nodes_;
  std::map<Rank, Incarnation> by_rank_;
  Incarnation incarnations_ = 1000;
  GroupId newest_ = kNoGroup;
  std::map<GroupId, TheGroup> groups_;
  using Link = std::pair<Incarnation, Incarnation>;
  std::map<Link, std::deque<CommMessage>> links_;
  std::map<CommId, std::set<Incarnation>> ready_;  // who has said that it is ready there
  std::set<CommId> broken_;                        // of which somebody has said so
  std::set<Link> broken_links_;                    // to be seen by the first
  std::uint64_t sent_ = 0;
};

}  // namespace prd::testing

#endif  // PRD_TESTS_WORKER_DEVICE_COMM_CLUSTER_H_
