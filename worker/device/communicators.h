// The NCCL communicators of one worker, and what their members agree about.
//
// A communicator is made, used and given up by all its members, none of whom may assume what the
// others have. Its leader is the member with the lowest rank, whose words reach each member in the
// order in which they were said:
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
// A group's leader, too, is its member with the lowest rank. It decides how the group is reduced
// and says so to its members (kWay): by an all-reduce on the communicator of just these members; by
// sends and receives on one that covers them (has more members); or staged through the CPU mesh. A
// member waits for that word if, and only if, it has a communicator that covers the group and is
// ready here, and takes the staged way at once if not. That is safe in both directions:
//   - The leader says something whenever a member may wait: nobody is ready before all have begun
//     to make it, so the leader has it too, or has told the member that it is broken.
//   - The leader uses a communicator for groups only that no member had begun when it became ready
//     there (kReady, kUse): group ids ascend, so every member waits for the word.
// So members of CPU jobs and of groups with CPU workers send no message for it.
//
// When one is made: of the members of kInitial, kAverage and kRound at once, as a cover: for groups
// of some of its members, who may be led by others than its leader. Of a kTrain once it has
// recurred (Options::recurs). At most one is being made per worker; whoever is busy declines, and
// the leader tries again after a later group. Each costs memory (NCCL issue 964: 544 to 688 MB on
// 8 GPUs) and time (issue 534), so a worker has at most Options::limit. Where that is reached, the
// one of the lowest score is given up, if the newcomer's is twice as high; otherwise it declines.
// The score of a set of members is the number of its groups, halved every kHalfLife group ids;
// equal ones: the one whose newest group is older. All members of a set are in all its groups, so
// they have the same scores, and give up in the same order.
//
// A cover is given up in two steps, as its groups have many leaders: each member tells all others
// that it will lead no further group on it (kRetired), and keeps it until it has heard that of all.
//
// A communicator one of whose members failed, was aborted or is gone (its connection broke, its
// incarnation changed) is broken: who notices tells all members, who abort it once what runs on it
// here has ended. Others are not touched. Of a cover, the survivor with the lowest rank proposes
// another, without those who are gone; it also grows by those whom its groups bring.
//
// What is lost with a connection is made good: a member that waits asks the group's leader now and
// then, and any member asks the communicator's (kAsk), who repeats its word, or that it does not
// have such a communicator (kGone).
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
    kBroken = 5,   // reason; members: who are gone, if that is why
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
  // Looked after so often while one is being made.
  static constexpr DurationNs kPoll = 20 * kMillisecond;
  // Remembered at most: sets of members with their scores, words for groups that have not begun
  // here yet, and members. Whatever is forgotten costs time alone.
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

  // Is this incarnation in this run from now on; kNoRun: none. Aborts all, and says nothing: its
  // peers see its connections break, or another incarnation in its place.
  void Join(Incarnation self, RunId run);

  // A group begins here; ids ascend. As its leader: decides, and tells the members if any may wait.
  // nullopt: the leader's word is waited for, Told has it once it is here (after any other call).
  // One group at a time: another Begin is the End of the one before, which failed.
  std::optional<Choice> Begin(Instant now, const Group& group);
  std::optional<Choice> Told(const Group& group) const;
  // It is over, here; nothing is said about it any more. Of one that succeeded, its set counts; the
  // communicator of one that did not is broken.
  void End(Instant now, const Group& group, bool ok);
  // nullopt: there is no such communicator that is ready, it is broken, or it does not have all
  // these members.
  std::optional<Use> Find(CommId id, const Group& group) const;
  // Begin to End of a reduction that has asked something of it: it is not aborted meanwhile, unless
  // by Break.
  void Hold(CommId id);
  void Release(CommId id);
  // Why one that is held is broken; empty: it is not.
  std::string WhyBroken(CommId id) const;

  // What ran on it was given up: aborts it here and tells all its members.
  void Break(Instant now, CommId id, const std::string& why);

  // From a worker of this run.
  void OnMessage(Instant now, Incarnation from, const CommMessage& message);
  // Its connection broke.
  void OnLost(Instant now, Incarnation peer);
  // What is to be sent, in this order.
  std::vector<Outgoing> TakeOutgoing() { return std::exchange(outgoing_, {}); }
  // Whose connections are to be watched: members of all that are here. The number changes when they
  // do.
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
  // Ids and members of those that this worker takes for usable, by id.
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
    std::set<Incarnation> answered;  // its leader: who accepted or declined; then, who is ready
    std::optional<Refusal> refused;
    std::set<Incarnation> quit;  // a cover: who leads no further group on it
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
