#include "worker/mesh/mesh.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>
#include <utility>

#include "common/base/check.h"
#include "common/io/heap.h"

namespace prd {
namespace {

// The longest part of a frame that is no chunk.
constexpr std::size_t kMaxOtherBytes = 576 << 10;
// Frames handled before the owner gets to look at its other sockets.
constexpr int kFramesPerService = 64;
// Frames of a shorter row are not worth looking for in the process's whole heap.
constexpr std::size_t kLargeRow = 1 << 20;
// What a device tells of by the session's eventfd, as a net below.
constexpr DurationNs kPoll = 20 * kMillisecond;

// Frames come into memory that the transport takes from malloc. By default glibc returns freed
// blocks of their size to the system, and every page of the next one is cleared again: a third of
// the time of a large reduction. It learns from the largest block freed so far not to (mallopt(3),
// M_MMAP_THRESHOLD), as it does from any program that frees a large tensor; so show it one.
void TeachMallocToKeepChunks() {
  void* volatile block = std::malloc((32 << 20) - (64 << 10));
  std::free(block);
}

}  // namespace

Mesh::Mesh(std::unique_ptr<Transport> transport, Options options, const MeshKeyPair& keys,
           ReplicaStore* store, MeshEvents* events)
    : options_(std::move(options)),
      timeout_(options_.timeout != 0 ? options_.timeout : kDefaultLease),
      store_(store),
      events_(events),
      directory_(keys, options_.secret_of),
      transport_(std::move(transport)),
      door_(transport_.get(), &directory_),
      peers_(transport_.get(), options_.host, &directory_),
      link_(&peers_),
      server_(store, &peers_, options_.chunk_bytes),
      exchange_(store, &peers_, events, options_.chunk_bytes),
      buffers_(
          [store](std::size_t bytes) {
            return store->memory->AllocateHost(MemoryUse::kResults, bytes);
          },
          [store] { store->memory->Sweep(); }) {
  directory_.Join(options_.incarnation, kNoRun);
  AllowMembers();
}

Result<std::unique_ptr<Mesh>> Mesh::Create(std::unique_ptr<Transport> transport, Options options,
                                           ReplicaStore* store, MeshEvents* events) {
  TeachMallocToKeepChunks();
  const Result<MeshKeyPair> keys = options.keys ? *options.keys : DrawMeshKeys();
  if (!keys.ok()) return keys.status();
  return std::unique_ptr<Mesh>(
      new Mesh(std::move(transport), std::move(options), *keys, store, events));
}

void Mesh::UseMemory(std::unique_ptr<Memory> memory, std::unique_ptr<DevicePlane> plane) {
  SetIncarnation(options_.incarnation);
  link_.Use(plane == nullptr ? nullptr : &plane->communicators());
  plane_ = std::move(plane);
  buffers_.Forget();
  server_.Forget();
  exchange_.Forget();
  store_->UseMemory(std::move(memory));
}

std::size_t Mesh::Options::LongestPart() const {
  return std::max({chunk_bytes, direct_bytes, kMaxOtherBytes});
}

void Mesh::SetIncarnation(Incarnation incarnation) {
  options_.incarnation = incarnation;
  run_ = kNoRun;
  if (active_) active_->Cancel(now_);
  active_.reset();
  fetching_.reset();
  sampling_.reset();
  exchange_.Join(incarnation, kNoRun, {});
  newest_ = {};
  link_.Join(incarnation, kNoRun);
  Forget(kNoRun);
  {
    const std::lock_guard lock(store_->mutex);
    store_->Empty();
  }
  early_.Clear();
  prober_.Clear();
  Rest();
}

// Whom the controller has announced, and who is connected: they are of the run before.
void Mesh::Forget(RunId run) {
  server_.Clear();
  directory_.Join(options_.incarnation, run);
  peers_.Join(protection_.security);
  arrivals_.Clear();
  door_.Join(protection_.security, timeout_);
}

void Mesh::JoinRun(RunId run, const Plan& plan, DurationNs lease, MeshProtection protection) {
  timeout_ = options_.timeout != 0 ? options_.timeout : lease;
  peers_.SetTimeout(timeout_);
  prober_.Clear();
  newest_ = {};
  store_->Prepare(plan);
  exchange_.SetTimeout(timeout_);
  exchange_.Join(options_.incarnation, run, plan);
  link_.Use(plane_ != nullptr && protection.MayUseNccl() ? &plane_->communicators() : nullptr);
  link_.Join(options_.incarnation, run);
  transport_->ShowKeys(protection.security == MeshSecurity::kCurve, directory_.own());
  const bool same = run == run_ && protection == protection_;
  protection_ = protection;
  if (!same) Forget(run);
  buffers_.Trim();
  run_ = run;
  plan_ = plan;
  last_group_ = kNoGroup;
  warm_ = false;
  early_.ForgetMissing();
}

// What a start has needed goes, and the memory of training's reductions is made now rather than in
// the first one. A device may never need it.
void Mesh::Warm() {
  if (std::exchange(warm_, true)) return;
  const std::size_t bytes = store_->TrainingRow(plan_);
  if (!Buffers::Fits(store_->LongestRow(), bytes)) buffers_.Forget();
  if (store_->LongestRow() >= kLargeRow) TrimHeap();  // of frames that have come
  if (bytes == 0 || store_->memory->device()) return;
  const std::shared_ptr<Buffer> staging = buffers_.Get(bytes);
  std::memset(staging->data(), 0, staging->size());
}

// ---- commands ----

void Mesh::StartReduce(Instant now, const Group& group, Reduced what, Iteration gain,
                       bool in_place) {
  PRD_CHECK(!active_);
  now_ = now;
  Meet(now, group.members.get());
  CallOff(group.id);
  newest_ = {};
  more_to_do_ = true;
  const GroupReduction::Context context{.store = store_,
                                        .peers = &peers_,
                                        .buffers = &buffers_,
                                        .communicators = link_.communicators(),
                                        .plane = plane_.get(),
                                        .self = options_.incarnation,
                                        .run = run_,
                                        .plan = plan_,
                                        .timeout = timeout_,
                                        .chunk_bytes = options_.chunk_bytes,
                                        .direct_bytes = options_.direct_bytes};
  active_.emplace(context, now, group, what, gain, in_place);
  Advance(now);
  if (!active_->hears()) HearFailures(now);
  link_.Service(now);
}

// Lets the group go on by itself; what came before it could hear counts once it does.
void Mesh::Advance(Instant now) {
  if (!active_->Advance(now)) return;
  more_to_do_ = true;
  if (early_.Misses(active_->id())) {
    active_->Fail(
        Status(Code::kResourceExhausted, "too much was sent before this worker took part"));
  }
  for (EarlyFrames::Kept& frame : early_.Take()) {
    OnGroupFrame(now, frame.header, std::move(frame.payload));
  }
}

void Mesh::CancelReduce() {
  if (!active_) return;
  active_->Cancel(now_);
  active_.reset();
  Rest();
}

void Mesh::GiveUpReduce(const std::string& why) {
  if (!active_) return;
  active_->CallOff(Status(Code::kAborted, why));
  more_to_do_ = true;
}

// `slot` is where the one copy of its kind is kept.
void Mesh::Fetch(Instant now, const Fetcher::Wanted& wanted, std::optional<Fetcher>* slot) {
  PRD_CHECK(!*slot);
  const Fetcher::Context context{.store = store_,
                                 .peers = &peers_,
                                 .self = options_.incarnation,
                                 .run = run_,
                                 .plan = plan_,
                                 .timeout = timeout_};
  slot->emplace(context, now, wanted, ++fetches_);
  Meet(now, wanted.source);
  more_to_do_ = true;
  (*slot)->Request(directory_.IsOut(wanted.source.incarnation));
}

void Mesh::StartFetch(Instant now, const GroupMember& source, GroupId result, bool contributed,
                      bool in_place) {
  if (in_place) KeepNewest();
  Fetch(now,
        {.source = source,
         .what = {.result = result, .in_place = in_place},
         .contributed = contributed},
        &fetching_);
}

void Mesh::CancelFetch() {
  fetching_.reset();
  Rest();
}

void Mesh::StartSample(Instant now, const GroupMember& source) {
  Fetch(now, {.source = source, .what = {.alone = true}}, &sampling_);
}

void Mesh::CancelSample() {
  sampling_.reset();
  Rest();
}

void Mesh::Probe(Instant now, const SharedList<GroupMember>& targets) {
  Meet(now, targets.get());
  std::deque<Prober::Target> reachable;
  for (const GroupMember& target : targets) {
    const Result<std::string> endpoint = peers_.EndpointOf(target);
    if (endpoint.ok()) reachable.push_back({target, *endpoint});
  }
  prober_.Start(now, std::move(reachable));
}

// ---- what comes in ----

bool Mesh::ReceiveOne(Instant now) {
  Transport::Arrival arrival;
  if (!transport_->Receive(&arrival)) return false;
  Door::Visitor* const visitor = door_.Find(arrival.visitor);
  const std::optional<FrameHeader> header =
      visitor != nullptr ? Open(visitor, &arrival) : std::optional<FrameHeader>();
  transport_->Attribute(visitor == nullptr ? 0 : visitor->from);
  // One for the incarnation before this one is void. It has come all the same: those of its stream
  // after it are not to wait for it.
  const bool mine = header && header->to == options_.incarnation;
  if (!header) {
    ++counters_.dropped;
  } else if (header->stream != 0 && arrivals_.Misses(*header)) {
    // What was sent before is lost, and not to be acknowledged with this one: both are asked for
    // again.
    if (mine) peers_.SetSpoiled(now, header->from, arrival.visitor);
    ++counters_.dropped;
  } else if (header->stream != 0 && !arrivals_.Take(now, *header)) {
    ++counters_.repeated;
  } else {
    if (header->stream != 0) peers_.ClearSpoiled(header->from, arrival.visitor);
    if (!mine) {
      ++counters_.dropped;
      return true;
    }
    OnFrame(now, *header, std::move(arrival.payload));
  }
  return true;
}

// The header, if the frame is from the worker that the connection is of. A frame that cannot be
// read may be a good one that was damaged on its way: the peer is asked to send again.
std::optional<FrameHeader> Mesh::Open(Door::Visitor* visitor, Transport::Arrival* arrival) {
  std::span<const std::byte> bytes = arrival->first;
  SharedBytes& payload = arrival->payload;
  std::optional<std::array<std::byte, kFrameHeaderBytes>> opened;
  if (!arrival->whole) bytes = {};
  if (arrival->whole && visitor->opener) {
    opened = visitor->opener->Open(bytes, {payload.data(), payload.size()});
    bytes = opened ? std::span<const std::byte>(*opened) : std::span<const std::byte>();
  }
  const std::optional<FrameHeader> header = DecodeHeader(bytes, payload.size());
  const bool sealed = !arrival->whole || !visitor->opener || opened;
  if (sealed && header && header->from == visitor->from &&
      (!visitor->purpose || (*visitor->purpose == Purpose::kSignals) == IsSignal(header->kind))) {
    return header;
  }
  if (!header && visitor->purpose == Purpose::kData) {
    peers_.SetSpoiled(now_, visitor->from, arrival->visitor);
  }
  if (sealed && !header) return std::nullopt;  // noise of a member
  ++counters_.forged;
  intruder_ = "a frame was dropped that came over the connection of rank " +
              std::to_string(directory_.Find(visitor->from)->rank) +
              (sealed ? ": the frame is of another worker, or not for this connection"
                      : ": the frame was changed or forged, or has come before");
  return std::nullopt;
}

void Mesh::TellOfIntruders(Instant now) {
  if (auto refused = door_.TakeRefusal()) intruder_ = *std::move(refused);
  const Transport::Counters guarded = transport_->counters();
  const std::uint64_t ended = guarded.refused + guarded.cut;
  if (std::exchange(told_ended_, ended) != ended) {
    intruder_ = "connections were ended: " + std::to_string(guarded.refused) +
                " so far were too many, in all or from one address, and " +
                std::to_string(guarded.cut) + " brought too much without a whole frame";
  }
  if (!intruder_ || (told_at_ && now - *told_at_ < kTellOfIntruders)) return;
  told_at_ = now;
  events_->OnIntruder(*intruder_ + " (" + std::to_string(door_.counters().refused) +
                      " connections and " + std::to_string(counters_.forged) + " frames so far)");
  intruder_.reset();
}

void Mesh::OnFrame(Instant now, const FrameHeader& header, SharedBytes payload) {
  switch (header.kind) {
    case FrameKind::kRing:
    case FrameKind::kDirect:
    case FrameKind::kTree:
    case FrameKind::kFail:
      return OnGroupFrame(now, header, std::move(payload));
    case FrameKind::kPing:
      return OnPing(now, header);
    case FrameKind::kPong:
      if (header.run == run_ && OnPong(now, header)) {
        ++(IsOfLost(header) ? counters_.acknowledgements : counters_.received);
      } else {
        ++counters_.dropped;
      }
      return;
    case FrameKind::kAck: {
      ++counters_.acknowledgements;
      const Result<std::string> at = peers_.EndpointOf(*directory_.Find(header.from));
      if (at.ok()) peers_.Acknowledged(*at, header.group, header.offset);
      return;
    }
    case FrameKind::kFetch: {
      if (header.run != run_ || run_ == kNoRun) {
        ++counters_.dropped;
        return;
      }
      ++counters_.received;
      server_.OnRequest(now, header, *directory_.Find(header.from), newest_);
      return;
    }
    case FrameKind::kReplica:
    case FrameKind::kChunk:
    case FrameKind::kGone: {
      const bool counts =
          header.run == run_ && ((fetching_ && fetching_->OnFrame(now, header, payload)) ||
                                 (sampling_ && sampling_->OnFrame(now, header, payload)));
      ++(counts ? counters_.received : counters_.dropped);
      return;
    }
    case FrameKind::kComm:
      ++(link_.OnFrame(now, header, payload) ? counters_.received : counters_.dropped);
      return;
    case FrameKind::kNote:
    case FrameKind::kPull:
    case FrameKind::kParcel:
    case FrameKind::kPart:
    case FrameKind::kRefused:
    case FrameKind::kStop:
      ++(exchange_.OnFrame(now, header, std::move(payload)) ? counters_.received
                                                            : counters_.dropped);
      return;
  }
}

void Mesh::OnGroupFrame(Instant now, const FrameHeader& header, SharedBytes payload) {
  const bool over = header.run == run_ && header.group <= last_group_;
  const bool ours = over && active_ && header.group == active_->id();
  const bool waits = ours && active_->waits() && header.kind != FrameKind::kFail;
  if (!over || waits) {
    // A peer cannot send more than a row before this worker takes part.
    const std::size_t limit = std::max(options_.early_bytes, 2 * store_->LongestRow());
    ++counters_.early;
    counters_.dropped += early_.Keep(header, std::move(payload), limit);
    return;
  }
  const bool counts = ours && active_->OnFrame(now, header, std::move(payload));
  ++(counts ? counters_.received : counters_.dropped);
}

// Those that came before their group.
void Mesh::HearFailures(Instant now) {
  for (EarlyFrames::Kept& frame : early_.TakeFailures(run_, active_->id())) {
    OnGroupFrame(now, frame.header, std::move(frame.payload));
  }
}

// ---- questions ----

// From any worker that was announced: who is in a group that is not announced here yet, is not
// known. A peer that gets no answer asks again.
void Mesh::OnPing(Instant now, const FrameHeader& header) {
  const Result<std::string> endpoint = peers_.EndpointOf(*directory_.Find(header.from));
  if (endpoint.ok()) {
    if (IsOfLost(header)) {
      peers_.SendAgain(now, *endpoint);
    } else if (static_cast<Topic>(header.stage) != Topic::kLife) {
      peers_.Asked(now, *endpoint);
    }
  }
  bool sent = header.run == run_ && run_ != kNoRun && endpoint.ok() && header.stage < kTopics;
  if (sent) {
    const FrameHeader pong{.kind = FrameKind::kPong,
                           .run = run_,
                           .group = header.group,
                           .from = options_.incarnation,
                           .to = header.from,
                           .stage = header.stage,
                           .chunk = static_cast<std::uint32_t>(AnswerTo(now, header, *endpoint))};
    sent = peers_.Signal(now, *endpoint, pong, SharedBytes());
  }
  if (!sent) {
    ++counters_.dropped;
  } else {
    ++(IsOfLost(header) ? counters_.acknowledgements : counters_.received);
  }
}

void Mesh::SayToCome(Instant now) {
  if (run_ == kNoRun) return;
  // A device goes on with what it has begun.
  if (active_ && active_->runs() && !active_->OnDevice()) active_->SayToCome(now);
  server_.SayToCome(now);
  exchange_.SayToCome(now);
}

Answer Mesh::AnswerTo(Instant now, const FrameHeader& ping, const std::string& endpoint) {
  const auto topic = static_cast<Topic>(ping.stage);
  bool to_come = peers_.OnTheirWay(topic, ping.from, ping.group, endpoint);
  if (topic == Topic::kGroup) {
    const bool running = active_ && active_->id() == ping.group && active_->runs();
    if (running && active_->OnDevice()) return Answer::kBegun;
    to_come = to_come || running || ping.group > last_group_;
  } else if (topic == Topic::kFetch) {
    to_come = server_.IsAsked(now, ping) || to_come;
  } else if (topic == Topic::kPull) {
    to_come = exchange_.IsAsked(now, ping) || to_come;
  } else if (IsOfLost(ping)) {
    to_come = peers_.Owes(endpoint);
  }
  return to_come ? Answer::kToCome : Answer::kOver;
}

bool Mesh::OnPong(Instant now, const FrameHeader& header) {
  switch (static_cast<Topic>(header.stage)) {
    case Topic::kGroup:
      return active_ && active_->id() == header.group && active_->OnPong(now, header);
    case Topic::kFetch:
      return (fetching_ && fetching_->OnPong(now, header)) ||
             (sampling_ && sampling_->OnPong(now, header));
    case Topic::kPull:
      return exchange_.OnPong(now, header);
    case Topic::kLife: {
      const bool over = header.chunk == static_cast<std::uint32_t>(Answer::kOver);
      if (IsOfLost(header) && over) peers_.NothingLost(header.from, header.group);
      const std::optional<Rank> rank = prober_.Answered(header.from);
      if (rank) events_->OnProbed(*rank, header.from);
      return rank || IsOfLost(header);
    }
  }
  return false;
}

void Mesh::AskProbed(Instant now) {
  for (const Prober::Target& target : prober_.TakeDue(now)) {
    const FrameHeader ping =
        PingOf(Topic::kLife, 0, run_, options_.incarnation, target.member.incarnation);
    (void)peers_.Signal(now, target.endpoint, ping, SharedBytes());
  }
}

// Whether somebody waits for what was lost is not known here: a note is waited for by nobody.
void Mesh::AskAgain(Instant now) {
  for (const auto& [peer, question] : peers_.TakeSpoiled(now)) {
    const GroupMember* member = directory_.Find(peer);
    if (member == nullptr) continue;
    const Result<std::string> endpoint = peers_.EndpointOf(*member);
    if (!endpoint.ok()) continue;
    const FrameHeader ping = PingOf(Topic::kLife, question, run_, options_.incarnation, peer);
    (void)peers_.Signal(now, *endpoint, ping, SharedBytes());
  }
}

// An acknowledgement may be lost: a later one says the same and more.
void Mesh::Acknowledge(Instant now) {
  for (const Arrivals::Acknowledgement& due : arrivals_.TakeDue(now)) {
    const GroupMember* member = directory_.Find(due.to);
    if (member == nullptr) continue;
    const Result<std::string> endpoint = peers_.EndpointOf(*member);
    if (!endpoint.ok()) continue;
    const FrameHeader header{.kind = FrameKind::kAck,
                             .run = run_,
                             .group = due.stream,
                             .from = options_.incarnation,
                             .to = due.to,
                             .offset = due.number};
    (void)peers_.Signal(now, *endpoint, header, SharedBytes());
  }
}

void Mesh::OnLost(Instant now, const std::string& endpoint) {
  more_to_do_ = true;  // this may fail what has been looked at in this turn
  server_.OnLost(endpoint);
  exchange_.OnLost(endpoint);
  link_.OnLost(now, endpoint);
  if (fetching_) fetching_->OnLost(endpoint);
  if (sampling_) sampling_->OnLost(endpoint);
  if (active_) active_->OnLost(endpoint);
}

// The peer does not answer: what its connection has taken may wait there for longer than the
// link is broken, so that a new one is better.
void Mesh::GiveUp(Instant now, const std::string& endpoint) {
  peers_.Drop(endpoint);
  OnLost(now, endpoint);
}

// ---- turns ----

void Mesh::Service(Instant now) {
  now_ = now;
  more_to_do_ = false;
  door_.Serve(now);
  const std::vector<std::string> lost = peers_.Service(now);
  if (active_) Advance(now);
  bool busy = true;
  for (int turn = 0; busy && turn < kFramesPerService; ++turn) {
    busy = ReceiveOne(now);
    busy = (active_ && active_->SendOwn(now)) || busy;
  }
  more_to_do_ = more_to_do_ || busy;
  // A peer that was through may have sent all that it had to before it closed the connection.
  for (const std::string& endpoint : lost) OnLost(now, endpoint);
  if (active_) Advance(now);  // its leader's word may have come
  if (active_ && active_->HandedOver()) {
    events_->OnHandedOver(active_->id(), active_->sent_bytes());
  }
  if (active_) FinishReduce(now);
  if (fetching_) FinishFetch(now);
  if (sampling_) FinishSample(now);
  if (!server_.idle()) server_.Service(now, timeout_);
  exchange_.Service(now);
  for (const std::string& endpoint : exchange_.TakeUnreachable()) GiveUp(now, endpoint);
  link_.Service(now);
  AskProbed(now);
  AskAgain(now);
  Acknowledge(now);
  peers_.CloseUnused(now);
  TellOfIntruders(now);
}

void Mesh::FinishReduce(Instant now) {
  const std::optional<Status> status = active_->End(now);
  if (!status) return;
  const GroupId group = active_->id();
  const std::uint64_t sent = active_->sent_bytes();
  const std::uint64_t digest = active_->digest();
  if (status->ok()) {
    newest_ = active_->result();
    counters_.newest = active_->choice();
    ++counters_.groups[static_cast<std::size_t>(counters_.newest.way)];
  }
  std::vector<Rank> unreachable;
  std::vector<std::string> given_up;
  if (!status->ok()) {
    for (const std::size_t position : active_->unreachable()) {
      const GroupMember& member = active_->member(position);
      unreachable.push_back(member.rank);
      const Result<std::string> endpoint = peers_.EndpointOf(member);
      if (endpoint.ok()) given_up.push_back(*endpoint);
    }
  }
  const bool started = status->ok() && active_->kind() == GroupKind::kInitial;
  active_.reset();
  if (started) Warm();
  for (const std::string& endpoint : given_up) GiveUp(now, endpoint);
  Rest();
  events_->OnReduced(group, *status, sent, unreachable, digest);
}

void Mesh::FinishFetch(Instant now) {
  if (const auto endpoint = fetching_->Watch(now)) GiveUp(now, *endpoint);
  if (!fetching_->over()) return;
  const Status status = fetching_->failure();
  Iteration iteration = 0;
  if (status.ok()) {
    const std::unique_lock lock(store_->mutex, std::try_to_lock);
    if (!lock.owns_lock() || store_->away) return;
    iteration = CommitFetch();
  }
  const bool started = status.ok() && fetching_->wanted().what.result == kNoGroup;
  fetching_.reset();
  if (started) Warm();
  Rest();
  events_->OnFetched(status, iteration);
}

void Mesh::FinishSample(Instant now) {
  if (const auto endpoint = sampling_->Watch(now)) GiveUp(now, *endpoint);
  if (!sampling_->over()) return;
  const Status status = sampling_->failure();
  const std::shared_ptr<Buffer> row = status.ok() ? sampling_->replica().TakeParameters() : nullptr;
  sampling_.reset();
  Rest();
  events_->OnSampled(status, row);
}

// The newest result may be in the inbox, which is about to change.
void Mesh::KeepNewest() {
  if (newest_.group == kNoGroup || store_->memory->device()) return;
  const std::shared_ptr<Buffer> copy = buffers_.Get(store_->gradients.bytes());
  const Memory::Place row = Memory::InHost(copy->data(), copy);
  store_->memory->Combine(store_->gradients, row, {{newest_.row}});
  newest_.row = row;
}

Iteration Mesh::CommitFetch() {
  IncomingReplica& replica = fetching_->replica();
  KeepNewest();
  if (replica.result() == kNoGroup) return replica.Commit();
  const std::shared_ptr<Buffer> row = replica.TakeResult();
  store_->AddToInbox(Memory::InHost(row->data(), row), replica.round(), TakesNewestOnly(plan_));
  if (fetching_->wanted().contributed) store_->owes = false;
  return replica.round();
}

void Mesh::Rest() {
  if (active_ || fetching_ || sampling_) return;
  peers_.Rest();
  server_.Hold();
}

std::optional<Instant> Mesh::NextDeadline() const {
  if (more_to_do_) return Instant{0};
  std::optional<Instant> next = server_.NextDeadline(timeout_);
  const auto consider = [&](Instant at) {
    if (!next || at + kMillisecond < *next) next = at + kMillisecond;
  };
  if (const auto at = active_ ? active_->NextDeadline() : std::nullopt) consider(*at);
  if (const auto at = link_.NextDeadline()) consider(*at);
  const bool copies = server_.Arriving() || exchange_.Arriving() || (active_ && active_->copies());
  if (copies) consider(now_ + kPoll);
  if (plane_ != nullptr && plane_->running()) {
    if (const auto at = plane_->NextDeadline()) consider(*at);
  }
  for (const std::optional<Fetcher>* fetch : {&fetching_, &sampling_}) {
    if (const auto at = *fetch ? (*fetch)->NextDeadline() : std::nullopt) consider(*at);
  }
  if (const auto at = exchange_.NextDeadline()) consider(*at);
  if (const auto at = peers_.NextDeadline()) consider(*at);
  if (const auto at = arrivals_.NextDeadline()) consider(*at);
  if (const auto at = door_.NextDeadline()) consider(*at);
  if (const auto at = prober_.NextDeadline()) consider(*at);
  return next;
}

const std::vector<Watched>& Mesh::WatchedLinks() {
  watched_.clear();
  peers_.AppendWatched(&watched_);
  return watched_;
}

}  // namespace prd
