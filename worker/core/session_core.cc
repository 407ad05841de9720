#include "worker/core/session_core.h"

#include <utility>

#include "common/base/check.h"
#include "worker/core/controller_inbox.h"
#include "worker/core/session_core_limits.h"
#include "worker/core/session_flow.h"
#include "worker/core/session_parts.h"

namespace prd {

SessionCore::SessionCore()
    : p_(std::make_unique<SessionParts>()),
      flow_(std::make_unique<SessionFlow>(*p_)),
      inbox_(std::make_unique<ControllerInbox>(*p_, *flow_)) {}
SessionCore::~SessionCore() = default;
SessionCore::SessionCore(SessionCore&&) noexcept = default;
SessionCore& SessionCore::operator=(SessionCore&&) noexcept = default;

bool SessionCore::wants_incarnation() const { return p_->link.wants_incarnation(); }
void SessionCore::GiveIncarnation(Incarnation incarnation) {
  p_->link.GiveIncarnation(incarnation);
}

bool SessionCore::in_call() const { return p_->call.in_progress(); }
Incarnation SessionCore::incarnation() const { return p_->link.incarnation(); }
Iteration SessionCore::iteration() const { return p_->step.iteration; }
const Trained& SessionCore::own() const { return p_->report.own(); }
const JobProgress& SessionCore::progress() const { return p_->report.progress(); }
bool SessionCore::paused() const { return p_->standing.paused; }
const Welcome& SessionCore::welcome() const { return p_->link.welcome(); }
const StepShares& SessionCore::shares() const { return p_->shares; }
GroupId SessionCore::called_off() const { return flow_->protocol().called_off(); }

// ---- user calls ----

void SessionCore::Attach(Instant now, Options options, Actions* out) {
  now = p_->Reach(now);
  flow_->BeginCall(Call::kAttach);
  if (p_->call.cancelled()) {
    return flow_->Done(Status(Code::kCancelled, "the session was cancelled"), out);
  }
  if (p_->departure.soon()) return flow_->Done(p_->departure.Left(), out);
  p_->options = std::move(options);
  p_->call.SetTimeouts(p_->options.timeout, p_->options.start_timeout);
  p_->step.iteration = p_->options.hello.iteration;
  p_->report.Begin(p_->options.hello.own, p_->options.hello.job_trained);
  p_->standing.paused = false;
  p_->departure.ForgetStop();
  p_->mean.Forget();
  p_->shares.Begin(
      {.accumulates = p_->options.hello.accumulates, .max_share = p_->options.hello.max_share});
  p_->link.Attach(now, p_->options.token);
  flow_->SayHello(out);
}

void SessionCore::Step(Instant now, const Ready& ready, bool discard, std::int64_t taken,
                       Actions* out) {
  now = p_->Reach(now);
  p_->step.idle_at = now;
  p_->step.discard = discard;
  flow_->BeginCall(Call::kStep);
  Ready whole = ready;
  const StepShares::Taken share = p_->shares.Take(p_->step.iteration + 1, discard, &whole);
  if (!share.partial) flow_->protocol().OnStep(whole, taken);
  flow_->UpdateInterrupt(out);
  const bool counts = !discard || taken > 0;
  if (counts && CountsLocalSteps(flow_->plan())) p_->step.iteration = ready.iteration;
  if (flow_->EndsCall(out) || p_->standing.said_leave) return;
  // The step before was given up since (timeout): this one is void.
  if (p_->standing.said_finish && p_->standing.ends_run) {
    p_->step.outcome.own = own();
    return flow_->EndRunAfterStep(out);
  }
  if (share.partial) return flow_->StepPartial(out);
  if (!discard && share.again) p_->report.AddSamples(share.samples);
  if (!discard && !share.again) p_->report.AddStep(whole.samples);
  p_->step.outcome.own = own();
  flow_->protocol().StartStep(out);
}

void SessionCore::Applied(Instant now, Iteration iteration, std::int64_t rounds, Actions* out,
                          std::uint64_t digest) {
  p_->Reach(now);
  PRD_CHECK(p_->work.applies());
  p_->work.OnApplied(digest);
  flow_->protocol().OnApplied(iteration, rounds, out);
}

void SessionCore::Finish(Instant now, Actions* out) {
  p_->Reach(now);
  flow_->BeginCall(Call::kFinish);
  flow_->End(out);
}

void SessionCore::Pause(Instant now, Actions* out) {
  p_->Reach(now);
  flow_->BeginCall(Call::kPause);
  flow_->End(out);
}

void SessionCore::Resume(Instant now, Actions* out) {
  p_->Reach(now);
  flow_->BeginCall(Call::kResume);
  if (flow_->EndsCall(out) || p_->standing.said_leave) return;
  if (flow_->is_member() && p_->standing.paused) {
    if (!std::exchange(p_->standing.said_resume, true)) flow_->Push(prd::Resume{}, out);
    return flow_->BeginHeld(out);
  }
  p_->standing.paused = false;
  flow_->OnTime(out);  // a Hello may have waited for this
  flow_->EndResume(out);
}

void SessionCore::Average(Instant now, bool with_state, Actions* out) {
  p_->Reach(now);
  flow_->BeginCall(Call::kAverage);
  if (flow_->EndsCall(out)) return;
  if (!flow_->trains()) {
    return flow_->FailCall(
        Status(Code::kUnavailable,
               "the job has lost this worker, which joins it again with its next Step"),
        out);
  }
  if (ReplicasAreEqual(flow_->plan()) && !TrainsInRounds(flow_->plan()) &&
      !(with_state && NeedsGradients(flow_->plan()))) {
    return flow_->Done(Status::Ok(), out);
  }
  flow_->Push(AskMembers{}, out);
}

void SessionCore::Mean(Instant now, std::vector<double> values, bool resumes, Actions* out) {
  p_->Reach(now);
  flow_->BeginCall(Call::kMean);
  p_->mean.Begin(incarnation(), std::move(values), resumes);
  p_->step.discard = false;
  if (!p_->standing.paused) flow_->protocol().OnFinish();
  flow_->UpdateInterrupt(out);
  if (flow_->EndsCall(out) || p_->standing.said_leave) return;
  if (!flow_->is_member()) {
    p_->standing.paused = false;
    flow_->OnTime(out);  // a Hello may have waited for this
    return;
  }
  flow_->ContinueMean(out);
}

void SessionCore::HasGradientsNow() { p_->options.hello.gradients = HasGradients::kHere; }
TrainedReport& SessionCore::report() { return p_->report; }

void SessionCore::Leave(Instant now, const prd::Leave& leave, Actions* out) {
  now = p_->Reach(now);
  PRD_CHECK(p_->call.is(Call::kNone) || p_->work.applies());
  p_->work.End();
  p_->call.BeginLeave(now);
  if (!flow_->is_member()) return flow_->Over(Status(Code::kAborted, "the session has left"), out);
  flow_->FailHeld("its session leaves", out);
  p_->work.DropHeld();
  flow_->CancelBeside("its session leaves", out);
  flow_->TellTrained(out);
  flow_->Push(leave, out);
}

void SessionCore::LeaveSoon(Instant now, std::string reason, DurationNs grace, Actions* out) {
  now = p_->Reach(now);
  std::optional<Instant> by;
  if (grace > 0) by = now + grace;
  if (!p_->departure.LeaveSoon(std::move(reason), by)) return;
  flow_->LeaveIfIdle(out);
}

void SessionCore::Stop(Instant now, std::string reason, Actions* out) {
  p_->Reach(now);
  if (p_->departure.Stop(std::move(reason)) && flow_->is_member()) flow_->SayStop(out);
}

void SessionCore::Cancel(Instant now, Actions* out) {
  p_->Reach(now);
  p_->call.Cancel();
  flow_->CancelBeside("cancelled by its user", out);
  flow_->FailHeld("cancelled by its user", out);
  if (p_->call.is(Call::kNone) || p_->call.is(Call::kLeave) || p_->work.applies()) return;
  flow_->GiveUpWork("cancelled by its user", out);
  flow_->FailCall(Status(Code::kCancelled, "the session was cancelled"), out);
}

void SessionCore::Fail(Instant now, const Status& why, Actions* out) {
  p_->Reach(now);
  flow_->LeaveNow(why, true, out);
}

// ---- from the controller ----

void SessionCore::OnEnvelope(Instant now, const ControllerEnvelope& envelope, Actions* out) {
  p_->Reach(now);
  inbox_->Receive(envelope, out);
  flow_->LeaveIfIdle(out);
  flow_->UpdateInterrupt(out);
}

void SessionCore::OnConnected(Instant now, Actions* out) {
  now = p_->Reach(now);
  p_->link.OnConnected(now, out);
}

void SessionCore::OnNoConnection(const std::string& why) { p_->link.OnNoConnection(why); }

// ---- from the data plane ----

std::optional<StepOutcome> SessionCore::HandedOver(GroupId group) {
  return flow_->HandedOver(group);
}

void SessionCore::OnReduced(Instant now, GroupId group, const Status& status,
                            std::uint64_t sent_bytes, Actions* out, std::vector<Rank> unreachable,
                            std::uint64_t digest) {
  now = p_->Reach(now);
  p_->unreachable.OnReduced(group, status.ok(), std::move(unreachable));
  if (p_->beside.reduces() && p_->beside.is(group)) {
    flow_->EndBeside(status.ok() ? Outcome::kOk : Outcome::kFailed, status.message(), out,
                     sent_bytes);
    flow_->BeginHeld(out);
    return flow_->protocol().Continue(out);
  }
  if (!p_->work.reduces(group)) return;
  p_->work.OnReduced(sent_bytes, digest);
  p_->step.outcome.sent_bytes += sent_bytes;
  p_->step.outcome.reduced += now - p_->work.at();
  const Outcome outcome = status.ok()           ? Outcome::kOk
                          : p_->work.given_up() ? Outcome::kAborted
                                                : Outcome::kFailed;
  const GroupKind kind = p_->work.group().kind;
  if (kind == GroupKind::kTrain) {
    flow_->protocol().OnTrained(outcome, status.message(), out);
  } else if (!status.ok()) {
    flow_->Report(outcome, status.message(), out);
  }
  if (!status.ok()) return flow_->BeginHeld(out);
  if (kind == GroupKind::kTrain) return;
  p_->step.iteration = p_->work.group().iteration;
  p_->step.in_inbox = 0;
  flow_->Report(Outcome::kOk, {}, out);
  if (kind == GroupKind::kInitial) return flow_->HasReplica(false, out);
  if (kind == GroupKind::kFinal) {
    p_->standing.final_done = !p_->standing.ends_run;
    return;
  }
  flow_->protocol().OnAveraged();
  flow_->protocol().Continue(out);
}

void SessionCore::OnFetched(Instant now, const Status& status, Iteration iteration, Actions* out,
                            Iteration in_inbox) {
  p_->Reach(now);
  if (p_->beside.fetches()) return flow_->protocol().OnResultFetched(status, out);
  if (!p_->work.fetches()) return;
  p_->work.End();
  if (status.ok() && (iteration < 0 || iteration > kMaxIteration)) {
    return flow_->Over(Status(Code::kDataLoss, "a peer's replica is of no possible iteration"),
                       out);
  }
  flow_->Push(Adopted{.ok = status.ok(),
                      .iteration = status.ok() ? iteration : 0,
                      .detail = status.ok() ? std::string() : status.message(),
                      .unreachable = status.code() == Code::kUnavailable ||
                                     status.code() == Code::kDeadlineExceeded},
              out);
  if (!status.ok()) {
    flow_->protocol().SignalAgain(out);
    return flow_->BeginHeld(out);
  }
  p_->step.iteration = iteration;
  p_->step.in_inbox = in_inbox;
  if (p_->standing.said_finish && p_->standing.final_announced) {
    p_->standing.final_done = !p_->standing.ends_run;  // the others' average
    return flow_->protocol().OnCallEnds(out);          // nothing is read over it
  }
  flow_->HasReplica(true, out);
}

void SessionCore::OnCopiedForAverage(Instant now, const Status& status, Actions* out) {
  p_->Reach(now);
  if (!p_->average.running()) return;
  p_->average.OnCopied(status, out);
  flow_->ContinueAverage(out);
}

// ---- from peers ----

void SessionCore::OnNote(Instant now, Incarnation from, const PeerMessage& note, Actions* out) {
  p_->Reach(now);
  if (!flow_->is_member()) return;
  flow_->protocol().OnNote(from, note, out);
  flow_->protocol().Continue(out);
}

void SessionCore::OnRequest(Instant now, Incarnation from, Request request, const PeerItem& parcel,
                            Actions* out) {
  p_->Reach(now);
  if (flow_->is_member()) {
    flow_->protocol().OnRequest(from, request, parcel, out);
  } else {
    out->push_back(Refuse{request});
  }
  flow_->protocol().Continue(out);
}

void SessionCore::OnPulled(Instant now, Ticket ticket, const Status& status,
                           const ShardHeader& enclosure, Actions* out) {
  p_->Reach(now);
  if (!flow_->is_member()) return;
  flow_->protocol().OnPulled(ticket, status, enclosure, out);
  flow_->protocol().Continue(out);
}

void SessionCore::OnOutOfReach(Instant now, Rank rank, Actions* out) {
  now = p_->Reach(now);
  if (!flow_->trains()) return;
  if (auto report = p_->unreachable.Report(now, {rank})) flow_->Push(std::move(*report), out);
}

void SessionCore::OnProbed(Instant now, Rank rank, Incarnation incarnation, Actions* out) {
  p_->Reach(now);
  if (flow_->is_member()) flow_->Push(Probed{.rank = rank, .incarnation = incarnation}, out);
}

// ---- time ----

void SessionCore::OnTime(Instant now, Actions* out) {
  p_->Reach(now);
  flow_->OnTime(out);
}

void SessionCore::KeepLease(Instant now, Actions* out) {
  now = p_->Reach(now);
  p_->link.SendHeartbeatIfDue(now, out);
}

std::optional<Instant> SessionCore::NextDeadline() const { return flow_->NextDeadline(); }

}  // namespace prd
