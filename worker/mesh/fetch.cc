#include "worker/mesh/fetch.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "worker/memory/meanwhile.h"

namespace prd {
namespace {

bool Has(const SharedList<GroupMember>& members, Incarnation incarnation) {
  return std::any_of(members.begin(), members.end(), [incarnation](const GroupMember& member) {
    return member.incarnation == incarnation;
  });
}

// A device is given this much at a time of what a peer sends. A multiple of 8 (layout.h).
constexpr std::uint64_t kStage = 4 << 20;

}  // namespace

IncomingReplica::IncomingReplica(ReplicaStore* store, const Plan& plan, const Wanted& wanted)
    : store_(store),
      plan_(plan),
      wanted_(wanted),
      buffers_(
          [store](std::size_t bytes) {
            return store->memory->AllocateHost(MemoryUse::kCopies, bytes);
          },
          [store] { store->memory->Sweep(); }),
      frames_(store->memory->meter(), MemoryUse::kCopies, false) {}

Status IncomingReplica::OnInfo(const ReplicaInfo& info) {
  const auto expect = [](const char* what, std::uint64_t found, std::uint64_t here) {
    return found == here
               ? Status::Ok()
               : Status(Code::kDataLoss, "the source has " + std::to_string(found) + " bytes of " +
                                             what + ", this worker " + std::to_string(here));
  };
  const bool replica = result() == kNoGroup;
  const auto& [parameters, initial, inbox, kept] = info.bytes;
  const std::uint64_t model = replica ? store_->parameters.bytes() : 0;
  PRD_RETURN_IF_ERROR(expect("parameters", parameters, model));
  if (initial != 0) PRD_RETURN_IF_ERROR(expect("the initial model", initial, model));
  PRD_RETURN_IF_ERROR(expect("state", kept, replica && !wanted_.alone ? store_->kept.bytes() : 0));
  const bool filled = info.inbox_rounds != 0;
  PRD_RETURN_IF_ERROR(expect("rounds' results", inbox, filled ? store_->gradients.bytes() : 0));
  if (info.iteration < 0 || info.inbox_iteration < 0 || info.inbox_rounds < 0 ||
      (filled && !TrainsInRounds(plan_)) || (!replica && info.inbox_rounds != 1)) {
    return Status(Code::kDataLoss, "the source's description of what it sends cannot be right");
  }
  info_ = info;
  return Status::Ok();
}

Status IncomingReplica::OnFrame(const FrameHeader& header, SharedBytes payload) {
  if (header.kind == FrameKind::kGone && result() != kNoGroup && !info_) {
    return Status(Code::kNotFound,
                  "the source does not have the result of group " + std::to_string(result()));
  }
  if (header.kind == FrameKind::kReplica) {
    ReplicaInfo info;
    if (info_ || payload.size() != sizeof info) {
      return Status(Code::kDataLoss, "the source's description of what it sends is damaged");
    }
    std::memcpy(&info, payload.data(), sizeof info);
    return OnInfo(info);
  }
  const std::uint32_t row = header.stage;
  if (!info_ || header.kind != FrameKind::kChunk || row >= kCopiedRows ||
      !std::equal(received_.begin(), received_.begin() + row, info_->bytes.begin()) ||
      header.offset != received_[row] || payload.size() == 0 ||
      payload.size() > info_->bytes[row] - received_[row]) {
    return Status(Code::kDataLoss, "the source sent bytes that do not fit");
  }
  const std::uint64_t at = received_[row];
  received_[row] += payload.size();
  if (wanted_.in_place) {
    LandNow(static_cast<CopiedRow>(row), at, payload);
    return Status::Ok();
  }
  frames_.Set(frames_.bytes() + payload.size());
  chunks_[row].push_back(std::move(payload));
  return Status::Ok();
}

bool IncomingReplica::Complete() const { return info_ && received_ == info_->bytes; }

const Layout& IncomingReplica::LayoutOf(CopiedRow row) const {
  if (row == CopiedRow::kKept) return store_->kept.layout();
  return row == CopiedRow::kInbox ? store_->gradients : store_->parameters;
}

// Makes the row that is not there, or of another size.
Memory::Place IncomingReplica::PlaceOf(CopiedRow row) {
  if (row == CopiedRow::kKept || row == CopiedRow::kParameters) return Memory::Tensors();
  const bool initial = row == CopiedRow::kInitial;
  Row* const to = initial ? &store_->initial : &store_->inbox.row;
  store_->memory->Size(to, initial ? MemoryUse::kInitial : MemoryUse::kInbox,
                       info_->bytes[static_cast<std::size_t>(row)]);
  return Memory::In(*to);
}

void IncomingReplica::LandNow(CopiedRow row, std::uint64_t offset, const SharedBytes& bytes) {
  const std::lock_guard lock(store_->mutex);
  if (!std::exchange(store_->torn, true)) {
    store_->AboutToChange();
    store_->Empty();
  }
  if (store_->memory->device()) return Stage(row, offset, bytes);
  Write(row, offset, bytes);
}

// To a host.
void IncomingReplica::Write(CopiedRow row, std::uint64_t offset, const SharedBytes& bytes) {
  const Memory::Place to = PlaceOf(row);
  if (to.data != nullptr) {
    std::memcpy(to.data + offset, bytes.data(), bytes.size());
  } else {
    LayoutOf(row).Write(offset, bytes.size(), bytes.data());
  }
}

// Whoever sent them may have cut them anywhere.
void IncomingReplica::Stage(CopiedRow row, std::uint64_t offset, const SharedBytes& bytes) {
  const Layout& layout = LayoutOf(row);
  for (std::uint64_t done = 0; done < bytes.size();) {
    const std::uint64_t begin = (offset + done) / kStage * kStage;
    const std::uint64_t length = std::min(kStage, layout.bytes() - begin);
    if (stage_ == nullptr) stage_ = buffers_.Get(length);
    const std::uint64_t at = offset + done - begin;
    const std::uint64_t part = std::min(length - at, bytes.size() - done);
    std::memcpy(stage_->data() + at, bytes.data() + done, part);
    done += part;
    if (at + part < length) return;
    Memory::Place to = PlaceOf(row);
    if (to.data != nullptr) to.data += begin;
    const Memory::Input from{Memory::InHost(stage_->data(), stage_)};
    stage_.reset();
    store_->memory->Combine(layout, begin, length, {&to, 1}, {&from, 1});
  }
}

// Whoever sent them may have cut them anywhere.
std::shared_ptr<Buffer> IncomingReplica::Gather(CopiedRow row) {
  std::shared_ptr<Buffer> bytes = buffers_.Get(info_->bytes[static_cast<std::size_t>(row)]);
  Put(row, [to = bytes->data()](std::size_t at, const SharedBytes& chunk) {
    std::memcpy(to + at, chunk.data(), chunk.size());
  });
  return bytes;
}

// Hands out what came, one part after another, and lets go of it. The last part first: so the
// process gives memory back to the system meanwhile, where its allocator has put one behind
// another.
template <typename F>
void IncomingReplica::Put(CopiedRow row, F&& put) {
  std::vector<SharedBytes>& chunks = chunks_[static_cast<std::size_t>(row)];
  for (std::size_t at = received_[static_cast<std::size_t>(row)]; !chunks.empty();) {
    at -= chunks.back().size();
    put(at, chunks.back());
    frames_.Set(frames_.bytes() - chunks.back().size());
    chunks.pop_back();
    Meanwhile::Do();
  }
}

// Moves what came to where it belongs. A device copies it later, from one buffer.
void IncomingReplica::Land(CopiedRow row) {
  const Memory::Place to = PlaceOf(row);
  if (wanted_.in_place || info_->bytes[static_cast<std::size_t>(row)] == 0) return;
  if (store_->memory->device()) {
    const std::shared_ptr<Buffer> bytes = Gather(row);
    store_->memory->Combine(LayoutOf(row), to, {{Memory::InHost(bytes->data(), bytes)}});
    return;
  }
  Put(row, [this, row](std::size_t at, const SharedBytes& chunk) { Write(row, at, chunk); });
}

Iteration IncomingReplica::Commit() {
  store_->AboutToChange();
  Land(CopiedRow::kKept);
  Land(CopiedRow::kParameters);
  store_->torn = false;
  store_->ReplacedParameters();
  if (RowsOf(plan_).base) store_->SetBase();
  Land(CopiedRow::kInitial);
  store_->iteration = info_->iteration;
  store_->Empty();
  if (info_->inbox_rounds == 0) return info_->iteration;
  Land(CopiedRow::kInbox);
  store_->inbox.rounds = info_->inbox_rounds;
  store_->inbox.iteration = info_->inbox_iteration;
  return info_->inbox_iteration;
}

std::shared_ptr<Buffer> IncomingReplica::TakeResult() { return Gather(CopiedRow::kInbox); }
std::shared_ptr<Buffer> IncomingReplica::TakeParameters() { return Gather(CopiedRow::kParameters); }

// ---- the side that gives ----

void ReplicaServer::Order(Instant now, Incarnation member) {
  ++orders_[member];
  const auto waits =
      std::find_if(unordered_.begin(), unordered_.end(),
                   [member](const Sending& sending) { return sending.request.from == member; });
  if (waits == unordered_.end() || !TakeOrder(member)) return;
  Sending sending = std::move(*waits);
  unordered_.erase(waits);
  sending.progress = now;
  waiting_.push_back(std::move(sending));
}

bool ReplicaServer::TakeOrder(Incarnation member) {
  const auto order = orders_.find(member);
  if (order == orders_.end()) return false;
  if (--order->second == 0) orders_.erase(order);
  return true;
}

void ReplicaServer::ForgetPeer(Incarnation member) {
  orders_.erase(member);
  for (std::deque<Sending>* all : {&unordered_, &waiting_, &sending_}) {
    std::erase_if(*all,
                  [member](const Sending& sending) { return sending.request.from == member; });
  }
}

// The oldest of a member makes room.
void ReplicaServer::HoldUnordered(Sending sending) {
  const auto of_same = [&](const Sending& other) {
    return other.request.from == sending.request.from;
  };
  const auto count = std::count_if(unordered_.begin(), unordered_.end(), of_same);
  if (static_cast<std::size_t>(count) >= kMaxUnordered) {
    unordered_.erase(std::find_if(unordered_.begin(), unordered_.end(), of_same));
  }
  unordered_.push_back(std::move(sending));
}

void ReplicaServer::OnRequest(Instant now, const FrameHeader& request, const GroupMember& to,
                              const RoundResult& newest) {
  const Result<std::string> endpoint = peers_->EndpointOf(to);
  if (!endpoint.ok() || waiting_.size() + sending_.size() >= kMaxWaiting) return;
  const auto same = [&request](const Sending& other) { return other.request == request; };
  for (const std::deque<Sending>* all : {&unordered_, &waiting_, &sending_}) {
    if (std::any_of(all->begin(), all->end(), same)) return;
  }
  DropOlder(request);
  Sending sending{.endpoint = *endpoint, .request = request, .offer = nullptr, .progress = now};
  if (request.offset != kNoGroup) {
    GiveResult(std::move(sending), newest);
  } else if (TakeOrder(request.from)) {
    waiting_.push_back(std::move(sending));
  } else {
    HoldUnordered(std::move(sending));
  }
}

// A worker copies one replica at a time, and one to average: who asks again has given up what it
// asked for before, which is not to be kept here.
void ReplicaServer::DropOlder(const FrameHeader& request) {
  for (std::deque<Sending>* all : {&waiting_, &sending_}) {
    std::erase_if(*all, [&request](const Sending& other) {
      return other.request.from == request.from && other.request.stage == request.stage &&
             other.request.offset == request.offset && other.request.group < request.group;
    });
  }
}

// At once: the next reduction overwrites it. To whoever was in that round.
void ReplicaServer::GiveResult(Sending sending, const RoundResult& newest) {
  const GroupId wanted = sending.request.offset;
  for (const Sending& other : sending_) {
    if (other.request.offset != wanted) continue;
    if (!Has(other.offer->members, sending.request.from)) continue;
    return Start(sending.progress, std::move(sending), other.offer);
  }
  if (newest.group == wanted && Has(newest.members, sending.request.from)) {
    used_ = sending.progress;
    return Start(sending.progress, std::move(sending), TakeResult(newest));
  }
  if (!peers_->Use(sending.endpoint).ok()) return;
  peers_->Send(sending.endpoint, Answer(sending, FrameKind::kGone), SharedBytes());
}

void ReplicaServer::Start(Instant now, Sending sending, std::shared_ptr<const Offer> offer) {
  if (!peers_->Use(sending.endpoint).ok()) return;
  sending.offer = std::move(offer);
  sending.offer->rows->AddReader();
  sending.progress = now;
  const ReplicaInfo& info = sending.offer->info;
  FrameHeader header = Answer(sending, FrameKind::kReplica);
  header.length = sizeof info;
  peers_->Send(sending.endpoint, header, SharedBytes(&info, sizeof info));
  sending_.push_back(std::move(sending));
}

std::shared_ptr<Buffer> ReplicaServer::Copy(const Layout& layout, const Memory::Place& from) {
  const std::shared_ptr<Buffer> copy = buffers_.Get(layout.bytes());
  copy->Expect(store_->memory->Combine(layout, Memory::InHost(copy->data(), copy), {{from}}));
  return copy;
}

// REQUIRES: the store's mutex is held.
std::shared_ptr<const ReplicaServer::Offer> ReplicaServer::TakeReplica(bool all) {
  auto rows = std::make_shared<CopiedRows>(buffers_);
  const auto give = [&](CopiedRow row, const Layout& layout, const Memory::Place& from) {
    if (store_->memory->device()) return rows->SetCopy(row, Copy(layout, from));
    rows->SetStanding(row, from.data == nullptr ? layout : layout.Over(from.data));
  };
  if (const std::optional<Memory::Place> shared = store_->SharedPlace()) {
    give(CopiedRow::kParameters, store_->parameters, *shared);
  } else {
    const std::shared_ptr<Buffer> sum = buffers_.Get(store_->parameters.bytes());
    sum->Expect(store_->ReadShared(Memory::InHost(sum->data(), sum)));
    rows->SetCopy(CopiedRow::kParameters, sum);
  }
  if (all && !store_->initial.empty()) {
    give(CopiedRow::kInitial, store_->parameters, Memory::In(store_->initial));
  }
  if (all && store_->kept.bytes() != 0)
    give(CopiedRow::kKept, store_->kept.layout(), store_->kept.Place());
  const bool filled = all && store_->inbox.rounds != 0 && !store_->background;
  if (filled) {
    rows->SetCopy(CopiedRow::kInbox, Copy(store_->gradients, Memory::In(store_->inbox.row)));
  }
  if (rows->stands()) store_->standing.Add(rows);
  auto offer = std::make_shared<Offer>();
  offer->info = {.iteration = store_->iteration + store_->inbox.gain,
                 .bytes = {},
                 .inbox_rounds = filled ? store_->inbox.rounds.load() : 0,
                 .inbox_iteration = store_->inbox.iteration};
  for (std::size_t row = 0; row < kCopiedRows; ++row) offer->info.bytes[row] = rows->BytesOf(row);
  offer->rows = std::move(rows);
  return offer;
}

std::shared_ptr<const ReplicaServer::Offer> ReplicaServer::TakeResult(const RoundResult& result) {
  auto offer = std::make_shared<Offer>();
  offer->rows = std::make_shared<CopiedRows>(buffers_);
  offer->rows->SetCopy(CopiedRow::kInbox, Copy(store_->gradients, result.row));
  offer->info = {.iteration = result.round,
                 .bytes = {0, 0, store_->gradients.bytes(), 0},
                 .inbox_rounds = 1,
                 .inbox_iteration = result.round};
  offer->members = result.members;
  return offer;
}

void ReplicaServer::ServeWaiting(Instant now) {
  if (store_->torn) waiting_.clear();  // there is nothing to copy here
  if (waiting_.empty() || store_->landing) return;
  const std::unique_lock lock(store_->mutex, std::try_to_lock);
  if (!lock.owns_lock()) return;
  store_->Unfold();
  std::array<std::shared_ptr<const Offer>, 2> offers;  // whole, and parameters alone
  std::erase_if(waiting_, [&](Sending& sending) {
    const bool all = sending.request.stage != kParametersAlone;
    if (all && !store_->kept.CanBeCopied()) return false;
    std::shared_ptr<const Offer>& offer = offers[all ? 0 : 1];
    if (offer == nullptr) offer = TakeReplica(all);
    used_ = now;
    Start(now, std::move(sending), offer);
    return true;
  });
}

void ReplicaServer::Service(Instant now, DurationNs timeout) {
  ServeWaiting(now);
  std::erase_if(unordered_,
                [&](const Sending& sending) { return now - sending.progress > timeout; });
  locked_out_ = false;
  std::erase_if(sending_, [&](Sending& sending) {
    // To make the copy may have taken longer than the timeout.
    if (!sending.looked_at) {
      sending.looked_at = now > sending.progress;
      sending.progress = now;
    }
    const bool done = SendSome(now, &sending);
    if (done && !sending.offer->rows->lost()) {
      const FrameHeader& request = sending.request;
      peers_->Sent(Topic::kFetch, request.from, request.group, sending.endpoint);
    }
    return done || now - sending.progress > timeout;
  });
  if (used_ && sending_.empty() && now - *used_ >= kKept) {
    buffers_.Forget();
    used_.reset();
  }
}

FrameHeader ReplicaServer::Answer(const Sending& sending, FrameKind kind) const {
  FrameHeader header = sending.request;
  std::swap(header.from, header.to);
  header.kind = kind;
  header.offset = 0;
  header.length = 0;
  return header;
}

// Whether the next bytes are not in host memory yet; of a device that failed they never are.
bool ReplicaServer::Arriving(const Sending& sending) const {
  const CopiedRows& rows = *sending.offer->rows;
  if (sending.offset == rows.BytesOf(sending.row)) return false;
  return rows.Ready(sending.row) <= sending.offset || !store_->memory->failure().ok();
}

bool ReplicaServer::Arriving() const {
  return locked_out_ || std::any_of(sending_.begin(), sending_.end(),
                                    [this](const Sending& sending) { return Arriving(sending); });
}

// As much as the connection takes. Whether nothing is left.
bool ReplicaServer::SendSome(Instant now, Sending* sending) {
  const CopiedRows& rows = *sending->offer->rows;
  while (peers_->Idle(sending->endpoint) && !Arriving(*sending)) {
    sending->progress = now;
    std::unique_lock<std::mutex> lock;
    if (rows.stands()) {
      lock = std::unique_lock(store_->mutex, std::try_to_lock);
      if (!lock.owns_lock()) {
        locked_out_ = true;
        return false;
      }
    }
    if (rows.lost() || !SendNext(sending)) return true;
  }
  return false;
}

// Returns false when nothing is left. REQUIRES: the store's mutex is held while the rows stand.
bool ReplicaServer::SendNext(Sending* sending) {
  CopiedRows& rows = *sending->offer->rows;
  while (sending->offset == rows.BytesOf(sending->row)) {
    if (++sending->row == kCopiedRows) return false;
    sending->offset = 0;
  }
  if (Arriving(*sending)) return true;
  FrameHeader header = Answer(*sending, FrameKind::kChunk);
  header.stage = static_cast<std::uint32_t>(sending->row);
  header.offset = sending->offset;
  header.length = std::min(chunk_bytes_, rows.Ready(sending->row) - sending->offset);
  peers_->Send(sending->endpoint, header, rows.Read(sending->row, sending->offset, header.length));
  sending->offset += header.length;
  return true;
}

bool ReplicaServer::IsAsked(Instant now, const FrameHeader& ping) {
  const auto same = [&ping](const Sending& sending) {
    return sending.request.from == ping.from && sending.request.group == ping.group;
  };
  for (const std::deque<Sending>* all : {&unordered_, &waiting_}) {
    if (std::any_of(all->begin(), all->end(), same)) return true;
  }
  const auto it = std::find_if(sending_.begin(), sending_.end(), same);
  if (it == sending_.end()) return false;
  it->progress = now;
  return true;
}

void ReplicaServer::SayToCome(Instant now) {
  for (const std::deque<Sending>* all : {&unordered_, &waiting_, &sending_}) {
    for (const Sending& sending : *all) {
      if (sending.endpoint.empty()) continue;  // it is being moved from one to another
      FrameHeader pong = Answer(sending, FrameKind::kPong);
      pong.stage = static_cast<std::uint32_t>(Topic::kFetch);
      pong.chunk = static_cast<std::uint32_t>(prd::Answer::kToCome);
      (void)peers_->Signal(now, sending.endpoint, pong, SharedBytes());
    }
  }
}

void ReplicaServer::OnLost(const std::string& endpoint) {
  std::erase_if(sending_, [&](const Sending& sending) { return sending.endpoint == endpoint; });
}

void ReplicaServer::Hold() {
  for (const Sending& sending : sending_) (void)peers_->Use(sending.endpoint);
}

std::optional<Instant> ReplicaServer::NextDeadline(DurationNs timeout) const {
  std::optional<Instant> next;
  if (used_ && sending_.empty()) next = *used_ + kKept;
  for (const std::deque<Sending>* all : {&unordered_, &sending_}) {
    for (const Sending& sending : *all) {
      const Instant at = sending.progress + timeout;
      if (!next || at < *next) next = at;
    }
  }
  return next;
}

void ReplicaServer::Clear() {
  orders_.clear();
  unordered_.clear();
  waiting_.clear();
  sending_.clear();
}

}  // namespace prd
