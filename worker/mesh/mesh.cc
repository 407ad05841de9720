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
      peers_(transport_.get(), options_.host, &directory_),
      intake_(transport_.get(), &directory_, &peers_, options_.LongestPart()),
      link_(&peers_),
      buffers_(
          [store](std::size_t bytes) {
            return store->memory->AllocateHost(MemoryUse::kResults, bytes);
          },
          [store] { store->memory->Sweep(); }),
      copies_(store, &peers_, &directory_, &buffers_, options_.chunk_bytes),
      exchange_(store, &peers_, events, options_.chunk_bytes),
      prober_(&peers_, &directory_, options_.probe_bytes) {
  directory_.Join(options_.incarnation, kNoRun);
  copies_.Join({}, timeout_);
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
  SetIncarnation(directory_.self());
  link_.Use(plane == nullptr ? nullptr : &plane->communicators());
  plane_ = std::move(plane);
  buffers_.Forget();
  copies_.ForgetMemory();
  exchange_.Forget();
  store_->UseMemory(std::move(memory));
}

std::size_t Mesh::Options::LongestPart() const {
  return std::max({chunk_bytes, direct_bytes, probe_bytes, kMaxOtherBytes});
}

void Mesh::SetIncarnation(Incarnation incarnation) {
  if (active_) active_->Cancel(now_);
  active_.reset();
  copies_.Clear();
  exchange_.Join(incarnation, kNoRun, {});
  link_.Join(incarnation, kNoRun);
  Forget(incarnation, kNoRun);
  {
    const std::lock_guard lock(store_->mutex);
    store_->Empty();
  }
  early_.Clear();
  prober_.Clear();
  Rest();
}

// Whom the controller has announced, and who is connected: they are of the run before.
void Mesh::Forget(Incarnation self, RunId run) {
  copies_.ForgetPeers();
  directory_.Join(self, run);
  peers_.Join(protection_.security);
  intake_.Join(protection_.security, timeout_);
}

