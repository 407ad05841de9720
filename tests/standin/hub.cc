#include "tests/standin/hub.h"

#include <algorithm>
#include <cstring>

namespace prd::testing {

// ---- one communicator ----

bool Rendezvous::Join(int ranks, int rank) {
  if (ranks < 0 || static_cast<std::size_t>(ranks) != members_.size() || rank < 0 ||
      rank >= ranks || members_[static_cast<std::size_t>(rank)].joined) {
    Problem("rank " + std::to_string(rank) + " of " + std::to_string(ranks) + " joins one of " +
            std::to_string(members_.size()) + " in which it is none, or is already");
    return false;
  }
  members_[static_cast<std::size_t>(rank)].joined = true;
  ++joined_;
  return true;
}

void Rendezvous::Post(int rank, std::uint64_t number, HubCalls calls) {
  Member& member = members_[static_cast<std::size_t>(rank)];
  if (member.left) return;
  if (!ready()) Problem("a call on a communicator that is not made yet");
  Posted posted{.number = number, .calls = std::move(calls), .results = {}, .done = {}};
  posted.results.resize(posted.calls.size());
  posted.done.resize(posted.calls.size());
  member.posted.push_back(std::move(posted));
  Match();
  LookForDeadlock();
}

std::optional<HubResults> Rendezvous::Take(int rank, std::uint64_t number) {
  Member& member = members_[static_cast<std::size_t>(rank)];
  const auto it = member.results.find(number);
  if (it == member.results.end()) return std::nullopt;
  HubResults results = std::move(it->second);
  member.results.erase(it);
  return results;
}

void Rendezvous::Leave(int rank) {
  Member& member = members_[static_cast<std::size_t>(rank)];
  member.left = true;
  member.posted.clear();
}

Rendezvous::Posted* Rendezvous::Head(std::size_t rank) {
  Member& member = members_[rank];
  return member.posted.empty() ? nullptr : &member.posted.front();
}

std::optional<std::size_t> Rendezvous::Next(const Posted& posted, HubCall::Kind kind, int peer) {
  for (std::size_t i = 0; i < posted.calls.size(); ++i) {
    const HubCall& call = posted.calls[i];
    if (posted.done[i] || call.kind != kind) continue;
    if (kind == HubCall::Kind::kAllReduce || call.peer == peer) return i;
  }
  return std::nullopt;
}

bool Rendezvous::AllReduce() {
  std::vector<std::pair<Posted*, std::size_t>> parts;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    Posted* head = Head(rank);
    const auto call = head == nullptr ? std::nullopt : Next(*head, HubCall::Kind::kAllReduce, 0);
    if (!call) return false;
    parts.emplace_back(head, *call);
  }
  const HubCall& first = parts.front().first->calls[parts.front().second];
  std::vector<std::byte> sum(first.bytes);
  for (const auto& [posted, at] : parts) {
    const HubCall& call = posted->calls[at];
    if (call.dtype != first.dtype || call.bytes != first.bytes || call.weighted != first.weighted) {
      Problem("members' all-reduces differ in dtype, size or kind of operator");
      continue;
    }
    // A weight of 0 adds nothing here; StandInGpu has seen to what it is applied to.
    (&call == &first ? Scale : AddScaled)(call.dtype, sum.data(), call.data.data(), sum.size(),
                                          call.weight);
  }
  for (const auto& [posted, at] : parts) {
    posted->results[at] = sum;
    posted->results[at].resize(posted->calls[at].bytes);
    posted->done[at] = true;
  }
  return true;
}

bool Rendezvous::Exchange(std::size_t from, std::size_t to) {
  Posted* sender = Head(from);
  Posted* receiver = Head(to);
  if (sender == nullptr || receiver == nullptr) return false;
  const auto send = Next(*sender, HubCall::Kind::kSend, static_cast<int>(to));
  const auto receive = Next(*receiver, HubCall::Kind::kReceive, static_cast<int>(from));
  if (!send || !receive) return false;
  const HubCall& given = sender->calls[*send];
  if (given.bytes != receiver->calls[*receive].bytes) {
    Problem("a send of " + std::to_string(given.bytes) + " bytes meets a receive of " +
            std::to_string(receiver->calls[*receive].bytes));
  }
  receiver->results[*receive] = given.data;
  receiver->results[*receive].resize(receiver->calls[*receive].bytes);
  sender->done[*send] = true;
  receiver->done[*receive] = true;
  return true;
}

void Rendezvous::Retire() {
  for (Member& member : members_) {
    while (!member.posted.empty()) {
      Posted& head = member.posted.front();
      if (!std::all_of(head.done.begin(), head.done.end(), [](bool done) { return done; })) break;
      member.results[head.number] = std::move(head.results);
      member.posted.pop_front();
    }
  }
}

void Rendezvous::Match() {
  bool any = ready();
  while (any) {
    any = AllReduce();
    for (std::size_t from = 0; from < members_.size(); ++from) {
      for (std::size_t to = 0; to < members_.size(); ++to) any = Exchange(from, to) || any;
    }
    Retire();
  }
}

// Members that are in another call than the one it needs of them.
std::vector<std::size_t> Rendezvous::WaitsFor(std::size_t rank) {
  std::vector<std::size_t> others;
  const Posted* own = Head(rank);
  if (own == nullptr) return others;
  const auto needs = [&](std::size_t other, HubCall::Kind kind) {
    const Posted* head = other < members_.size() ? Head(other) : nullptr;
    if (head != nullptr && !Next(*head, kind, static_cast<int>(rank))) others.push_back(other);
  };
  for (std::size_t i = 0; i < own->calls.size(); ++i) {
    if (own->done[i]) continue;
    const HubCall& call = own->calls[i];
    const auto peer = static_cast<std::size_t>(call.peer);
    if (call.kind == HubCall::Kind::kSend) needs(peer, HubCall::Kind::kReceive);
    if (call.kind == HubCall::Kind::kReceive) needs(peer, HubCall::Kind::kSend);
    for (std::size_t other = 0; call.kind == HubCall::Kind::kAllReduce && other < members_.size();
         ++other) {
      needs(other, HubCall::Kind::kAllReduce);
    }
  }
  return others;
}

