#include "worker/mesh/mesh.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "common/base/check.h"

namespace prd {
namespace {

// Of one message part. The receiver of a larger one closes the connection.
constexpr std::int64_t kMaxPartBytes = 4 << 20;
constexpr int kReceiveHighWater = 8;
// Frames handled before the owner gets to look at its other sockets.
constexpr int kFramesPerService = 64;
// Frames kept for groups not announced here yet: at most two rows, or this if it is more. A peer
// cannot send more than a row before this worker takes part.
constexpr std::size_t kMinEarlyBytes = 16 << 20;
// Groups remembered that have lost such frames and cannot succeed here any more.
constexpr std::size_t kMaxIncomplete = 64;
// A silent member is asked this often, and has a third of the time limit for each answer.
constexpr int kAsks = 2;

// Messages come into memory that ZeroMQ takes from malloc. By default glibc returns freed blocks of
// their size to the system, and every page of the next one is cleared again: a third of the time of
// a large reduction. It learns from the largest block freed so far not to (mallopt(3),
// M_MMAP_THRESHOLD), as it does from any program that frees a large tensor; so show it one.
void TeachMallocToKeepChunks() {
  void* volatile block = std::malloc((32 << 20) - (64 << 10));
  std::free(block);
}

}  // namespace

Mesh::Mesh(zmq::context_t* context, Options options, ReplicaStore* store, MeshEvents* events)
    : options_(std::move(options)),
      store_(store),
      events_(events),
      pull_(*context, zmq::socket_type::pull),
      peers_(context, options_.host),
      server_(store, &peers_),
      exchange_(store, &peers_, events, options_.timeout) {}

Result<std::unique_ptr<Mesh>> Mesh::Create(zmq::context_t* context, Options options,
                                           ReplicaStore* store, MeshEvents* events) {
  TeachMallocToKeepChunks();
  std::unique_ptr<Mesh> mesh;
  try {
    mesh.reset(new Mesh(context, std::move(options), store, events));
    PRD_RETURN_IF_ERROR(mesh->Bind());
  } catch (const zmq::error_t& error) {
    return Status(Code::kInvalidArgument, "listening for peers on " +
                                              (mesh ? mesh->options_.address : std::string()) +
                                              ": " + error.what());
  }
  return mesh;
}

Status Mesh::Bind() {
  pull_.set(zmq::sockopt::linger, 0);
  pull_.set(zmq::sockopt::rcvhwm, kReceiveHighWater);
  pull_.set(zmq::sockopt::maxmsgsize, kMaxPartBytes);
  // An abstract socket: no file is left behind, however the process ends.
  char name[64];
  std::snprintf(name, sizeof name, "ipc://@prd-%016llx",
                static_cast<unsigned long long>(options_.incarnation));
  pull_.bind(name);
  endpoints_.push_back(name);
  const bool v6 = options_.address.find(':') != std::string::npos;
  if (v6) pull_.set(zmq::sockopt::ipv6, true);
  pull_.bind("tcp://" + (v6 ? "[" + options_.address + "]" : options_.address) + ":*");
  endpoints_.push_back(pull_.get(zmq::sockopt::last_endpoint));
  return Status::Ok();
}

void Mesh::SetIncarnation(Incarnation incarnation) {
  options_.incarnation = incarnation;
  run_ = kNoRun;
  active_.reset();
  fetching_.reset();
  server_.Clear();
  exchange_.Join(incarnation, kNoRun, {});
  staged_ = kNoGroup;
  {
    const std::lock_guard lock(store_->mutex);
    store_->Empty();
  }
  early_.clear();
  early_bytes_ = 0;
  Rest();
}

void Mesh::JoinRun(RunId run, const Plan& plan) {
  // Now rather than in the first reduction.
  staging_.resize(std::max(store_->parameters.bytes(), store_->gradients.bytes()));
  staged_ = kNoGroup;
  store_->Prepare(plan);
  exchange_.Join(options_.incarnation, run, plan);
  run_ = run;
  plan_ = plan;
  last_group_ = kNoGroup;
  incomplete_.clear();
}

// ---- commands ----

// What a group reduces here; an error for one that this plan has no use for.
Result<Mesh::Reduces> Mesh::WhatReduces(const Group& group) const {
  const Strategy strategy = plan_.strategy;
  if (group.kind == GroupKind::kRound) {
    if (strategy == Strategy::kEagerGradients) return Reduces::kOutbox;
  } else if (group.kind == GroupKind::kTrain && store_->background) {
    return Reduces::kVirtual;
  } else if (group.kind != GroupKind::kTrain || strategy == Strategy::kAverageModels) {
    return Reduces::kParameters;
  } else if (strategy == Strategy::kReduceGradients) {
    return Reduces::kGradients;
  } else if (strategy == Strategy::kLocalSteps) {
    return Reduces::kDifference;
  }
  return Status(Code::kFailedPrecondition, "the job's strategy has no groups of this kind");
}

// Makes this member's contribution ready, unless its weight is 0: then only the row's shape counts.
Status Mesh::ChooseRow() {
  active_->row = &store_->parameters;
  Result<Reduces> what = WhatReduces(active_->group);
  if (!what.ok()) return what.status();
  active_->what = *what;
  if (*what == Reduces::kGradients || *what == Reduces::kOutbox) active_->row = &store_->gradients;
  if (*what == Reduces::kDifference && store_->base.size() != store_->parameters.bytes()) {
    return Status(Code::kFailedPrecondition, "the parameters of the round's start are not known");
  }
  active_->begun = *what != Reduces::kVirtual;
  if (*what == Reduces::kVirtual) {
    store_->memory->Size(&store_->outbox, store_->parameters.bytes());
    active_->outbox = active_->row->Over(store_->outbox.data());
    active_->row = &active_->outbox;
    return Status::Ok();
  }
  if (active_->group.members[active_->position].weight == 0) return Status::Ok();
  if (*what == Reduces::kOutbox && !store_->owes) {
    return Status(Code::kFailedPrecondition, "there are no gradients to contribute");
  }
  if (*what == Reduces::kDifference) store_->TakeDifference();
  if (*what == Reduces::kDifference || *what == Reduces::kOutbox) {
    active_->outbox = active_->row->Over(store_->outbox.data());
    active_->row = &active_->outbox;
  }
  return Status::Ok();
}

Status Mesh::ChooseInitial(Reduction::Options* options) const {
  if (active_->group.initial_weight == 0) return Status::Ok();
  options->initial = store_->initial.data();
  options->initial_weight = active_->group.initial_weight;
  const bool models = active_->what == Reduces::kParameters || active_->what == Reduces::kVirtual;
  if (models && store_->initial.size() == active_->row->bytes()) {
    return Status::Ok();
  }
  return Status(Code::kFailedPrecondition, "no initial model is kept here");
}

// Also of a group that has failed already: its members are to be told.
void Mesh::ConnectMembers() {
  const SharedList<GroupMember>& members = active_->group.members;
  Status& failure = active_->failure;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (i == active_->position) continue;
    Result<std::string> endpoint = peers_.EndpointOf(members[i]);
    if (endpoint.ok()) active_->endpoints[i] = *endpoint;
    if (!failure.ok()) continue;
    if (!endpoint.ok()) {
      failure = endpoint.status();
    } else if (active_->reduction->Needs(i)) {
      failure = peers_.Use(*endpoint);
    }
  }
}

