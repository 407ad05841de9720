// The NCCL communicators of one worker, and how their members agree about them.
//
// All members make, use and give up a communicator together, and no member may assume what the
// others have. The communicator's leader is its member with the lowest rank. Messages of the leader
// reach each member in the order in which the leader sent them:
//
//   leader                                    member
//   kPropose(comm, members)             ->    has it room? takes it, or gives another one up
//                                       <-    kAccept or kDecline (no device here, no NCCL, busy,
//                                       no room)
//   kCreate(comm, unique id), if all accept
//             (ncclCommInitRankConfig on all members, in the background)
//                                       <-    kReady(the newest group begun here) or kBroken
//   kUse(comm, the newest of those), once all are ready: of groups after that one
//   kRetire(comm): no further group uses it
//
// A group's leader is also its member with the lowest rank. It decides how the group is reduced and
// tells the members (kWay): by an all-reduce on the communicator of just these members; by sends
// and receives on a communicator that covers them (has more members); or staged through the CPU
// mesh. A member waits for kWay if it has a communicator that covers the group and is ready here.
// Every other member takes the staged way at once. That is safe in both directions:
//   - The leader sends kWay whenever a member may wait. No member is ready before all have begun to
//     make the communicator; so the leader has it too, or has told the member that it is broken.
//   - The leader uses a communicator only for groups that no member had begun when the communicator
//     became ready there (kReady, kUse). Group ids ascend, so every member waits for kWay.
// Members of CPU jobs, and of groups with CPU workers, therefore send no such message.
//
// When a communicator is made. The members of kInitial, kAverage and kRound make one at once, as a
// cover: it serves groups of some of its members, which may have other leaders than the cover. The
// members of a kTrain make one when their group has recurred (Options::recurs). A worker makes one
// at a time. A busy worker declines, and the leader tries again after a later group. Each
// communicator costs memory (NCCL issue 964: 544 to 688 MB on 8 GPUs) and time (issue 534), so a
// worker has at most Options::limit. At the limit a worker gives up the one of the lowest score, if
// the new one's score is twice as high; otherwise it declines the new one. The score of a set of
// members is the number of its groups, halved every kHalfLife group ids. Of equal scores the set
// with the older newest group goes. All members of a set are in all its groups, so they have the
// same scores, and give up in the same order.
//
// A cover is given up in two steps, since its groups have many leaders. Each member tells all
// others that it leads no further group on the cover (kRetired), and keeps it until all have said
// so.
//
// A communicator is broken when a member failed, was aborted or is gone (its connection broke, or
// its incarnation changed). The worker that notices tells all members, and each aborts the
// communicator once the reduction on it has ended there. Other communicators go on. Of a broken
// cover, the surviving member with the lowest rank proposes another, without the members that are
// gone. A cover also grows by the members that its groups bring.
//
// Messages lost with a connection are repeated. A waiting member asks the group's leader now and
// then, and any member asks the communicator's leader (kAsk). The leader repeats its message, or
// says that it does not have such a communicator (kGone).
//
// One thread; no clock, no sockets: messages go in and out as values.
#ifndef PRD_WORKER_DEVICE_COMMUNICATORS_H_
#define PRD_WORKER_DEVICE_COMMUNICATORS_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/device/gpu.h"

namespace prd {

// Leader, and a number that it gave.
struct CommId {
  Incarnation leader = 0;
  std::uint64_t number = 0;
  friend auto operator<=>(const CommId&, const CommId&) = default;
};

enum class Way : std::uint8_t {
  kStaged = 0,      // through the CPU mesh
  kCollective = 1,  // an all-reduce, on a communicator of these members
  kExchange = 2,    // sends and receives, on a communicator that covers them
};

// Why a proposal is declined.
enum class Refusal : std::uint8_t {
  kNoDevice = 0,  // or no NCCL: there never will be
  kBusy = 1,      // another one is being made here
  kNoRoom = 2,
  kUnknown = 3,  // not all of the members have been in a group with this one
};

struct CommMessage {
  enum class Kind : std::uint8_t {
    kPropose = 0,  // members, cover
    kAccept = 1,
    kDecline = 2,  // refusal, reason
    kCreate = 3,   // id
    kReady = 4,    // group: the newest that has begun here
    kBroken = 5,   // reason; members: those that are gone, if that is why
    kRetire = 6,
    kGiveUp = 7,    // asks the leader to retire it
    kWay = 8,       // group, way
    kUse = 9,       // group: it is used for those after this one
    kRetired = 10,  // of a cover: the sender leads no further group on it
    kAsk = 11,      // group: what is its way? none: is it there?
    kGone = 12,     // the sender does not have it (any more)
  };
  static constexpr std::size_t kMaxMembers = 1024;
  static constexpr std::size_t kMaxReason = 512;