void Rendezvous::LookForDeadlock() {
  // Takes away, one after another, who waits for nobody that is left.
  std::vector<bool> stuck(members_.size(), true);
  for (bool changed = true; std::exchange(changed, false);) {
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      const std::vector<std::size_t> others = WaitsFor(rank);
      const bool waits = std::any_of(others.begin(), others.end(),
                                     [&](std::size_t other) { return stuck[other]; });
      if (stuck[rank] && !waits) {
        stuck[rank] = false;
        changed = true;
      }
    }
  }
  if (std::any_of(stuck.begin(), stuck.end(), [](bool is) { return is; }) && !told_) {
    told_ = true;
    Problem("members wait for each other in different calls: a deadlock");
  }
}

void Rendezvous::Problem(const std::string& what) { problems_.push_back("NCCL: " + what); }

// ---- in one process ----

namespace {

std::uint64_t RoomOf(const Gpu::UniqueId& id) {
  std::uint64_t room = 0;
  std::memcpy(&room, id.data(), sizeof room);
  return room;
}

}  // namespace

// After a change: problems, and those who wait.
void LocalHub::Shared::Tell(std::unique_lock<std::mutex> lock, std::uint64_t room) {
  Room& here = rooms.at(room);
  const std::vector<std::string> found = here.rendezvous->TakeProblems();
  const std::map<int, std::function<void()>> changed = here.changed;
  lock.unlock();
  for (const std::string& problem : found) problems->Add(problem);
  for (const auto& [rank, call] : changed) call();
}

// NCCL: who shares two communicators uses them in the same order.
void LocalHub::Shared::LookAtOrder(const void* device) {
  const std::vector<Issued>& own = issued[device];
  if (own.size() < 2) return;
  const Issued last = own.back();
  for (const auto& [other, theirs] : issued) {
    if (other == device) continue;
    const auto at = std::find(theirs.begin(), theirs.end(), last);
    if (at == theirs.end()) continue;
    for (auto later = at + 1; later != theirs.end(); ++later) {
      if (later->room == last.room || std::find(own.begin(), own.end(), *later) == own.end()) {
        continue;
      }
      problems->Add("NCCL: two members use two communicators in different orders: a deadlock");
    }
  }
}

class LocalHub::End : public Hub::Member {
 public:
  End(std::shared_ptr<Shared> shared, const void* device, std::uint64_t room, int rank)
      : shared_(std::move(shared)), device_(device), room_(room), rank_(rank) {}
  ~End() override {
    Leave();
    const std::lock_guard lock(shared_->mutex);
    shared_->rooms.at(room_).changed.erase(rank_);
  }

  bool Ready() override {
    const std::lock_guard lock(shared_->mutex);
    return shared_->rooms.at(room_).rendezvous->ready();
  }
  void Issue(std::uint64_t number) override {
    const std::lock_guard lock(shared_->mutex);
    shared_->issued[device_].push_back({room_, number});
    shared_->LookAtOrder(device_);
  }
  void Post(std::uint64_t number, HubCalls calls) override {
    std::unique_lock lock(shared_->mutex);
    shared_->rooms.at(room_).rendezvous->Post(rank_, number, std::move(calls));
    shared_->Tell(std::move(lock), room_);
  }
  std::optional<HubResults> Take(std::uint64_t number) override {
    const std::lock_guard lock(shared_->mutex);
    std::optional<HubResults> results = shared_->rooms.at(room_).rendezvous->Take(rank_, number);
    if (results) std::erase(shared_->issued[device_], Issued{room_, number});
    return results;
  }
  void Leave() override {
    std::unique_lock lock(shared_->mutex);
    if (std::exchange(left_, true)) return;
    shared_->rooms.at(room_).rendezvous->Leave(rank_);
    std::erase_if(shared_->issued[device_],
                  [this](const Issued& issued) { return issued.room == room_; });
    shared_->Tell(std::move(lock), room_);
  }

 private:
  std::shared_ptr<Shared> shared_;
  const void* device_;
  std::uint64_t room_;
  int rank_;
  bool left_ = false;
};

Result<Gpu::UniqueId> LocalHub::MakeId() {
  const std::lock_guard lock(shared_->mutex);
  Gpu::UniqueId id{};
  const std::uint64_t room = ++shared_->ids;
  std::memcpy(id.data(), &room, sizeof room);
  return id;
}

Result<std::unique_ptr<Hub::Member>> LocalHub::Join(const void* device, int ranks,
                                                    const Gpu::UniqueId& id, int rank,
                                                    std::function<void()> changed) {
  const std::uint64_t number = RoomOf(id);
  std::unique_lock lock(shared_->mutex);
  if (number == 0 || number > shared_->ids) {
    return Status(Code::kInternal, "stand-in: nobody made this unique id");
  }
  Room& room = shared_->rooms[number];
  if (room.rendezvous == nullptr) room.rendezvous = std::make_unique<Rendezvous>(ranks);
  const bool joined = room.rendezvous->Join(ranks, rank);
  if (joined) room.changed[rank] = std::move(changed);
  shared_->Tell(std::move(lock), number);
  if (!joined) return Status(Code::kInternal, "stand-in: the communicator has no such rank");
  return std::unique_ptr<Member>(new End(shared_, device, number, rank));
}

}  // namespace prd::testing
