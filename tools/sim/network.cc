#include "tools/sim/network.h"

#include <algorithm>

namespace prd::sim {
namespace {

constexpr std::size_t kOverheard = 64;

}  // namespace

class SimLink : public Link {
 public:
  SimLink(SimNetwork* network, SimNetwork::WirePtr wire)
      : network_(network), wire_(std::move(wire)) {}
  ~SimLink() override {
    wire_->closed = true;
    const bool lost = wire_->opening.purpose == Purpose::kSignals || wire_->state.broken ||
                      network_->processes_[wire_->from].killed;
    if (lost) wire_->pending.clear();
    if (wire_->pending.empty() && wire_->moving.empty()) network_->EndAtReceiver(wire_);
  }

  Sent Send(std::span<const std::byte> first, const SharedBytes& payload) override {
    if (wire_->state.broken) return Sent::kBroken;
    const bool signals = wire_->opening.purpose == Purpose::kSignals;
    if (wire_->local && !signals && !wire_->connected) return Sent::kFull;
    const int most = signals ? Transport::kSignals : Transport::kFrames;
    if (wire_->pending.size() >= static_cast<std::size_t>(most)) return Sent::kFull;
    wire_->pending.push_back(
        {{first.begin(), first.end()}, SharedBytes(payload.data(), payload.size())});
    network_->Pump(wire_);
    return Sent::kTaken;
  }
  State Look() override { return wire_->state; }
  bool Delivered() override { return wire_->pending.empty() && wire_->moving.empty(); }

 private:
  SimNetwork* network_;
  SimNetwork::WirePtr wire_;
};

class SimTransport : public Transport {
 public:
  SimTransport(SimNetwork* network, SimNetwork::Process self) : network_(network), self_(self) {}
  ~SimTransport() override {
    SimNetwork::Node& own = node();
    own.alive = false;
    own.news = {};
    for (const std::string& endpoint : own.endpoints) network_->listening_.erase(endpoint);
    for (const SimNetwork::WirePtr& wire : std::exchange(own.incoming, {})) {
      wire->over = true;
      wire->arrived.clear();
      if (!own.silent) network_->BreakAtSender(wire);
    }
    own.asking.clear();
    own.knocks.clear();
  }

  const std::vector<std::string>& endpoints() const override {
    return network_->processes_[self_].endpoints;
  }
  Result<std::unique_ptr<Link>> Open(const Opening& opening) override {
    return std::unique_ptr<Link>(
        std::make_unique<SimLink>(network_, network_->Connect(self_, opening)));
  }
  void ShowKeys(bool keys, const MeshKeyPair& own) override {
    node().own = own.public_key;
    if (std::exchange(node().keys, keys) == keys) return;
    for (const auto& [knock, wire] : std::exchange(node().asking, {})) End(wire);
    for (const SimNetwork::WirePtr& wire : std::exchange(node().incoming, {})) End(wire);
    node().knocks.clear();
  }
  std::optional<Knock> TakeKnock() override {
    if (node().knocks.empty()) return std::nullopt;
    Knock knock = std::move(node().knocks.front());
    node().knocks.pop_front();
    return knock;
  }
  void Answer(std::uint64_t knock, std::optional<std::uint64_t> visitor) override {
    const auto asking = node().asking.find(knock);
    if (asking == node().asking.end()) return;
    const SimNetwork::WirePtr wire = std::move(asking->second);
    node().asking.erase(asking);
    network_->Answered(wire, visitor);
  }
  bool Receive(Arrival* arrival) override {
    std::vector<SimNetwork::WirePtr*> readable;
    for (SimNetwork::WirePtr& wire : node().incoming) {
      if (!wire->arrived.empty()) readable.push_back(&wire);
    }
    if (readable.empty()) return false;
    newest_ = *readable[network_->prng_.Below(readable.size())];
    SimNetwork::Frame frame = std::move(newest_->arrived.front());
    newest_->arrived.pop_front();
    first_ = std::move(frame.first);
    tampered_ = frame.tampered;
    *arrival = {.visitor = newest_->visitor,
                .first = first_,
                .payload = std::move(frame.payload),
                .whole = frame.whole};
    const bool empty = newest_->arrived.empty();
    if (newest_->over && empty) std::erase(node().incoming, newest_);
    network_->Pump(newest_);
    return true;
  }
  void Attribute(Incarnation member) override {
    newest_->member = member;
    if (tampered_ && member != 0) ++node().tampered;
    if (member == 0) End(newest_);
  }
  void End(Incarnation member) override {
    const std::vector<SimNetwork::WirePtr> all = node().incoming;
    for (const SimNetwork::WirePtr& wire : all) {
      if (wire->member == member) End(wire);
    }
  }
  void Allow(std::size_t, std::uint64_t) override {}
  Counters counters() const override {
    return {.open = network_->processes_[self_].incoming.size()};
  }

