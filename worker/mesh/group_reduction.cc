#include "worker/mesh/group_reduction.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "common/base/check.h"

namespace prd {
GroupReduction::GroupReduction(Context context, Instant now, const Group& group, Reduced what,
                               Iteration gain, bool in_place)
    : context_(std::move(context)),
      links_(context_.peers, now, group, context_.self, context_.run, context_.timeout),
      part_(context_.store, &context_.plan, &links_.group(), links_.position(),
            context_.direct_bytes, in_place),
      gain_(gain) {
  failure_ = part_.Choose(what);
  if (failure_.ok() && group.ring_only) {
    choice_ = Communicators::Choice{.way = Way::kStaged};  // a communicator needs every link
  } else if (failure_.ok()) {
    asked_ = true;
    choice_ = context_.communicators->Begin(now, group);
  }
  if (part_.taken() && choice_ && choice_->way == Way::kStaged) Staged();
  Connect();
}

// ---- the way ----

bool GroupReduction::Advance(Instant now) {
  if (!runs() || hears_ || started_) return false;
  // Nothing that is waited for here comes any more from a device that failed.
  if (Status status = context_.store->memory->failure(); !status.ok()) Fail(std::move(status));
  if (!runs()) return false;
  if (!part_.taken() && part_.Take()) links_.Progress(now);
  if (!choice_) choice_ = context_.communicators->Told(group());
  if (!part_.taken() || !choice_) return false;
  if (!OnPlane() && !reduction_) {
    Staged();
    Connect();
  }
  if (!runs()) return false;
  if (OnPlane()) {
    // A reduction that was called off may not be over on the device.
    if (context_.plane->running() && !context_.plane->Ended(now)) return false;
    StartPlane(now);
    return false;
  }
  Copy();
  if (!Readable()) return false;
  links_.Progress(now);
  return hears_ = true;
}

// Before that the replica is as it was, and may be copied, also by a member that this one waits
// for.
void GroupReduction::NoteLanding() {
  if (context_.store->fold.open) context_.store->landing = reduction_->landed();
  const bool gradients = part_.what() == OwnPart::What::kGradients;
  if (gradients || !part_.InPlace() || !reduction_->landed()) return;
  context_.store->landing = part_.Commits();
  context_.store->averaged.Written();  // also if it fails
}

// The reduction through the mesh. Nothing of the row is read yet.
void GroupReduction::Staged() {
  ReplicaStore* store = context_.store;
  Reduction::Options options{.weights = {},
                             .position = links_.position(),
                             .initial_weight = group().initial_weight,
                             .chunk_bytes = context_.chunk_bytes,
                             .direct_bytes = context_.direct_bytes,
                             .ring_only = group().ring_only};
  for (const GroupMember& each : group().members) options.weights.push_back(each.weight);
  if (!part_.device() && group().initial_weight != 0) options.initial = store->initial.data();
  if (!part_.Commits() && part_.InPlace() && !part_.Overwrites()) {
    if (std::exchange(store->partly_averaged.iteration, group().iteration) != group().iteration) {
      store->partly_averaged.cells.clear();
    }
    options.done = &store->partly_averaged.cells;
  }
  options.settles = part_.Settles();
  if ((part_.Commits() || part_.Overwrites()) && part_.InPlace()) {
    options.before_landing = [store, torn = part_.Overwrites()] {
      const std::lock_guard lock(store->mutex);  // the caller waits
      store->AboutToChange();
      store->torn |= torn;
    };
  }
  if (part_.Settles() && !part_.device()) {
    options.into = Reduction::Into::kBase;
    options.base = store->base.data();
    options.share = WeightOf(OuterRate(context_.plan));
  } else if (part_.ReplacesOutbox(started_) || part_.InPlace()) {
    const bool change = part_.what() == OwnPart::What::kVirtual && !store->fold.there;
    options.into = change ? Reduction::Into::kChange : Reduction::Into::kRow;
  } else if (part_.Arrives()) {
    options.into = Reduction::Into::kStaging;
    arriving_ = options.staging = store->MakeRoom();
  } else if (!part_.ResultStays()) {
    staging_ = context_.buffers->Get(part_.shape().bytes());
    options.into = Reduction::Into::kStaging;
    options.staging = staging_->data();
  }
  const Layout* row = &row_;  // a null's sizes alone count
  const bool at_hand = part_.own_row() && (!part_.device() || store->outbox.host());
  if (at_hand) {
    row_ = part_.shape().Over(store->contributed());
  } else if (part_.device() && part_.contributes()) {
    own_ = context_.buffers->Get(part_.shape().bytes());
    row_ = part_.shape().Over(own_->data());
  } else {
    row = &part_.shape();
  }
  reduction_.emplace(row, std::move(options));
}

// A device's contribution, to host memory.
void GroupReduction::Copy() {
  if (own_ == nullptr || copied_) return;
  copied_ = true;
  const ReplicaStore& store = *context_.store;
  const Memory::Place part = part_.own_row() ? Memory::In(store.outbox) : Memory::Tensors();
  own_->Expect(store.memory->Combine(part_.shape(), Memory::InHost(own_->data(), own_), {{part}}));
}

// What is contributed is all in host memory.
bool GroupReduction::Readable() const {
  if (own_ != nullptr) return own_->ready() == own_->size();
  Transfer* const written = part_.own_row() ? context_.store->outbox_written.get() : nullptr;
  return written == nullptr || written->ready() >= part_.shape().bytes();
}

bool GroupReduction::HandedOver() {
  if (handed_over_ || !started_ || !runs() || !part_.Commits()) return false;
  handed_over_ = context_.plane->Enqueued();
  if (handed_over_) context_.store->averaged.Written();  // in the order of the memory's stream
  return handed_over_;
}

void GroupReduction::StartPlane(Instant now) {
  ReplicaStore* store = context_.store;
  started_ = true;
  links_.Progress(now);
  context_.plane->Start(now, group(), *choice_,
                        {.layout = &part_.shape(),
                         .row = part_.own_row() ? store->outbox.data() : nullptr,
                         .position = links_.position(),
                         .into = part_.Into(),
                         .initial = store->initial.data()});
  store->landing = part_.Commits();
  if (part_.Commits()) store->averaged.Written();  // perhaps, also if it fails
}

// Also of a group that has failed already: its members are to be told. Of a group whose way is not
// chosen yet, the communicator's connections are watched.
void GroupReduction::Connect() {
  if (!runs()) return links_.Resolve();
  failure_ = links_.Connect([this](std::size_t i) { return Needs(i); });
}

// ---- frames ----

bool GroupReduction::OnFrame(Instant now, const FrameHeader& header, SharedBytes payload) {
  const std::optional<std::size_t> from = links_.PositionOf(header.from);
  if (!from || !runs() || Complete() || ended_) return false;
  const std::string rank = RankName(member(*from).rank);
  if (header.kind == FrameKind::kFail) {
    failure_ = Status(Code::kAborted, rank + " gave the group up");
    told_ = !group().ring_only;  // that member may not reach all others
    return true;
  }
  if (!hears_) return false;
  if (!links_.IsPart(header)) {
    failure_ = Status(Code::kAborted, rank + " has sent a part of another group of this number");
    return true;
  }
  links_.Progress(now);
  std::vector<Reduction::Outgoing> out;
  const Status status = reduction_->OnFrame(*from, header, std::move(payload), &out);
  NoteLanding();
  if (!status.ok()) failure_ = Status(status.code(), rank + ": " + status.message());
  for (Reduction::Outgoing& frame : out) {
    links_.Send(frame.to, frame.header, std::move(frame.payload));
  }
  return true;
}

bool GroupReduction::OnPong(Instant now, const FrameHeader& header) {
  if (!links_.OnPong(now, header)) return false;
  // It may begin late; once all have begun, the plane's own time limit counts.
  const bool to_come = header.chunk == static_cast<std::uint32_t>(Answer::kToCome);
  if (started_ && to_come) context_.plane->Extend(now);
  return true;
}

// Own bytes follow what was received, which others wait for.
bool GroupReduction::SendOwn(Instant now) {
  if (!hears_ || !runs()) return false;
  const std::optional<std::size_t> to = reduction_->OwnTo();
  if (to && !links_.Idle(*to)) return false;
  std::optional<Reduction::Outgoing> own = reduction_->NextOwn();
  NoteLanding();
  if (!own) return false;
  links_.Progress(now);  // the only one of a sole contributor: nothing comes back
  links_.Send(own->to, own->header, std::move(own->payload));
  return true;
}

// ---- failures ----

void GroupReduction::Fail(Status why) {
  if (runs()) failure_ = std::move(why);
}

void GroupReduction::CallOff(Status why) {
  Fail(std::move(why));
  told_ = true;
}

void GroupReduction::OnLost(const std::string& endpoint) {
  if (!runs() || Complete() || ended_) return;
  Status lost = links_.OnLost(endpoint);
  // The plane hears of it, and may be about to be through.
  if (!started_ && !lost.ok()) failure_ = std::move(lost);
}

void GroupReduction::WatchSilence(Instant now) {
  if (!runs() || !part_.taken() || Complete() || ended_) return;
  // Whoever has something to say before this member can be through.
  failure_ =
      links_.Watch(now, [this](std::size_t i) { return !reduction_ || reduction_->Awaits(i); });
}

// ---- the end ----

void GroupReduction::Cancel(Instant now) {
  links_.DropQueued();
  GiveUpPlane(now, "the group was called off");
  if (asked_) context_.communicators->End(now, group(), false);
}

void GroupReduction::GiveUpPlane(Instant now, const std::string& why) {
  if (!started_ || !context_.plane->running()) return;
  context_.plane->Cancel(now, why);
  (void)context_.plane->Ended(now);
}

// The result is there to be committed.
bool GroupReduction::Ended(Instant now) {
  if (!started_ || ended_ || !runs()) return ended_ || Complete();
  if (const std::optional<Status> status = context_.plane->Ended(now)) {
    if (!status->ok()) failure_ = *status;
    ended_ = status->ok();
  }
  return ended_;
}

// A failure that came too late: what the device had begun to write is the result. False: it is not
// so, or not known yet (then the plane still runs).
bool GroupReduction::CommittedAnyhow(Instant now) {
  if (!started_ || ended_ || !part_.Commits() || !context_.plane->running()) return false;
  context_.plane->Cancel(now, failure_.message());
  const std::optional<Status> status = context_.plane->Ended(now);
  ended_ = status && status->ok();
  return ended_;
}

std::optional<Status> GroupReduction::End(Instant now) {
  const bool ended = Ended(now);
  WatchSilence(now);
  if (runs() && !ended) return std::nullopt;
  if (!runs() && CommittedAnyhow(now)) failure_ = Status::Ok();
  if (!runs() && started_ && part_.Commits() && context_.plane->running()) return std::nullopt;
  Status status = failure_;
  if (status.ok()) {
    const std::unique_lock lock(context_.store->mutex, std::try_to_lock);
    if (!lock.owns_lock()) return std::nullopt;  // the caller is inside `apply`
    status = Commit();
    links_.RememberSent([this](std::size_t i) { return Needs(i); });
  } else {
    links_.DropQueued();
    GiveUpPlane(now, status.message());
    if (!told_) links_.TellOthers();
  }
  if (asked_) context_.communicators->End(now, group(), status.ok());
  return status;
}

Memory::Place GroupReduction::ResultRow() const {
  if (part_.ReplacesOutbox(started_)) return Memory::In(context_.store->outbox);
  if (started_) return Memory::In(context_.plane->result());
  if (arriving_ != nullptr) return Memory::In(const_cast<std::byte*>(arriving_));
  return staging_ ? Memory::InHost(staging_->data(), staging_) : Memory::Tensors();
}

RoundResult GroupReduction::result() const {
  if (group().kind != GroupKind::kRound || stays()) return {};
  return {.group = group().id,
          .round = group().iteration,
          .row = ResultRow(),
          .members = group().members};
}

std::uint64_t GroupReduction::sent_bytes() const {
  return links_.sent_bytes() + (started_ ? context_.plane->sent_bytes() : 0);
}

// REQUIRES: the store's mutex is held.
Status GroupReduction::Commit() {
  ReplicaStore* store = context_.store;
  const Memory::Place place = ResultRow();
  // On a host the initial model's part is in the result; so it is on the plane.
  const Weight initial = part_.device() && reduction_ ? reduction_->initial_share() : Weight{0, 0};
  bool in_parameters = false;
  switch (part_.what()) {
    case OwnPart::What::kParameters:
      in_parameters = true;
      CommitParameters(place, initial);
      break;
    case OwnPart::What::kGradients:
      store->partly_averaged.cells.clear();
      if (stays() || part_.InPlace()) break;
      store->memory->Combine(store->gradients, Memory::Tensors(), {{place}});
      break;
    case OwnPart::What::kDifference:
      in_parameters = true;
      AddToBase(place);
      store->iteration = group().iteration;
      break;
    case OwnPart::What::kOutbox:
      if (arriving_ != nullptr) {
        arriving_ = store->LandArriving(group().iteration, TakesNewestOnly(context_.plan));
      } else {
        store->AddToInbox(place, group().iteration, TakesNewestOnly(context_.plan));
      }
      if (part_.own_row()) store->owes = false;
      break;
    case OwnPart::What::kVirtual:
      if (!store->owes) return Status(Code::kAborted, "the replica was replaced meanwhile");
      if (!part_.ReplacesOutbox(started_)) store->TakeChange(place, initial);
      store->LandChange(gain_);
      break;
  }
  if (group().digest && in_parameters) {
    const std::uint64_t digest = store->memory->DigestOf(store->trained);
    if (store->memory->failure().ok()) digest_ = digest;
  }
  return Status::Ok();
}

void GroupReduction::AddToBase(const Memory::Place& mean) {
  ReplicaStore* store = context_.store;
  if (part_.InPlace()) return store->SetBase();  // all of it has landed
  store->AddToBase(mean, OuterRate(context_.plan));
  if (!reduction_) return;
  const std::size_t cell = reduction_->cell_bytes();
  for (std::size_t i = 0; i < reduction_->settled().size(); ++i) {
    if (!reduction_->settled()[i]) continue;
    const std::size_t offset = i * cell;
    const Memory::Place to[] = {Memory::In(store->base, offset), Memory::Tensors()};
    const Memory::Input from[] = {{Memory::InHost(staging_->data() + offset, staging_)}};
    store->memory->Combine(part_.shape(), offset, std::min(cell, part_.shape().bytes() - offset),
                           to, from);
  }
}

void GroupReduction::CommitParameters(const Memory::Place& result, Weight initial) {
  ReplicaStore* store = context_.store;
  const GroupKind kind = group().kind;
  if (kind == GroupKind::kInitial) store->torn = false;
  if (stays() || part_.Overwrites()) {
    store->ReplacedParameters();
  } else if (&part_.shape() == &store->whole) {
    store->SetWhole(result);
  } else if (!part_.Commits() || (part_.device() && !started_)) {
    store->SetParameters(result, initial);
  }
  store->averaged.Written();
  if (!part_.MayBeLate()) store->iteration = group().iteration;
  if (kind == GroupKind::kInitial && RowsOf(context_.plan).initial) store->KeepInitial();
  if (kind == GroupKind::kInitial || kind == GroupKind::kFinal) store->Empty();
  if (RowsOf(context_.plan).base) store->SetBase();
}

std::optional<Instant> GroupReduction::NextDeadline() const {
  // What is complete, or has not been taken, waits for the store's mutex only.
  if (!runs() || !part_.taken() || Complete() || ended_) return std::nullopt;
  return links_.NextDeadline();
}

}  // namespace prd