  Kind kind = Kind::kPropose;
  CommId comm;  // of kWay: none if it is staged
  GroupId group = kNoGroup;
  Way way = Way::kStaged;
  bool cover = false;
  Refusal refusal = Refusal::kNoDevice;
  std::vector<Incarnation> members{};  // of kPropose: in the order of their ranks
  Gpu::UniqueId id{};
  std::string reason{};
  friend bool operator==(const CommMessage&, const CommMessage&) = default;
};

// As on the wire, the payload of a frame. Decoding checks sizes, kinds and ranges.
std::vector<std::byte> EncodeCommMessage(const CommMessage& message);
std::optional<CommMessage> DecodeCommMessage(std::span<const std::byte> bytes);

class Communicators {
 public:
  static constexpr std::size_t kLimit = 64;
  static constexpr GroupId kHalfLife = 4096;
  // How often Service runs while a communicator is being made.
  static constexpr DurationNs kPoll = 20 * kMillisecond;
  // How many are remembered: sets of members with their scores, kWay for groups that have not begun
  // here yet, and members. Forgetting one costs only time.
  static constexpr std::size_t kMaxSets = 1024;
  static constexpr std::size_t kMaxWays = 256;
  static constexpr std::size_t kMaxKnown = 4096;

  struct Options {
    std::size_t limit = kLimit;         // communicators here at most; >= 1
    std::uint32_t recurs = 2;           // groups of the same members from which on one is worth it
    std::size_t cover_members = 256;    // no larger one is made; <= CommMessage::kMaxMembers
    DurationNs timeout = 30 * kSecond;  // for a member's answer, and for one to become ready
  };
  struct Outgoing {
    GroupMember to;
    CommMessage message;
  };
  struct Choice {
    Way way = Way::kStaged;
    CommId comm;
    friend bool operator==(const Choice&, const Choice&) = default;
  };
  struct Use {
    Gpu::Comm comm = nullptr;
    std::vector<int> ranks;  // in the communicator, by position in the group
  };

  // `gpu` null: a worker without a device, which declines.
  Communicators(Gpu* gpu, Options options) : gpu_(gpu), options_(options) {}
  ~Communicators();  // aborts all
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  // From now on this worker is this incarnation in this run; kNoRun: in none. Aborts all, and sends
  // nothing: peers see the connections break, or another incarnation in this one's place.
  void Join(Incarnation self, RunId run);

  // A group begins here; ids ascend. Its leader decides, and tells the members if any may wait.
  // nullopt: this member waits for the leader; after any later call Told may have the choice. One
  // group at a time: another Begin is the End of the group before, which failed.
  std::optional<Choice> Begin(Instant now, const Group& group);
  std::optional<Choice> Told(const Group& group) const;
  // The group is over here. If it succeeded, its set counts towards a communicator; if not, its
  // communicator is broken.
  void End(Instant now, const Group& group, bool ok);
  // nullopt: there is no such communicator that is ready, it is broken, or it does not have all
  // these members.
  std::optional<Use> Find(CommId id, const Group& group) const;
  // Around a reduction that uses the communicator: only Break aborts it between the two calls.
  void Hold(CommId id);
  void Release(CommId id);
  // Why one that is held is broken; empty: it is not.
  std::string WhyBroken(CommId id) const;

  // The reduction on it was given up: aborts the communicator here and tells all its members.
  void Break(Instant now, CommId id, const std::string& why);

  // From a worker of this run.
  void OnMessage(Instant now, Incarnation from, const CommMessage& message);
  // The peer's connection broke.
  void OnLost(Instant now, Incarnation peer);
  // The messages to send, in this order.
  std::vector<Outgoing> TakeOutgoing() { return std::exchange(outgoing_, {}); }
  // The members of all communicators here: their connections are to be watched. The version changes
  // when they do.
  std::vector<GroupMember> Peers() const;
  std::uint64_t peers_version() const { return peers_version_; }

  // Looks after what is being made.
  void Service(Instant now);
  std::optional<Instant> NextDeadline() const;

  struct Counters {
    std::uint64_t made = 0;      // became usable here
    std::uint64_t broken = 0;    // failed, or were broken by a member
    std::uint64_t given_up = 0;  // for room
    std::uint64_t declined = 0;  // proposals, by this worker
    std::size_t here = 0;        // now, those being made included
    bool making = false;         // one is being made, now
  };
  Counters counters() const;
  // Ids and members of the communicators that this worker takes for usable, by id.
  std::map<CommId, std::vector<Incarnation>> Usable() const;