void Mesh::StartReduce(Instant now, const Group& group, Iteration gain) {
  PRD_CHECK(!active_);
  CallOff(group.id);
  staged_ = kNoGroup;
  active_.emplace();
  active_->group = group;
  active_->gain = gain;
  active_->progress = now;
  active_->endpoints.resize(group.members.size());
  more_to_do_ = true;
  Reduction::Options options{.chunk_bytes = options_.chunk_bytes,
                             .direct_bytes = options_.direct_bytes};
  for (std::size_t i = 0; i < group.members.size(); ++i) {
    options.weights.push_back(group.members[i].weight);
    if (group.members[i].incarnation == options_.incarnation) active_->position = i;
  }
  options.position = active_->position;
  active_->failure = ChooseRow();
  if (active_->failure.ok()) active_->failure = ChooseInitial(&options);
  if (staging_.size() < active_->row->bytes()) staging_.resize(active_->row->bytes());
  options.staging = staging_.data();
  active_->reduction.emplace(active_->row, std::move(options));
  ConnectMembers();
  Begin(now);
}

// Takes what is to be contributed, if that is still to do and can be done, and what came before.
void Mesh::Begin(Instant now) {
  if (!active_->begun) {
    const std::unique_lock lock(store_->mutex, std::try_to_lock);
    if (!lock.owns_lock()) return;  // the caller is inside `apply`
    store_->TakeVirtual();
    active_->begun = true;
    active_->progress = now;
    more_to_do_ = true;
  }
  const GroupId group = active_->group.id;
  if (std::find(incomplete_.begin(), incomplete_.end(), group) != incomplete_.end()) {
    active_->failure =
        Status(Code::kResourceExhausted, "too much was sent before this worker took part");
  }
  std::deque<Early> early;
  early.swap(early_);
  early_bytes_ = 0;
  for (Early& frame : early) OnGroupFrame(now, frame.header, std::move(frame.payload));
}

