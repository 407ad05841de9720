// What Step does around the engine's part of it.
#include <algorithm>
#include <utility>

#include "worker/core/trained_report.h"
#include "worker/session_calls.h"

namespace prd {
namespace {

// Bytes that are looked at in every step where values that are not finite only count; more are in
// one step of so many. Parameters stay what they are until then.
constexpr std::size_t kGradientsLookedAtAlways = 4 << 20;
constexpr std::size_t kParametersLookedAtAlways = 1 << 20;
constexpr std::int64_t kLookedAtEvery = 16;

}  // namespace

Task<Status> SessionCalls::Step(StepInput input) {
  PRD_CO_RETURN_IF_ERROR(ReadyToTrain());
  if (input.samples < 0 || input.samples > kMaxBatch) {
    co_return Status(Code::kInvalidArgument, "samples: found " + std::to_string(input.samples) +
                                                 ", allowed is 0 to " + std::to_string(kMaxBatch));
  }
  const Welcome welcome = this->welcome();
  SayIfNotWeighed(welcome, input.samples);
  void* const stream = input.stream.value_or(replica_.stream);
  PRD_CO_RETURN_IF_ERROR(CheckNotCaptured(stream));
  const InOrder order(this, stream, true);
  PRD_CO_RETURN_IF_ERROR(CheckWritten());
  const Status settled = co_await Settle();
  const bool gradients = !replica_.gradients.empty();
  Looked looked;
  if (gradients) looked = co_await LookForNonfinite(welcome, input.discard);
  PRD_CO_RETURN_IF_ERROR(looked.status);
  const bool discard =
      input.discard || (looked.nonfinite && welcome.on_nonfinite == OnNonfinite::kDrop);
  // In any case, as where the group of this step fails.
  StepProcedure local(welcome.plan, discard);
  if (!co_await Run(&local)) co_return co_await LeaveAsApplyFailed();
  if (!gradients) looked = co_await LookForNonfinite(welcome, discard);
  PRD_CO_RETURN_IF_ERROR(looked.status);
  PRD_CO_RETURN_IF_ERROR(settled);
  PRD_CO_RETURN_IF_ERROR(WaitForCaller());
  const auto computed = std::chrono::nanoseconds(computed_.so_far());
  prd::Ready ready = local.ReadyAt(any_thread_.iteration());
  ready.step_ns = computed.count();
  ready.samples = input.samples;
  ready.lead = any_thread_.lead();
  const CallDone done = co_await Drive(
      [ready, discard, taken = local.rounds(), nonfinite = looked.nonfinite](
          SessionCore* core, Instant now, Actions* out) {
        if (nonfinite) core->report().NoteNonfinite();
        core->Step(now, ready, discard, taken, out);
      },
      device_ != nullptr && !watch_);
  computed_.Begin();
  PRD_CO_RETURN_IF_ERROR(done.status);
  StepOutcome outcome = done.step;
  outcome.attempts += settled_.attempts;
  outcome.sent_bytes += settled_.sent_bytes;
  outcome.reduced += settled_.reduced;
  outcome.adopted = outcome.adopted || settled_.adopted;
  settled_ = {};
  result_ = Describe(outcome);
  const std::uint64_t exchanged = background_->view().exchanged_bytes();
  result_.sent_bytes += exchanged - std::exchange(exchanged_, exchanged);
  result_.computed = computed;
  co_return Status::Ok();
}

// Gradients and changes of a step are weighted by its samples. Averages of parameters are not,
// unless a group's weights are by its signals and the options say so, and what is exchanged or
// pushed is not. One worker says it for the job, once steps differ.
void SessionCalls::SayIfNotWeighed(const Welcome& welcome, std::int64_t samples) {
  if (samples == 0 || said_samples_ || welcome.rank != 0 || AllOrNone(welcome.plan)) return;
  const SessionView::Progress before = background_->view().progress();
  const auto differs = [samples](const Trained& of) { return of.samples != of.steps * samples; };
  if (!differs(before.own) && !differs(before.job.trained)) return;
  said_samples_ = true;
  const bool announced = TrainsInGroups(welcome.plan) && !DrawnAhead(welcome.plan);
  background_->log().Say("steps differ in their samples, and engine " + welcome.engine +
                         " does not weigh by them" +
                         (announced ? ", unless its weights = \"samples\"" : "") +
                         ": batches of any size count alike in its averages");
}

// Whether the step's gradients, or the parameters where there are none, have a value that is not
// finite.
Task<SessionCalls::Looked> SessionCalls::LookForNonfinite(Welcome welcome, bool discard) {
  const bool gradients = !replica_.gradients.empty();
  const bool passes = welcome.on_nonfinite == OnNonfinite::kPass;
  Looked looked;
  // A device's tensors are read through host memory: too dear where such steps only count.
  if (discard || (passes && device_ != nullptr)) co_return looked;
  ReplicaStore* store = background_->store();
  const Layout& layout = gradients ? store->gradients : store->trained;
  const bool large =
      layout.bytes() > (gradients ? kGradientsLookedAtAlways : kParametersLookedAtAlways);
  if (passes && large && looked_++ % kLookedAtEvery != 0) co_return looked;
  std::optional<Layout::Element> found;
  {
    const std::lock_guard lock(store->mutex);
    found = store->memory->FirstNonfinite(layout);
  }
  looked.nonfinite = found.has_value();
  if (!found) co_return looked;
  const std::int64_t step = background_->view().progress().own.steps + 1;
  std::string why = std::string(gradients ? "gradients[" : "parameters[") +
                    std::to_string(found->tensor) + "] has a value that is not finite, in step " +
                    std::to_string(step);
  if (passes && !std::exchange(said_nonfinite_, true)) {
    background_->log().Say(why +
                           ": it counts as any other, and may spread to all models. The "
                           "job's on_nonfinite = \"stop\" would end it here");
  }
  if (welcome.on_nonfinite != OnNonfinite::kStop) co_return looked;
  why += " (on_nonfinite = \"stop\")";
  (void)(co_await LeaveJob(why, Leaving::kNonfinite)).ok();
  looked.status = Status(Code::kFailedPrecondition, why);
  co_return looked;
}

StepResult SessionCalls::Describe(const StepOutcome& outcome) const {
  StepResult result;
  result.steps = outcome.own.steps;
  result.done = outcome.done;
  result.partial = outcome.partial;
  result.iteration = outcome.iteration;
  result.adopted = outcome.adopted;
  result.included = outcome.included;
  result.rounds = outcome.rounds;
  result.local_steps = outcome.local_steps;
  result.attempts = outcome.attempts;
  result.group = outcome.group.id;
  result.reason = outcome.group.reason;
  for (const GroupMember& member : outcome.group.members) {
    result.members.push_back(member.rank);
    result.weights.push_back(member.weight);
  }
  if (result.members.size() > 1) {
    const Plan plan = welcome().plan;
    const bool gradients =
        TrainsInGroups(plan) && ReducedInTraining(plan).payload == Payload::kGradients;
    const ReplicaStore* store = background_->store();
    result.reduced_bytes = (gradients ? store->gradients : store->parameters).bytes();
  }
  result.sent_bytes = outcome.sent_bytes;
  result.waited = std::chrono::nanoseconds(outcome.waited);
  result.reduced = std::chrono::nanoseconds(outcome.reduced);
  return result;
}

}  // namespace prd