 private:
  using Set = std::vector<Incarnation>;  // by rank, ascending
  enum class State : std::uint8_t {
    kProposed,  // its leader: answers are awaited; others: accepted
    kMaking,    // CommInit has been called
    kReady,     // here
  };
  struct Record {
    Set set;
    std::vector<GroupMember> members;  // the same
    std::map<Incarnation, int> rank_of;
    bool cover = false;
    State state = State::kProposed;
    bool usable = false;  // all are ready, for groups after:
    GroupId after = kNoGroup;
    bool leads = true;     // false: no further group is led on it here
    bool retired = false;  // goes when nothing uses it any more
    bool asked = false;    // its leader was asked to retire it
    bool broken = false;
    std::string why;
    std::set<Incarnation> answered;  // leader: members that answered; later, that are ready
    std::optional<Refusal> refused;
    std::set<Incarnation> quit;  // a cover: members that lead no further group on it
    Instant deadline;            // of kProposed and kMaking
    Instant check_at;            // of a cover that is given up: to be over; of others: its leader
                                 // is asked whether it has it still
    Gpu::Comm comm = nullptr;
    int held = 0;
  };
  using Records = std::map<CommId, Record>;
  // What is known of a set of members.
  struct History {
    std::uint64_t groups = 0;
    double score = 0;
    GroupId at = kNoGroup;     // its newest group, which the score is of
    std::uint32_t failed = 0;  // attempts in a row to make one
    std::uint32_t wait = 0;    // its groups until the next
  };
  struct Running {
    GroupId group = kNoGroup;
    Incarnation leader = 0;
    std::vector<CommId> waits_on;  // that its leader may choose
    std::optional<Choice> choice;
    Instant ask_at;
  };
  struct Word {
    Incarnation from = 0;
    Choice choice;
  };
  // A cover that is wanted.
  struct Wish {
    Set set;
    std::uint32_t failed = 0;
    std::uint32_t wait = 0;  // groups of this worker until the next attempt
  };

  bool CanMake() const { return gpu_ != nullptr && run_ != kNoRun && gpu_->nccl().ok(); }
  void Know(Instant now, const Group& group);
  const GroupMember* Known(Incarnation member) const;
  static Set SetOf(const Group& group);
  static bool Serves(const Record& record, const Group& group, const Set& set);
  Choice ChooseWay(const Group& group, const Set& set) const;
  void Resolve();
  std::optional<CommId> Leave(bool ok);
  void Count(const Group& group, const Set& set, std::optional<CommId> used);
  double ScoreAt(const Set& set, GroupId group) const;

  void WantCover(const Set& set);
  void WantCoverOf(const Group& group, const Set& set);
  void TryWish(Instant now);
  void TryRecurring(Instant now, const Set& set);
  void Propose(Instant now, const Set& set, bool cover);
  bool MakeRoom(Instant now, const Set& set, bool cover);
  bool HasLive(const Set& set) const;
  bool Covered(const Set& set) const;
  bool Leads(const Record& record) const { return record.set.front() == self_; }
  Set WithDevices(const Set& set) const;
  Record NewRecord(Instant now, const Set& set, bool cover) const;
  void Answered(Instant now, Records::iterator at);
  void Withdraw(Records::iterator at);
  void Look(Instant now, CommId id);
  void Failed(const Record& record, bool soon);
  void Create(Instant now, Records::iterator at);
  void Make(Instant now, Records::iterator at, const Gpu::UniqueId& id);
  void Ready(Instant now, Records::iterator at);
  void AllReady(Instant now, Records::iterator at);
  void BecomesUsable(Instant now, Records::iterator at);

  void OnProposal(Instant now, Incarnation from, const CommMessage& message);
  void OnDecline(Instant now, Incarnation from, const CommMessage& message);
  void OnWay(Incarnation from, const CommMessage& message);
  void OnAsk(Incarnation from, const CommMessage& message);
  void OnGone(Instant now, Incarnation from, Records::iterator at);
  void CheckAll(Instant now);
  void OnOfRecord(Instant now, Incarnation from, const CommMessage& message);
  void Retire(Instant now, Records::iterator at);
  void OnRetire(Instant now, Records::iterator at);
  void Quit(Instant now, Records::iterator at);
  void BreakOne(Records::iterator at, const std::string& why, const Set& gone, bool tell);
  void Reform(const Record& record, const Set& gone);
  void Abort(Records::iterator at);
  void Sweep();
  bool InUse(CommId id, const Record& record) const;

  void SayBroken(Incarnation to, CommId comm);
  void Tell(Incarnation to, CommMessage message);
  void TellAll(const Record& record, const CommMessage& message);

  Gpu* gpu_;
  Options options_;
  Incarnation self_ = 0;
  RunId run_ = kNoRun;
  std::uint64_t numbers_ = 0;
  Records comms_;
  std::optional<CommId> making_;  // the one that is being made here
  bool id_pending_ = false;
  std::optional<Gpu::UniqueId> unique_id_;  // made, and not used yet
  std::map<Set, History> sets_;
  std::optional<Wish> wish_;
  std::set<Incarnation> no_device_;
  std::map<Incarnation, GroupMember> known_;
  std::map<Rank, Incarnation> holder_;          // of each rank, the newest seen
  std::deque<SharedList<GroupMember>> recent_;  // without a device: of the last groups
  GroupId last_begun_ = kNoGroup;
  std::optional<Running> running_;
  std::map<GroupId, Word> ways_;  // of groups that have not begun here yet, or run
  std::vector<Outgoing> outgoing_;
  std::optional<Instant> poll_at_;
  std::uint64_t peers_version_ = 0;
  Counters counters_;
};

}  // namespace prd

#endif  // PRD_WORKER_DEVICE_COMMUNICATORS_H_