void Mesh::CancelReduce() {
  if (!active_) return;
  peers_.DropQueued(active_->group.id);
  active_.reset();
  Rest();
}

void Mesh::StartFetch(Instant now, const GroupMember& source, GroupId result, bool contributed) {
  PRD_CHECK(!fetching_);
  fetching_.emplace(Fetching{.source = source,
                             .endpoint = {},
                             .number = ++fetches_,
                             .replica = IncomingReplica(store_, plan_.strategy, result),
                             .contributed = contributed,
                             .progress = now,
                             .failure = {}});
  more_to_do_ = true;
  Result<std::string> endpoint = peers_.EndpointOf(source);
  fetching_->failure = endpoint.ok() ? peers_.Use(*endpoint) : endpoint.status();
  if (!fetching_->failure.ok()) return;
  fetching_->endpoint = *endpoint;
  const std::string address = EncodeReturnAddress(options_.host, endpoints_);
  const FrameHeader header{.kind = FrameKind::kFetch,
                           .run = run_,
                           .group = fetching_->number,
                           .from = options_.incarnation,
                           .to = source.incarnation,
                           .offset = result,
                           .length = address.size()};
  peers_.Send(*endpoint, header, zmq::message_t(address));
}

void Mesh::CancelFetch() {
  fetching_.reset();
  Rest();
}

// ---- what comes in ----

bool Mesh::ReceiveOne(Instant now) {
  zmq::message_t first;
  zmq::message_t payload;
  if (!pull_.recv(first, zmq::recv_flags::dontwait)) return false;
  int parts = 1;
  for (bool more = first.more(); more; ++parts) {
    zmq::message_t part;
    if (!pull_.recv(part, zmq::recv_flags::dontwait)) break;
    more = part.more();
    if (parts == 1) payload = std::move(part);
  }
  const std::optional<FrameHeader> header =
      DecodeHeader({static_cast<const std::byte*>(first.data()), first.size()}, payload.size());
  if (parts != 2 || !header || header->to != options_.incarnation || header->from == 0) {
    ++counters_.dropped;
  } else {
    OnFrame(now, *header, std::move(payload));
  }
  return true;
}

