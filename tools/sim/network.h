// A network of hosts in virtual time, as a transport that meshes use
// (worker/transport/transport.h).
//
// Frames of a link take its latency and the time of their bytes, on the link and on the sending
// host's uplink, which its links share. At most Transport::kFrames wait at each end. Links are in
// no order among each other: who reads gets a frame of any of those that have one.
//
// Faults: a path is cut in one direction for a time (what is sent waits; a link whose other host
// does not acknowledge in time breaks at the sender alone, and what has come by then has come), or
// for frames with a payload alone; a link breaks in the middle of a frame; a process ends, with a
// word to its peers or without. An
// attacker on the path, who has no key, changes, repeats, swaps, cuts, reflects and takes away
// frames between hosts, and knocks with what others have shown.
//
// All follows from the seed. Not thread safe.
#ifndef PRD_TOOLS_SIM_NETWORK_H_
#define PRD_TOOLS_SIM_NETWORK_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "common/base/prng.h"
#include "common/base/time.h"
#include "worker/transport/transport.h"

namespace prd::sim {

struct NetworkOptions {
  DurationNs latency = 50'000;  // between hosts; within one a fifth
  DurationNs jitter = 20'000;   // at most
  double bytes_per_s = 1e9;     // of a link
  double uplink_bytes_per_s = 1e9;
  double attacks = 0;  // of frames between hosts
};

class SimNetwork {
 public:
  using Process = std::size_t;

  // `clock` is told the time before anything happens then.
  SimNetwork(std::uint64_t seed, NetworkOptions options, std::function<void(Instant)> clock = {})
      : options_(options), prng_(seed), clock_(std::move(clock)) {}

  // ---- time ----

  Instant now() const { return now_; }
  void At(Instant when, std::function<void()> what);
  // Lets the next thing happen, if it does by then. Otherwise the time is `until`.
  bool RunNext(Instant until);

  // ---- processes ----

  // One on this host; `news` is called when its transport has something. It ends with the
  // transport, whose links send what they have.
  std::unique_ptr<Transport> Start(std::size_t host, std::function<void()> news);
  // The process of the transport that was made last.
  Process newest() const { return processes_.size() - 1; }
  // The process is about to end at once: what it has not sent is lost, and some of what it has.
  // `silent`: its host goes with it, and tells nobody.
  void Kill(Process process, bool silent);

  // ---- faults ----

  void StopAttacks() { attacked_ = false; }
  void Cut(Process from, Process to, DurationNs time);
  // The same of frames that have a payload, which stand for large packets: a frame before one of
  // those arrives, and one after it waits.
  void CutLarge(Process from, Process to, DurationNs time);
  // Breaks all links from one to the other, if they are on two hosts.
  void Break(Process from, Process to);
  // Somebody without a key knocks there.
  void Intrude(Process at);
  // Whoever knocked so, and was let in.
  std::uint64_t intruders() const { return intruders_; }
  std::uint64_t attacks() const { return attacks_; }
  // Frames that an attacker had in hand, and that this process has read from a member's link.
  std::uint64_t tampered(Process process) const { return processes_[process].tampered; }
  std::uint64_t frames() const { return frames_; }

 private:
  friend class SimTransport;
  friend class SimLink;

  struct Frame {
    std::vector<std::byte> first;
    SharedBytes payload;
    bool whole = true;
    bool tampered = false;
  };
  struct Wire {
    std::uint64_t id = 0;
    Process from = 0;
    std::optional<Process> to;  // none: nobody listens there
    bool local = false;
    Opening opening;
    bool connected = false;
    Link::State state;    // at the sender
    bool closed = false;  // by the sender
    bool over = false;    // nothing arrives any more
    bool forged = false;  // an intruder's
    std::deque<Frame> pending;
    std::deque<Frame> moving;  // an event each
    Instant last_arrival;
    std::deque<Frame> arrived;
    std::uint64_t visitor = 0;
    Incarnation member = 0;
  };
  using WirePtr = std::shared_ptr<Wire>;
  struct Host {
    Instant uplink_free;
  };
  struct Node {
    std::size_t host = 0;
    bool alive = true;
    bool killed = false;
    bool silent = false;
    std::vector<std::string> endpoints;
    std::function<void()> news;
    bool keys = false;
    MeshKey own;
    std::uint64_t tampered = 0;
    std::deque<Transport::Knock> knocks;
    std::map<std::uint64_t, WirePtr> asking;  // by knock
    std::vector<WirePtr> incoming;
  };
  struct Event {
    Instant at;
    std::uint64_t serial;
    std::size_t what;  // of tasks_
    friend bool operator>(const Event& a, const Event& b) {
      return a.at != b.at ? b.at < a.at : a.serial > b.serial;
    }
  };

  DurationNs Latency(const Wire& wire);
  Instant CutUntil(Process from, Process to) const;
  Instant CutUntil(const Wire& wire, const Frame& frame) const;
  WirePtr Connect(Process from, const Opening& opening);
  void Knock(const WirePtr& wire);
  void Answered(const WirePtr& wire, std::optional<std::uint64_t> visitor);
  void Pump(const WirePtr& wire);
  void Arrive(const WirePtr& wire);
  void BreakAtSender(const WirePtr& wire, bool refused = false);
  void EndAtReceiver(const WirePtr& wire);
  // False: nothing of it arrives.
  bool Attack(const WirePtr& wire, Frame* frame);
  void News(Process process);

  const NetworkOptions options_;
  Prng prng_;
  const std::function<void(Instant)> clock_;
  Instant now_{kSecond};
  std::uint64_t serial_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<std::function<void()>> tasks_;
  std::vector<std::size_t> free_;  // of tasks_
  std::deque<Node> processes_;
  std::map<std::size_t, Host> hosts_;
  std::map<std::string, Process> listening_;
  std::vector<WirePtr> wires_;  // that are not over
  std::map<std::pair<Process, Process>, Instant> cuts_;
  std::map<std::pair<Process, Process>, Instant> large_cuts_;
  std::uint64_t wire_ids_ = 0;
  std::uint64_t knock_ids_ = 0;
  std::vector<std::pair<std::string, std::string>> seen_;  // what others have shown
  std::deque<std::pair<std::uint64_t, Frame>> overheard_;  // the newest, by wire
  bool attacked_ = true;
  std::uint64_t intruders_ = 0;
  std::uint64_t attacks_ = 0;
  std::uint64_t frames_ = 0;
};

// Rings once, at the time that was set last. At most one event of the network waits for each time
// that is earlier than those before.
class Alarm {
 public:
  // Both stay where they are for as long as the network runs.
  Alarm(SimNetwork* network, std::function<void()> ring)
      : network_(network), ring_(std::move(ring)) {}
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  // nullopt: never. A time that has come: now.
  void Set(std::optional<Instant> at);

 private:
  SimNetwork* network_;
  std::function<void()> ring_;
  std::optional<Instant> at_;
  std::optional<Instant> next_;  // the network's next event for it
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_NETWORK_H_
