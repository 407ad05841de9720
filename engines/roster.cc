#include "engines/roster.h"

#include <utility>

namespace prd {

bool Roster::Present(Rank rank) const {
  return rank >= 0 && rank < size() && (*this)[rank].state != WorkerState::kAbsent;
}

Rank Roster::RankOf(Incarnation incarnation) const {
  const auto found = by_incarnation_.find(incarnation);
  return found == by_incarnation_.end() ? kNoRank : found->second;
}

Rank Roster::Free() const {
  Rank rank = 0;
  while (Present(rank)) ++rank;
  return rank;
}

std::vector<Rank> Roster::RanksIn(WorkerState state) const {
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < size(); ++rank) {
    if (rows_[RankIndex(rank)].state == state) ranks.push_back(rank);
  }
  return ranks;
}

GroupMember Roster::Describe(Rank rank) const {
  const RunWorker& worker = (*this)[rank];
  return {.rank = rank,
          .incarnation = worker.incarnation,
          .weight = 0,
          .host = worker.host,
          .endpoints = worker.endpoints,
          .passive = false,
          .mesh_key = worker.mesh_key};
}

void Roster::Enter(Rank rank, const WorkerEnvelope& envelope, bool continues,
                   const Trained& job_trained) {
  const Hello& hello = std::get<Hello>(envelope.body);
  MemberSlot& member = Member(rank);
  member.incarnation = envelope.incarnation;
  member.host = hello.host;
  member.host_name = hello.host_name;
  member.pid = hello.pid;
  member.endpoints = hello.endpoints;
  member.mesh_key = hello.mesh_key;
  member.gradients = hello.gradients;
  member.identity = hello.identity;
  member.version = hello.version;
  member.mesh_version = hello.mesh_version;
  member.returns_at_once = hello.returns_at_once;
  member.token = envelope.token;
  member.returns = hello.former.known();
  member.continues = continues;
  member.job_trained = job_trained;
  member.brought = member.iteration = hello.iteration;
  member.link.OnReceive(envelope.seq);
  SetState(rank, WorkerState::kJoining);
  by_incarnation_[envelope.incarnation] = rank;
  ++live_;
}

RunWorker Roster::Leave(Rank rank) {
  RunWorker gone = std::exchange(rows_[RankIndex(rank)], RunWorker{});
  by_incarnation_.erase(gone.incarnation);
  if (gone.resumes) --resuming_;
  --live_;
  --counts_[static_cast<std::size_t>(gone.state)];
  ++counts_[static_cast<std::size_t>(WorkerState::kAbsent)];
  return gone;
}

void Roster::SetState(Rank rank, WorkerState state) {
  MemberSlot& member = Member(rank);
  --counts_[static_cast<std::size_t>(member.state)];
  ++counts_[static_cast<std::size_t>(state)];
  member.state = state;
  Touch(rank);
}

void Roster::SetResumes(Rank rank, bool resumes) {
  resuming_ += int{resumes} - int{Member(rank).resumes};
  Member(rank).resumes = resumes;
}

void Roster::NoteTold(Rank rank, Instant now, std::int64_t steps) {
  const Instant since = std::exchange(Member(rank).told_when, now);
  const bool any = Count(WorkerState::kPaused) + Count(WorkerState::kFinishing) > 0;
  if (!any || steps == 0 || now <= since) return;
  for (Rank other = 0; other < size(); ++other) {
    MemberSlot& member = Member(other);
    const bool stopped =
        member.state == WorkerState::kPaused || member.state == WorkerState::kFinishing;
    if (!stopped || member.stopped_when <= since) continue;
    const double before =
        static_cast<double>(member.stopped_when - since) / static_cast<double>(now - since);
    member.stopped_at += static_cast<std::int64_t>(before * static_cast<double>(steps));
  }
}

void Roster::Receive(Rank rank, Seq seq, Seq ack) {
  Member(rank).link.OnReceive(seq);
  Member(rank).link.OnAck(ack);
}

void Roster::Send(Rank rank, ControllerBody body) {
  MemberSlot& member = Member(rank);
  const auto& [seq, kept] = member.link.Push(std::move(body));
  log_.Send(
      rank,
      {.incarnation = member.incarnation, .seq = seq, .ack = member.link.last_in(), .body = kept});
}

void Roster::Refuse(Rank rank, Code code, const std::string& reason) {
  log_.Send(rank, {.incarnation = Member(rank).incarnation,
                   .body = Refused{.code = code, .reason = reason}});
}

void Roster::Introduce(Rank asks, Rank asked, bool copies) {
  Send(asked, Announce{.members = {Describe(asks)}, .copies = copies});
}

void Roster::Restore() {
  by_incarnation_.clear();
  counts_.fill(0);
  live_ = resuming_ = 0;
  for (Rank rank = 0; rank < size(); ++rank) {
    const RunWorker& worker = (*this)[rank];
    ++counts_[static_cast<std::size_t>(worker.state)];
    if (!Present(rank)) continue;
    ++live_;
    resuming_ += int{worker.resumes};
    by_incarnation_[worker.incarnation] = rank;
  }
}

}  // namespace prd