void Mesh::OnFrame(Instant now, const FrameHeader& header, zmq::message_t payload) {
  switch (header.kind) {
    case FrameKind::kRing:
    case FrameKind::kDirect:
    case FrameKind::kTree:
    case FrameKind::kFail:
      return OnGroupFrame(now, header, std::move(payload));
    case FrameKind::kPing:
      return OnPing(header, payload);
    case FrameKind::kPong:
      return OnPong(now, header);
    case FrameKind::kFetch: {
      const auto to =
          DecodeReturnAddress({static_cast<const char*>(payload.data()), payload.size()});
      if (header.run != run_ || run_ == kNoRun || !to) {
        ++counters_.dropped;
        return;
      }
      ++counters_.received;
      server_.OnRequest(now, header, *to, NewestResult());
      return;
    }
    case FrameKind::kReplica:
    case FrameKind::kChunk:
    case FrameKind::kGone:
      if (!fetching_ || header.run != run_ || header.group != fetching_->number ||
          header.from != fetching_->source.incarnation || !fetching_->failure.ok() ||
          fetching_->replica.Complete()) {
        ++counters_.dropped;
        return;
      }
      ++counters_.received;
      fetching_->progress = now;
      fetching_->failure = fetching_->replica.OnFrame(header, std::move(payload));
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

void Mesh::OnGroupFrame(Instant now, const FrameHeader& header, zmq::message_t payload) {
  if (header.run == run_ && header.group <= last_group_) {
    if (active_ && header.group == active_->group.id) {
      if (!active_->begun) return KeepEarly(header, std::move(payload));
      ToReduction(now, header, std::move(payload));
    } else {
      ++counters_.dropped;
    }
    return;
  }
  KeepEarly(header, std::move(payload));
}

void Mesh::KeepEarly(const FrameHeader& header, zmq::message_t payload) {
  const std::size_t limit =
      std::max(kMinEarlyBytes, 2 * std::max(store_->parameters.bytes(), store_->gradients.bytes()));
  early_bytes_ += payload.size() + sizeof(Early);
  ++counters_.early;
  early_.push_back({header, std::move(payload)});
  while (early_bytes_ > limit) {
    const Early& oldest = early_.front();
    early_bytes_ -= oldest.payload.size() + sizeof(Early);
    if (incomplete_.empty() || incomplete_.back() != oldest.header.group) {
      incomplete_.push_back(oldest.header.group);
      if (incomplete_.size() > kMaxIncomplete) incomplete_.pop_front();
    }
    early_.pop_front();
    ++counters_.dropped;
  }
}

// From anybody who knows this incarnation: who is in a group that is not announced here yet, is
// not known. A peer that gets no answer asks again.
void Mesh::OnPing(const FrameHeader& header, const zmq::message_t& payload) {
  const bool running = active_ && active_->group.id == header.group && active_->failure.ok();
  const bool to_come = plan_.ahead && header.group > last_group_;
  const auto to = DecodeReturnAddress({static_cast<const char*>(payload.data()), payload.size()});
  const Result<std::string> endpoint =
      to ? peers_.EndpointOf(*to) : Result<std::string>(Status(Code::kInvalidArgument, "none"));
  const FrameHeader pong{.kind = FrameKind::kPong,
                         .run = run_,
                         .group = header.group,
                         .from = options_.incarnation,
                         .to = header.from};
  const bool sent = header.run == run_ && run_ != kNoRun && (running || to_come) && endpoint.ok() &&
                    peers_.Offer(*endpoint, pong);
  ++(sent ? counters_.received : counters_.dropped);
}

void Mesh::OnPong(Instant now, const FrameHeader& header) {
  const bool ours = active_ && header.run == run_ && header.group == active_->group.id;
  const std::size_t answered =
      ours ? std::erase_if(active_->silent,
                           [&](std::size_t position) {
                             return active_->group.members[position].incarnation == header.from;
                           })
           : 0;
  if (answered == 0) {
    ++counters_.dropped;
    return;
  }
  ++counters_.received;
  if (active_->silent.empty()) Progress(now);
}

void Mesh::ToReduction(Instant now, const FrameHeader& header, zmq::message_t payload) {
  const SharedList<GroupMember>& members = active_->group.members;
  const auto from = std::find_if(members.begin(), members.end(), [&](const GroupMember& member) {
    return member.incarnation == header.from;
  });
  if (from == members.end() || !active_->failure.ok() || active_->reduction->Complete()) {
    ++counters_.dropped;
    return;
  }
  ++counters_.received;
  Progress(now);
  if (header.kind == FrameKind::kFail) {
    active_->failure =
        Status(Code::kAborted, "rank " + std::to_string(from->rank) + " gave the group up");
    active_->told = true;
    return;
  }
  std::vector<Reduction::Outgoing> out;
  const Status status = active_->reduction->OnFrame(
      static_cast<std::size_t>(from - members.begin()), header, std::move(payload), &out);
  if (!status.ok()) {
    active_->failure =
        Status(status.code(), "rank " + std::to_string(from->rank) + ": " + status.message());
  }
  for (Reduction::Outgoing& frame : out) Send(std::move(frame));
}

// ---- what goes out ----

void Mesh::Send(Reduction::Outgoing out) {
  const GroupMember& to = active_->group.members[out.to];
  out.header.run = run_;
  out.header.group = active_->group.id;
  out.header.from = options_.incarnation;
  out.header.to = to.incarnation;
  active_->sent += out.payload.size();
  peers_.Send(active_->endpoints[out.to], out.header, std::move(out.payload));
}

// Own bytes follow what was received, which others wait for.
bool Mesh::SendOwn(Instant now) {
  if (!active_ || !active_->begun || !active_->failure.ok()) return false;
  const std::optional<std::size_t> to = active_->reduction->OwnTo();
  if (to && !peers_.Idle(active_->endpoints[*to])) return false;
  std::optional<Reduction::Outgoing> own = active_->reduction->NextOwn();
  if (!own) return false;
  Progress(now);  // the only one of a sole contributor: nothing comes back
  Send(std::move(*own));
  return true;
}

void Mesh::OnLost(const std::string& endpoint) {
  server_.OnLost(endpoint);
  exchange_.OnLost(endpoint);
  if (fetching_ && fetching_->endpoint == endpoint && fetching_->failure.ok() &&
      !fetching_->replica.Complete()) {
    fetching_->failure =
        Status(Code::kUnavailable,
               "the connection to rank " + std::to_string(fetching_->source.rank) + " was lost");
  }
  if (!active_ || !active_->failure.ok() || active_->reduction->Complete()) return;
  for (std::size_t i = 0; i < active_->endpoints.size(); ++i) {
    if (active_->endpoints[i] != endpoint) continue;
    active_->endpoints[i].clear();  // nothing to be told there
    active_->failure = Status(
        Code::kUnavailable,
        "the connection to rank " + std::to_string(active_->group.members[i].rank) + " was lost");
  }
}

// Those that wait for a chunk which will not come any more need not wait for a time limit.
void Mesh::TellOthers() {
  for (std::size_t i = 0; i < active_->group.members.size(); ++i) {
    const std::string& endpoint = active_->endpoints[i];
    if (i == active_->position || endpoint.empty() || !peers_.Use(endpoint).ok()) continue;
    const FrameHeader header{.kind = FrameKind::kFail,
                             .run = run_,
                             .group = active_->group.id,
                             .from = options_.incarnation,
                             .to = active_->group.members[i].incarnation};
    peers_.Send(endpoint, header, zmq::message_t());
  }
}

// ---- silence ----

bool Mesh::MayBeLate() const { return plan_.ahead && active_->group.kind == GroupKind::kTrain; }

void Mesh::Progress(Instant now) {
  active_->progress = now;
  active_->silent.clear();
  active_->asked = 0;
}

// When something must have come, or there is somebody to ask; nullopt: nothing need come.
std::optional<Instant> Mesh::GiveUpAt() const {
  if (!active_->begun || active_->reduction->Complete()) return std::nullopt;
  if (!MayBeLate()) return active_->progress + options_.timeout;
  return (active_->asked == 0 ? active_->progress : active_->asked_at) + options_.timeout / 3;
}

void Mesh::WatchSilence(Instant now) {
  const std::optional<Instant> give_up = GiveUpAt();
  if (!active_->failure.ok() || !give_up || now <= *give_up) return;
  if (MayBeLate() && active_->asked < kAsks) return Ask(now);
  std::string who;
  for (const std::size_t position : active_->silent) {
    who += (who.empty() ? ", nor do these answer: rank " : ", ") +
           std::to_string(active_->group.members[position].rank);
  }
  active_->failure =
      Status(Code::kDeadlineExceeded, "nothing was received for too long" + std::move(who));
}

void Mesh::Ask(Instant now) {
  std::vector<std::size_t>& silent = active_->silent;
  if (active_->asked == 0) {
    for (std::size_t i = 0; i < active_->endpoints.size(); ++i) {
      if (active_->reduction->Awaits(i)) silent.push_back(i);
    }
  }
  ++active_->asked;
  active_->asked_at = now;
  const std::string address = EncodeReturnAddress(options_.host, endpoints_);
  for (const std::size_t position : silent) {
    active_->failure = peers_.Use(active_->endpoints[position]);
    if (!active_->failure.ok()) return;
    peers_.Send(active_->endpoints[position],
                {.kind = FrameKind::kPing,
                 .run = run_,
                 .group = active_->group.id,
                 .from = options_.incarnation,
                 .to = active_->group.members[position].incarnation,
                 .length = address.size()},
                zmq::message_t(address));
  }
}

// ---- turns ----

void Mesh::Service(Instant now) {
  more_to_do_ = false;
  for (const std::string& endpoint : peers_.Service()) OnLost(endpoint);
  if (active_ && !active_->begun) Begin(now);
  bool busy = true;
  for (int turn = 0; busy && turn < kFramesPerService; ++turn) {
    busy = ReceiveOne(now);
    busy = SendOwn(now) || busy;
  }
  more_to_do_ = busy;
  if (active_) FinishReduce(now);
  if (fetching_) FinishFetch(now);
  if (!server_.idle()) server_.Service(now, options_.timeout);
  exchange_.Service(now);
}

void Mesh::FinishReduce(Instant now) {
  WatchSilence(now);
  if (active_->failure.ok() && !active_->reduction->Complete()) return;
  Status status = active_->failure;
  if (status.ok()) {
    const std::unique_lock lock(store_->mutex, std::try_to_lock);
    if (!lock.owns_lock()) return;  // the caller is inside `apply`
    if (active_->what == Reduces::kVirtual && !store_->owes) {
      status = Status(Code::kAborted, "the replica was replaced meanwhile");
    } else {
      CommitReduction();
    }
  } else {
    peers_.DropQueued(active_->group.id);
    if (!active_->told) TellOthers();
  }
  const GroupId group = active_->group.id;
  const std::uint64_t sent = active_->sent;
  active_.reset();
  Rest();
  events_->OnReduced(group, status, sent);
}

void Mesh::CommitReduction() {
  const Group& group = active_->group;
  const Memory::Place result = Memory::In(active_->reduction->result());
  switch (active_->what) {
    case Reduces::kParameters:
      store_->SetParameters(result);
      if (!MayBeLate()) store_->iteration = group.iteration;
      return CommitParameters();
    case Reduces::kGradients:
      store_->memory->Combine(store_->gradients, Memory::Tensors(), {{result}});
      return;
    case Reduces::kDifference:
      store_->AddToBase(result, plan_.global_lr);
      store_->iteration = group.iteration;
      return;
    case Reduces::kOutbox:
      store_->AddToInbox(result, group.iteration, plan_.latest_only);
      if (active_->row == &active_->outbox) store_->owes = false;
      staged_ = group.id;
      staged_round_ = group.iteration;
      return;
    case Reduces::kVirtual:
      return store_->AddDifference(result, active_->gain);
  }
}

// What goes with parameters that are new in place.
void Mesh::CommitParameters() {
  const GroupKind kind = active_->group.kind;
  if (kind == GroupKind::kInitial && plan_.keep_initial) store_->KeepInitial();
  if (kind == GroupKind::kInitial || kind == GroupKind::kFinal) store_->Empty();
  if (KeepsBase(plan_.strategy)) store_->SetBase();
}

void Mesh::FinishFetch(Instant now) {
  if (fetching_->failure.ok() && !fetching_->replica.Complete()) {
    if (now - fetching_->progress <= options_.timeout) return;
    fetching_->failure =
        Status(Code::kDeadlineExceeded,
               "rank " + std::to_string(fetching_->source.rank) + " sent nothing for too long");
  }
  Status status = fetching_->failure;
  Iteration iteration = 0;
  if (status.ok()) {
    const std::unique_lock lock(store_->mutex, std::try_to_lock);
    if (!lock.owns_lock()) return;
    iteration = CommitFetch();
  }
  fetching_.reset();
  Rest();
  events_->OnFetched(status, iteration);
}

Iteration Mesh::CommitFetch() {
  IncomingReplica& replica = fetching_->replica;
  if (replica.result() == kNoGroup) return replica.Commit();
  const std::shared_ptr<Buffer> row = replica.TakeResult();
  store_->AddToInbox(Memory::InHost(row->data(), row), replica.round(), plan_.latest_only);
  if (fetching_->contributed) store_->owes = false;
  return replica.round();
}

RoundResult Mesh::NewestResult() const {
  if (staged_ == kNoGroup) return {};
  return {.group = staged_, .round = staged_round_, .row = Memory::In(staging_.data())};
}

void Mesh::Rest() {
  if (active_ || fetching_) return;
  peers_.Rest();
  server_.Hold();
}

std::optional<Instant> Mesh::NextDeadline() const {
  if (more_to_do_) return Instant{0};
  std::optional<Instant> next = server_.NextDeadline(options_.timeout);
  const auto consider = [&](Instant at) {
    if (!next || at + kMillisecond < *next) next = at + kMillisecond;
  };
  // What is complete, or has not begun, waits for the store's mutex only.
  if (const auto at = active_ ? GiveUpAt() : std::nullopt) consider(*at);
  if (fetching_ && !fetching_->replica.Complete()) {
    consider(fetching_->progress + options_.timeout);
  }
  if (const auto at = exchange_.NextDeadline()) consider(*at);
  return next;
}

void Mesh::AppendPollItems(std::vector<zmq::pollitem_t>* items) {
  items->push_back({pull_.handle(), 0, ZMQ_POLLIN, 0});
  peers_.AppendPollItems(items);
}

}  // namespace prd
