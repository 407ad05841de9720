#include "worker/core/session_core.h"

#include <utility>

#include "worker/core/session_flow.h"

namespace prd {

SessionCore::SessionCore() : flow_(std::make_unique<SessionFlow>()) {}
SessionCore::~SessionCore() = default;
SessionCore::SessionCore(SessionCore&&) noexcept = default;
SessionCore& SessionCore::operator=(SessionCore&&) noexcept = default;

bool SessionCore::wants_incarnation() const { return flow_->wants_incarnation(); }
void SessionCore::GiveIncarnation(Incarnation incarnation) { flow_->GiveIncarnation(incarnation); }
void SessionCore::Attach(Instant now, Options options, Actions* out) {
  flow_->Attach(now, std::move(options), out);
}
void SessionCore::Step(Instant now, const Ready& ready, bool discard, std::int64_t taken,
                       Actions* out) {
  flow_->Step(now, ready, discard, taken, out);
}
void SessionCore::Applied(Instant now, Iteration iteration, std::int64_t rounds, Actions* out,
                          std::uint64_t digest) {
  flow_->Applied(now, iteration, rounds, out, digest);
}
void SessionCore::Finish(Instant now, Actions* out) { flow_->Finish(now, out); }
void SessionCore::Pause(Instant now, Actions* out) { flow_->Pause(now, out); }
void SessionCore::Resume(Instant now, Actions* out) { flow_->Resume(now, out); }
void SessionCore::Average(Instant now, bool with_state, Actions* out) {
  flow_->Average(now, with_state, out);
}
void SessionCore::Mean(Instant now, std::vector<double> values, bool resumes, Actions* out) {
  flow_->Mean(now, std::move(values), resumes, out);
}
void SessionCore::HasGradientsNow() { flow_->HasGradientsNow(); }
void SessionCore::NoteNonfinite() { flow_->NoteNonfinite(); }
void SessionCore::NoteLosses(const Losses& losses) { flow_->NoteLosses(losses); }
void SessionCore::Leave(Instant now, const std::string& reason, Actions* out) {
  flow_->Leave(now, reason, out);
}
void SessionCore::LeaveSoon(Instant now, std::string reason, DurationNs grace, Actions* out) {
  flow_->LeaveSoon(now, std::move(reason), grace, out);
}
void SessionCore::Stop(Instant now, std::string reason, Actions* out) {
  flow_->Stop(now, std::move(reason), out);
}
void SessionCore::Cancel(Instant now, Actions* out) { flow_->Cancel(now, out); }
void SessionCore::Fail(Instant now, const Status& why, Actions* out) { flow_->Fail(now, why, out); }
void SessionCore::OnEnvelope(Instant now, const ControllerEnvelope& envelope, Actions* out) {
  flow_->OnEnvelope(now, envelope, out);
}
void SessionCore::OnConnected(Instant now, Actions* out) { flow_->OnConnected(now, out); }
void SessionCore::OnReduced(Instant now, GroupId group, const Status& status,
                            std::uint64_t sent_bytes, Actions* out, std::vector<Rank> unreachable,
                            std::uint64_t digest) {
  flow_->OnReduced(now, group, status, sent_bytes, out, std::move(unreachable), digest);
}
void SessionCore::OnFetched(Instant now, const Status& status, Iteration iteration, Actions* out,
                            Iteration in_inbox) {
  flow_->OnFetched(now, status, iteration, out, in_inbox);
}
void SessionCore::OnCopiedForAverage(Instant now, const Status& status, Actions* out) {
  flow_->OnCopiedForAverage(now, status, out);
}
void SessionCore::OnNote(Instant now, Incarnation from, const PeerMessage& note, Actions* out) {
  flow_->OnNote(now, from, note, out);
}
void SessionCore::OnRequest(Instant now, Incarnation from, Request request, const PeerItem& parcel,
                            Actions* out) {
  flow_->OnRequest(now, from, request, parcel, out);
}
void SessionCore::OnPulled(Instant now, Ticket ticket, const Status& status,
                           const ShardHeader& enclosure, Actions* out) {
  flow_->OnPulled(now, ticket, status, enclosure, out);
}
void SessionCore::OnOutOfReach(Instant now, Rank rank, Actions* out) {
  flow_->OnOutOfReach(now, rank, out);
}
void SessionCore::OnProbed(Instant now, Rank rank, Incarnation incarnation, Actions* out) {
  flow_->OnProbed(now, rank, incarnation, out);
}
void SessionCore::OnNoConnection(const std::string& why) { flow_->OnNoConnection(why); }
void SessionCore::OnTime(Instant now, Actions* out) { flow_->OnTime(now, out); }
std::optional<Instant> SessionCore::NextDeadline() const { return flow_->NextDeadline(); }
std::optional<StepOutcome> SessionCore::HandedOver(GroupId group) {
  return flow_->HandedOver(group);
}
bool SessionCore::in_call() const { return flow_->in_call(); }
Incarnation SessionCore::incarnation() const { return flow_->incarnation(); }
Iteration SessionCore::iteration() const { return flow_->iteration(); }
const Trained& SessionCore::own() const { return flow_->own(); }
const JobProgress& SessionCore::progress() const { return flow_->progress(); }
bool SessionCore::paused() const { return flow_->paused(); }
const Welcome& SessionCore::welcome() const { return flow_->welcome(); }
GroupId SessionCore::called_off() const { return flow_->called_off(); }

}  // namespace prd
