#include "worker/device/comm_making.h"

#include <memory>
#include <utility>

namespace prd {
namespace {

using State = Communicator::State;

}  // namespace

void CommMaking::Join(Incarnation self) {
  self_ = self;
  making_.reset();
  poll_at_.reset();
}

std::optional<CommId> CommMaking::id() const {
  return making_ ? std::optional(making_->id) : std::nullopt;
}

bool CommMaking::AllAnswered(const Communicator& comm) const {
  return making_->answered.size() + 1 == comm.set.size();
}

// The leader's time is shorter, and it tells when it is over.
Instant CommMaking::DeadlineFrom(Instant now, const Communicator& comm) const {
  return now + (Leads(comm) ? 1 : 2) * timeout_;
}

void CommMaking::Begin(Instant now, const Communicator& comm) {
  making_ = Making{.id = comm.id, .deadline = DeadlineFrom(now, comm)};
  poll_at_ = now;
  if (!Leads(comm) || unique_id_ || id_pending_) return;
  gpu_->MakeUniqueId();
  id_pending_ = true;
}

void CommMaking::End(CommId id) {
  if (making_ && making_->id == id) making_.reset();
}

std::optional<Refusal> CommMaking::Answer(Instant now, Communicator* comm, Incarnation from,
                                          std::optional<Refusal> refusal) {
  making_->answered.insert(from);
  // The one that is the longest to stay.
  std::optional<Refusal>& refused = making_->refused;
  if (refusal && refused != Refusal::kNoRoom && refused != Refusal::kUnknown) refused = refusal;
  if (!AllAnswered(*comm)) return std::nullopt;
  if (!refused && unique_id_) Create(now, comm);
  return refused;
}

void CommMaking::Create(Instant now, Communicator* comm) {
  const Gpu::UniqueId id = *std::exchange(unique_id_, std::nullopt);
  post_->TellAll(*comm, {.kind = CommMessage::Kind::kCreate, .comm = comm->id, .id = id});
  Make(now, comm, id);
}

void CommMaking::Make(Instant now, Communicator* comm, const Gpu::UniqueId& id) {
  comm->state = State::kMaking;
  making_->answered.clear();
  making_->deadline = DeadlineFrom(now, *comm);
  comm->comm = gpu_->CommInit(static_cast<int>(comm->set.size()), id, comm->rank_of.at(self_));
  poll_at_ = now;
}

Result<bool> CommMaking::Poll(Instant now, Communicator* comm) {
  if (comm->state == State::kMaking) {
    const Result<bool> busy = gpu_->CommBusy(comm->comm);
    if (!busy.ok()) return busy.status();
    if (!*busy) {
      comm->state = State::kReady;
      return true;
    }
  }
  const bool accepted = comm->state == State::kProposed && Leads(*comm) && AllAnswered(*comm);
  if (accepted && unique_id_) {
    Create(now, comm);
    return false;
  }
  if (accepted && !id_pending_) return Status(Code::kUnavailable, "NCCL gives no unique id");
  if (now < making_->deadline) return false;
  return Status(Code::kDeadlineExceeded, "it was not ready in time");
}

bool CommMaking::IsReady(const Communicator& comm, Incarnation member) {
  making_->answered.insert(member);
  return making_->answered.size() == comm.set.size();
}

CommSet CommMaking::Silent(const Communicator& comm) const {
  CommSet silent;
  if (!Leads(comm) || comm.state != State::kProposed) return silent;
  for (const Incarnation member : comm.set) {
    if (member != self_ && !making_->answered.contains(member)) silent.push_back(member);
  }
  return silent;
}

void CommMaking::TakeUniqueId() {
  if (!id_pending_) return;
  const std::unique_ptr<Gpu::Id> id = gpu_->TakeUniqueId();
  if (id == nullptr) return;
  id_pending_ = false;
  if (id->status.ok()) unique_id_ = id->id;
}

void CommMaking::PollAgain(Instant now) {
  poll_at_.reset();
  if (busy() || id_pending_) poll_at_ = now + kPoll;
}

}  // namespace prd