 private:
  SimNetwork::Node& node() { return network_->processes_[self_]; }
  // What has come of it can still be read.
  void End(const SimNetwork::WirePtr& wire) {
    network_->EndAtReceiver(wire);
    network_->BreakAtSender(wire);
  }

  SimNetwork* network_;
  SimNetwork::Process self_;
  SimNetwork::WirePtr newest_;
  std::vector<std::byte> first_;
  bool tampered_ = false;  // the newest
};

// ---- time ----

void SimNetwork::At(Instant when, std::function<void()> what) {
  std::size_t task = tasks_.size();
  if (free_.empty()) {
    tasks_.push_back(std::move(what));
  } else {
    task = free_.back();
    free_.pop_back();
    tasks_[task] = std::move(what);
  }
  events_.push({std::max(when, now_), ++serial_, task});
}

bool SimNetwork::RunNext(Instant until) {
  if (events_.empty() || until < events_.top().at) {
    now_ = std::max(now_, until);
    return false;
  }
  const Event next = events_.top();
  events_.pop();
  now_ = next.at;
  if (clock_) clock_(now_);
  const std::function<void()> what = std::exchange(tasks_[next.what], nullptr);
  free_.push_back(next.what);
  what();
  return true;
}

void Alarm::Set(std::optional<Instant> at) {
  at_ = at;
  if (!at_) return;
  if (*at_ <= network_->now()) {
    at_.reset();
    return ring_();
  }
  if (next_ && *next_ <= *at_) return;
  next_ = at_;
  network_->At(*at_, [this, when = *at_] {
    if (next_ != when) return;
    next_.reset();
    Set(at_);
  });
}

// ---- processes ----

std::unique_ptr<Transport> SimNetwork::Start(std::size_t host, std::function<void()> news) {
  const Process self = processes_.size();
  Node& node = processes_.emplace_back();
  node.host = host;
  node.news = std::move(news);
  node.endpoints = {"ipc://" + std::to_string(self), "tcp://" + std::to_string(self)};
  for (const std::string& endpoint : node.endpoints) listening_[endpoint] = self;
  return std::make_unique<SimTransport>(this, self);
}

void SimNetwork::Kill(Process process, bool silent) {
  processes_[process].killed = true;
  processes_[process].silent = silent;
  for (const WirePtr& wire : wires_) {
    if (wire->from != process) continue;
    wire->pending.clear();
    if (silent || prng_.Below(2) == 0) wire->over = true;  // with what is on its way
  }
}

void SimNetwork::News(Process process) {
  if (processes_[process].news) processes_[process].news();
}

// ---- links ----

DurationNs SimNetwork::Latency(const Wire& wire) {
  const DurationNs base =
      options_.latency +
      static_cast<DurationNs>(prng_.Below(static_cast<std::uint64_t>(options_.jitter) + 1));
  return wire.local ? base / 5 : base;
}

Instant SimNetwork::CutUntil(Process from, Process to) const {
  const auto cut = cuts_.find({from, to});
  return cut == cuts_.end() ? Instant{} : cut->second;
}

Instant SimNetwork::CutUntil(const Wire& wire, const Frame& frame) const {
  const Instant all = CutUntil(wire.from, *wire.to);
  if (wire.local || frame.payload.size() == 0) return all;
  const auto large = large_cuts_.find({wire.from, *wire.to});
  return large == large_cuts_.end() ? all : std::max(all, large->second);
}

SimNetwork::WirePtr SimNetwork::Connect(Process from, const Opening& opening) {
  auto wire = std::make_shared<Wire>();
  wire->id = ++wire_ids_;
  wire->from = from;
  wire->opening = opening;
  wire->local = opening.endpoint.starts_with("ipc://");
  const auto at = listening_.find(opening.endpoint);
  if (at != listening_.end()) wire->to = at->second;
  if (wire_ids_ % 64 == 0) {
    std::erase_if(wires_, [](const WirePtr& each) { return each->over && each->state.broken; });
  }
  wires_.push_back(wire);
  const DurationNs connects = opening.connects != 0 ? opening.connects : 30 * kSecond;
  At(now_ + 2 * Latency(*wire), [this, wire] { Knock(wire); });
  At(now_ + connects, [this, wire] {
    if (!wire->connected) BreakAtSender(wire);
  });
  return wire;
}

void SimNetwork::Knock(const WirePtr& wire) {
  if (wire->state.broken || wire->closed) return;
  const bool refused = !wire->to || !processes_[*wire->to].alive;
  if (refused) {
    if (!wire->to || !processes_[*wire->to].silent) BreakAtSender(wire);
    return;
  }
  const Instant cut = std::max(CutUntil(wire->from, *wire->to), CutUntil(*wire->to, wire->from));
  if (cut > now_) return At(cut, [this, wire] { Knock(wire); });
  wire->connected = true;
  Node& node = processes_[*wire->to];
  if (!wire->forged) News(wire->from);
  const std::optional<MeshKey>& server = wire->opening.server;
  if (node.keys != server.has_value() || (server && *server != node.own)) {
    return BreakAtSender(wire);
  }
  Transport::Knock knock{.id = ++knock_ids_,
                         .address = "host " + std::to_string(processes_[wire->from].host),
                         .local = wire->local,
                         .key = node.keys,
                         .shown = {wire->opening.name, wire->opening.proof}};
  if (node.keys) {
    const MeshKey& key = wire->opening.own->public_key;
    knock.shown = {std::string(reinterpret_cast<const char*>(key.bytes.data()), key.bytes.size())};
  }
  if (!wire->local && !wire->forged) seen_.emplace_back(wire->opening.name, wire->opening.proof);
  node.asking[knock.id] = wire;
  node.knocks.push_back(std::move(knock));
  News(*wire->to);
  const DurationNs admits = wire->opening.admits != 0 ? wire->opening.admits : 30 * kSecond;
  At(now_ + admits, [this, wire] {
    if (!wire->state.stands) BreakAtSender(wire);
  });
}

void SimNetwork::Answered(const WirePtr& wire, std::optional<std::uint64_t> visitor) {
  if (wire->forged) {
    intruders_ += visitor ? 1 : 0;
    return;
  }
  if (!visitor) {
    At(now_ + Latency(*wire), [this, wire] { BreakAtSender(wire, true); });
    return;
  }
  if (wire->over || wire->state.broken) return;
  wire->visitor = *visitor;
  processes_[*wire->to].incoming.push_back(wire);
  At(now_ + Latency(*wire), [this, wire] {
    if (wire->state.broken) return;
    wire->state.stands = true;
    Pump(wire);
    News(wire->from);
  });
}

// Lets frames go as far as there is room for them at the other end.
void SimNetwork::Pump(const WirePtr& wire) {
  if (!wire->state.stands || wire->over) return;
  bool any = false;
  while (!wire->pending.empty() && wire->moving.size() + wire->arrived.size() <
                                       static_cast<std::size_t>(Transport::kFrames)) {
    Frame frame = std::move(wire->pending.front());
    wire->pending.pop_front();
    any = true;
    const auto bytes = static_cast<double>(frame.first.size() + frame.payload.size());
    Instant& uplink = hosts_[processes_[wire->from].host].uplink_free;
    Instant sent = std::max(now_, wire->last_arrival);
    if (!wire->local) {
      uplink = std::max(uplink, now_) +
               static_cast<DurationNs>(bytes / options_.uplink_bytes_per_s * 1e9);
      sent = std::max(sent, uplink);
    }
    const auto takes = static_cast<DurationNs>(bytes / options_.bytes_per_s * 1e9);
    wire->last_arrival = sent + takes + Latency(*wire);
    wire->moving.push_back(std::move(frame));
    At(wire->last_arrival, [this, wire] { Arrive(wire); });
  }
  if (any && !wire->closed) News(wire->from);
}

// The oldest frame under way: cuts that grow longer change no order.
void SimNetwork::Arrive(const WirePtr& wire) {
  const DurationNs delivers = wire->opening.delivers;
  const Instant cut = CutUntil(*wire, wire->moving.front());
  if (cut > now_ && !wire->over) {
    const bool breaks = !wire->local && delivers != 0 && cut - now_ > delivers;
    if (breaks) {
      At(now_ + delivers, [this, wire] {
        BreakAtSender(wire);
        EndAtReceiver(wire);
      });
      wire->over = true;
      wire->moving.pop_front();
    } else {
      wire->last_arrival = std::max(wire->last_arrival, cut);
      At(cut, [this, wire] { Arrive(wire); });
    }
    return;
  }
  Frame frame = std::move(wire->moving.front());
  wire->moving.pop_front();
  if (wire->over || !processes_[*wire->to].alive) {
    // Nobody acknowledges it.
    if (delivers != 0) At(now_ + delivers, [this, wire] { BreakAtSender(wire); });
    return;
  }
  if (delivers != 0 && !wire->local && CutUntil(*wire->to, wire->from) - now_ > delivers) {
    At(now_ + delivers, [this, wire] { BreakAtSender(wire); });
  }
  ++frames_;
  const bool attacked =
      attacked_ && !wire->local && options_.attacks > 0 && prng_.Unit() < options_.attacks;
  const bool arrives = !attacked || Attack(wire, &frame);
  if (options_.attacks > 0 && arrives && frame.whole) {
    overheard_.emplace_back(
        wire->id, Frame{frame.first, SharedBytes(frame.payload.data(), frame.payload.size())});
    if (overheard_.size() > kOverheard) overheard_.pop_front();
  }
  if (arrives) {
    wire->arrived.push_back(std::move(frame));
  } else {
    Pump(wire);
  }
  if (wire->closed && wire->pending.empty() && wire->moving.empty()) EndAtReceiver(wire);
  News(*wire->to);
}

void SimNetwork::BreakAtSender(const WirePtr& wire, bool refused) {
  if (wire->state.broken) return;
  wire->state.broken = true;
  wire->state.refused = refused;
  wire->pending.clear();
  if (!wire->forged) News(wire->from);
}

void SimNetwork::EndAtReceiver(const WirePtr& wire) {
  wire->over = true;
  if (!wire->to) return;
  std::erase_if(processes_[*wire->to].asking,
                [&](const auto& entry) { return entry.second == wire; });
  if (wire->arrived.empty()) std::erase(processes_[*wire->to].incoming, wire);
}

// ---- faults ----

void SimNetwork::Cut(Process from, Process to, DurationNs time) {
  Instant& until = cuts_[{from, to}];
  until = std::max(until, now_ + time);
}

void SimNetwork::CutLarge(Process from, Process to, DurationNs time) {
  Instant& until = large_cuts_[{from, to}];
  until = std::max(until, now_ + time);
}

void SimNetwork::Break(Process from, Process to) {
  const std::vector<WirePtr> all = wires_;
  for (const WirePtr& wire : all) {
    if (wire->from != from || wire->to != to || wire->over || wire->local) continue;
    EndAtReceiver(wire);
    At(now_ + Latency(*wire), [this, wire] { BreakAtSender(wire); });
  }
}

void SimNetwork::Intrude(Process at) {
  if (seen_.empty() || !processes_[at].alive || processes_[at].keys) return;
  Opening opening{.endpoint = processes_[at].endpoints[1],
                  .name = seen_[prng_.Below(seen_.size())].first,
                  .proof = seen_[prng_.Below(seen_.size())].second,
                  .server = {}};
  const WirePtr wire = Connect(at, opening);
  wire->forged = true;
}

bool SimNetwork::Attack(const WirePtr& wire, Frame* frame) {
  ++attacks_;
  const auto replace = [&](auto&& from_that_wire) {
    std::vector<const Frame*> found;
    for (const auto& [id, each] : overheard_) {
      if (from_that_wire(id)) found.push_back(&each);
    }
    if (found.empty()) return true;
    const Frame& chosen = *found[prng_.Below(found.size())];
    *frame = {chosen.first, SharedBytes(chosen.payload.data(), chosen.payload.size()), true, true};
    return true;
  };
  switch (prng_.Below(9)) {
    case 0:  // changes a byte
      if (frame->payload.size() != 0 && prng_.Below(2) == 0) {
        frame->payload.data()[prng_.Below(frame->payload.size())] ^= std::byte{1};
      } else if (!frame->first.empty()) {
        frame->first[prng_.Below(frame->first.size())] ^= std::byte{1};
      }
      frame->tampered = true;
      return true;
    case 1:  // repeats one
      return replace([&](std::uint64_t id) { return id == wire->id; });
    case 2: {  // reflects one
      return replace([&](std::uint64_t id) {
        const auto back = std::find_if(wires_.begin(), wires_.end(),
                                       [id](const WirePtr& each) { return each->id == id; });
        return back != wires_.end() && (*back)->from == *wire->to && (*back)->to == wire->from;
      });
    }
    case 3:  // takes one of any link
      return replace([](std::uint64_t) { return true; });
    case 4:  // leaves one part
      frame->whole = false;
      return true;
    case 5:  // cuts it
      frame->tampered = frame->payload.size() != 0;
      frame->payload = SharedBytes(frame->payload.data(), frame->payload.size() / 2);
      return true;
    default:  // takes it away
      return false;
  }
}

}  // namespace prd::sim