void Mesh::JoinRun(RunId run, const Plan& plan, DurationNs lease, MeshProtection protection) {
  timeout_ = options_.timeout != 0 ? options_.timeout : lease;
  peers_.SetTimeout(timeout_);
  prober_.Clear();
  copies_.Join(plan, timeout_);
  store_->Prepare(plan);
  exchange_.SetTimeout(timeout_);
  exchange_.Join(directory_.self(), run, plan);
  const bool on_plane =
      plane_ != nullptr && protection.MayUseNccl() && !store_->ContributesFromHost(plan);
  link_.Use(on_plane ? &plane_->communicators() : nullptr);
  link_.Join(directory_.self(), run);
  transport_->ShowKeys(protection.security == MeshSecurity::kCurve, directory_.own());
  const bool same = run == directory_.run() && protection == protection_;
  protection_ = protection;
  if (!same) Forget(directory_.self(), run);
  buffers_.Trim();
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
  copies_.SetResult({});
  more_to_do_ = true;
  const GroupReduction::Context context{.store = store_,
                                        .peers = &peers_,
                                        .buffers = &buffers_,
                                        .communicators = link_.communicators(),
                                        .plane = plane_.get(),
                                        .self = directory_.self(),
                                        .run = directory_.run(),
                                        .plan = plan_,
                                        .timeout = timeout_,
                                        .chunk_bytes = options_.chunk_bytes,
                                        .direct_bytes = options_.direct_bytes};
  active_.emplace(context, now, group, what, gain, in_place);
  Advance(now);
  if (!active_->hears()) {
    // Those that came before their group.
    for (EarlyFrames::Kept& frame : early_.TakeFailures(directory_.run(), group.id)) {
      OnGroupFrame(now, frame.header, std::move(frame.payload));
    }
  }
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

void Mesh::StartFetch(Instant now, const GroupMember& source, GroupId result, bool contributed,
                      bool in_place) {
  Meet(now, {&source, 1});
  more_to_do_ = true;
  copies_.StartFetch(now, {.source = source,
                           .what = {.result = result, .in_place = in_place},
                           .contributed = contributed});
}

void Mesh::CancelFetch() {
  copies_.CancelFetch();
  Rest();
}

void Mesh::StartSample(Instant now, const GroupMember& source) {
  Meet(now, {&source, 1});
  more_to_do_ = true;
  copies_.StartSample(now, source);
}

void Mesh::CancelSample() {
  copies_.CancelSample();
  Rest();
}

void Mesh::Probe(Instant now, const SharedList<GroupMember>& targets) {
  Meet(now, targets.get());
  prober_.Start(now, targets);
}

// ---- what comes in ----

void Mesh::OnFrame(Instant now, const FrameHeader& header, SharedBytes payload) {
  switch (header.kind) {
    case FrameKind::kRing:
    case FrameKind::kDirect:
    case FrameKind::kTree:
    case FrameKind::kFail:
      return OnGroupFrame(now, header, std::move(payload));
    case FrameKind::kPing:
      return OnPing(now, header, std::move(payload));
    case FrameKind::kPong:
      if (header.run == directory_.run() && OnPong(now, header)) {
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
    case FrameKind::kFetch:
    case FrameKind::kReplica:
    case FrameKind::kChunk:
    case FrameKind::kGone:
      ++(copies_.OnFrame(now, header, std::move(payload)) ? counters_.received : counters_.dropped);
      return;
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
  const bool over = header.run == directory_.run() && header.group <= last_group_;
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

// ---- questions ----

// From any worker that was announced: who is in a group that is not announced here yet, is not
// known. A peer that gets no answer asks again. The answer to a probe is as long as that.
void Mesh::OnPing(Instant now, const FrameHeader& header, SharedBytes payload) {
  const Result<std::string> endpoint = peers_.EndpointOf(*directory_.Find(header.from));
  if (endpoint.ok()) {
    if (IsOfLost(header)) {
      peers_.SendAgain(now, *endpoint);
    } else if (static_cast<Topic>(header.stage) != Topic::kLife) {
      peers_.Asked(now, *endpoint);
    }
  }
  const RunId run = directory_.run();
  bool sent = header.run == run && run != kNoRun && endpoint.ok() && header.stage < kTopics;
  if (sent) {
    const bool probe = header.stage == static_cast<std::uint32_t>(Topic::kLife);
    if (!probe || payload.size() > options_.probe_bytes) payload = SharedBytes();
    const FrameHeader pong{.kind = FrameKind::kPong,
                           .run = run,
                           .group = header.group,
                           .from = directory_.self(),
                           .to = header.from,
                           .stage = header.stage,
                           .chunk = static_cast<std::uint32_t>(AnswerTo(now, header, *endpoint)),
                           .length = payload.size()};
    sent = peers_.Signal(now, *endpoint, pong, std::move(payload));
  }
  if (!sent) {
    ++counters_.dropped;
  } else {
    ++(IsOfLost(header) ? counters_.acknowledgements : counters_.received);
  }
}

void Mesh::SayToCome(Instant now) {
  if (directory_.run() == kNoRun) return;
  // A device goes on with what it has begun.
  if (active_ && active_->runs() && !active_->OnDevice()) active_->SayToCome(now);
  copies_.SayToCome(now);
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
    to_come = copies_.IsAsked(now, ping) || to_come;
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
      return copies_.OnPong(now, header);
    case Topic::kPull:
      return exchange_.OnPong(now, header);
    case Topic::kLife: {
      const bool over = header.chunk == static_cast<std::uint32_t>(Answer::kOver);
      if (IsOfLost(header) && over) peers_.NothingLost(header.from, header.group);
      const std::optional<Rank> rank = prober_.Answered(now, header.from, header.length);
      if (rank) events_->OnProbed(*rank, header.from);
      return rank || IsOfLost(header);
    }
  }
  return false;
}

void Mesh::OnLost(Instant now, const std::string& endpoint) {
  more_to_do_ = true;  // this may fail what has been looked at in this turn
  copies_.OnLost(endpoint);
  exchange_.OnLost(endpoint);
  link_.OnLost(now, endpoint);
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
  intake_.Serve(now);
  const std::vector<std::string> lost = peers_.Service(now);
  if (active_) Advance(now);
  bool busy = true;
  for (int turn = 0; busy && turn < kFramesPerService; ++turn) {
    std::optional<Intake::Frame> frame;
    busy = intake_.Take(now, &frame);
    if (frame) OnFrame(now, frame->header, std::move(frame->payload));
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
  FinishCopies(now);
  copies_.Service(now);
  exchange_.Service(now);
  for (const std::string& endpoint : exchange_.TakeUnreachable()) GiveUp(now, endpoint);
  link_.Service(now);
  prober_.Ask(now);
  intake_.AnswerPeers(now);
  peers_.CloseUnused(now);
  if (const auto intruder = intake_.TakeIntruder(now)) events_->OnIntruder(*intruder);
}

void Mesh::FinishReduce(Instant now) {
  const std::optional<Status> status = active_->End(now);
  if (!status) return;
  const GroupId group = active_->id();
  const std::uint64_t sent = active_->sent_bytes();
  const std::uint64_t digest = active_->digest();
  if (status->ok()) {
    copies_.SetResult(active_->result());
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

void Mesh::FinishCopies(Instant now) {
  const auto give_up = [this, now](const std::string& endpoint) { GiveUp(now, endpoint); };
  if (const auto fetched = copies_.TakeFetched(now, give_up)) {
    if (fetched->replica) Warm();
    Rest();
    events_->OnFetched(fetched->status, fetched->iteration);
  }
  if (const auto sampled = copies_.TakeSampled(now, give_up)) {
    Rest();
    events_->OnSampled(sampled->status, sampled->row);
  }
}

void Mesh::Rest() {
  if (active_ || !copies_.idle()) return;
  peers_.Rest();
  copies_.Hold();
}

std::optional<Instant> Mesh::NextDeadline() const {
  if (more_to_do_) return Instant{0};
  std::optional<Instant> next = copies_.NextServed();
  const auto consider = [&](Instant at) {
    if (!next || at + kMillisecond < *next) next = at + kMillisecond;
  };
  if (const auto at = active_ ? active_->NextDeadline() : std::nullopt) consider(*at);
  if (const auto at = link_.NextDeadline()) consider(*at);
  const bool copies = copies_.Arriving() || exchange_.Arriving() || (active_ && active_->copies());
  if (copies) consider(now_ + kPoll);
  if (plane_ != nullptr && plane_->running()) {
    if (const auto at = plane_->NextDeadline()) consider(*at);
  }
  if (const auto at = copies_.NextDeadline()) consider(*at);
  if (const auto at = exchange_.NextDeadline()) consider(*at);
  if (const auto at = peers_.NextDeadline()) consider(*at);
  if (const auto at = intake_.NextDeadline()) consider(*at);
  if (const auto at = prober_.NextDeadline()) consider(*at);
  return next;
}

Mesh::Counters Mesh::counters() const {
  Counters all = counters_;
  all.dropped += intake_.counters().dropped;
  all.forged = intake_.counters().forged;
  all.repeated = intake_.counters().repeated;
  all.early_bytes = early_.bytes();
  all.resumed = peers_.resumed();
  return all;
}

const std::vector<Watched>& Mesh::WatchedLinks() {
  watched_.clear();
  peers_.AppendWatched(&watched_);
  return watched_;
}

}  // namespace prd
