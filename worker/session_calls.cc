#include "worker/session_calls.h"

#include <algorithm>
#include <utility>

#include "common/base/text.h"
#include "common/io/own_socket.h"
#include "worker/core/trained_report.h"
#include "worker/device/gpu.h"
#include "worker/host.h"
#include "worker/mesh/frame.h"
#include "worker/session_checks.h"

namespace prd {
namespace {

constexpr auto kForEver = std::chrono::nanoseconds(-1);
constexpr auto kLeaveWait = std::chrono::seconds(1);

Status Wrong(const std::string& what) { return Status(Code::kInvalidArgument, what); }
Status NotNow(const std::string& what) { return Status(Code::kFailedPrecondition, what); }

// Tensors of these shapes, nowhere.
std::vector<Tensor> ShapesOf(std::vector<Tensor> tensors) {
  for (Tensor& tensor : tensors) tensor.data = nullptr;
  return tensors;
}

// REQUIRES: the store's mutex is held by the caller's thread.
class StoreReplica final : public StepReplica {
 public:
  explicit StoreReplica(ReplicaStore* store) : store_(store) {}
  Iteration iteration() const override { return store_->iteration; }
  std::int64_t AddInbox() override { return store_->AddInbox().value_or(kNotNow); }
  Inbox TakeInbox() override {
    const Inbox inbox{.rounds = store_->inbox.rounds, .iteration = store_->inbox.iteration};
    return store_->TakeInbox() ? inbox : Inbox();
  }
  std::uint64_t Digest() const override { return store_->memory->DigestOf(store_->trained); }

 private:
  ReplicaStore* store_;
};

}  // namespace

Result<std::unique_ptr<SessionCalls>> SessionCalls::Create(SessionOptions options) {
  if (options.controller.empty()) {
    Result<std::string> own = FindOwnEndpoint();
    if (!own.ok()) return own.status();
    options.controller = *std::move(own);
  }
  PRD_RETURN_IF_ERROR(CheckOptions(options));
  PRD_RETURN_IF_ERROR(SettleKeys(&options));
  Result<std::unique_ptr<Background>> background = Background::Start(options);
  if (!background.ok()) return background.status();
  return std::unique_ptr<SessionCalls>(
      new SessionCalls(std::move(options), std::move(background).value()));
}

SessionCalls::~SessionCalls() {
  GiveUpCall();
  if (over_ || (!any_thread_.attached() && !joining_)) return;
  if (!call_.Begin("~Session", LeaveJob("its session was destroyed")).ok()) return;
  while (call_.Next() != CallInProgress::Wants::kDone) {
  }
}

// ---- a call in pieces ----

Status SessionCalls::BeginLeave(const char* name, std::string reason) {
  if (!over_) GiveUpCall();
  return call_.Begin(name, Leave(std::move(reason)));
}

void SessionCalls::GiveUpCall() {
  if (call_.GiveUp()) SetEarly(std::nullopt);
}

Task<CallDone> SessionCalls::Drive(Background::Request request, bool may_be_early) {
  background_->Ask(std::move(request), may_be_early);
  Background::Reply reply = co_await CallInProgress::Answer{&call_};
  while (reply.duty) {
    StepProcedure duty(*reply.duty);
    if (!co_await Run(&duty)) {
      CallDone failed;
      failed.status = co_await LeaveAsApplyFailed();
      co_return failed;
    }
    background_->Ask(
        [at = any_thread_.iteration(), duty](SessionCore* core, Instant now, Actions* out) {
          core->Applied(now, at, duty.rounds(), out, duty.digest());
        });
    reply = co_await CallInProgress::Answer{&call_};
  }
  if (reply.early) SetEarly(reply.done.step);
  co_return std::move(reply.done);
}

// ---- the replica ----

// The parameters are as the last call left them, where that is watched. REQUIRES: the device has
// been told to wait for the caller.
Status SessionCalls::CheckWritten() {
  if (!watch_) return Status::Ok();
  const std::lock_guard lock(background_->store()->mutex);
  return watch_->Check(*background_->store()->memory);
}

void SessionCalls::NoteParameters() {
  if (!watch_) return;
  const std::lock_guard lock(background_->store()->mutex);
  watch_->Note(*background_->store()->memory);
}

// What the session does to the replica comes after what the caller has enqueued so far, and with
// the state that the caller has written.
void SessionCalls::TakeFromCaller(bool step_begins) {
  ReplicaStore* store = background_->store();
  const std::lock_guard lock(store->mutex);
  if (device_ != nullptr) device_->TakeFromCaller();
  store->BeginCall(step_begins);
}

// What the caller enqueues from now on comes after what the session has done to the replica.
void SessionCalls::GiveToCaller() {
  ReplicaStore* store = background_->store();
  const std::lock_guard lock(store->mutex);
  store->EndCall();
  if (over_) store->AboutToChange();  // the tensors may go
  if (device_ != nullptr) device_->GiveToCaller();
}

// The engine is to hear of a step when the device has done it, not when it has been enqueued.
Status SessionCalls::WaitForCaller() {
  if (device_ == nullptr) return Status::Ok();
  Status status = device_->WaitForCaller();
  if (!status.ok()) background_->bell().Ring();  // to leave
  return status;
}

// False: `apply` failed, and the worker has to leave.
Task<bool> SessionCalls::Run(StepProcedure* procedure) {
  if (procedure->idle()) co_return true;
  const std::unique_lock lock(background_->store()->mutex);
  StoreReplica replica(background_->store());
  const std::optional<Iteration> at = procedure->Begin(&replica);
  if (at && !co_await RunApply(*at)) co_return false;
  procedure->End(&replica);
  co_return true;
}

// The caller runs `apply`; the replica is then at `iteration`. False: `apply` failed, and the
// worker has to leave. REQUIRES: the replica is locked, and stays so.
Task<bool> SessionCalls::RunApply(Iteration iteration) {
  ReplicaStore* store = background_->store();
  store->BeforeApply();
  if (watch_) watch_->BeforeApply(*store->memory);
  if (device_ != nullptr) device_->GiveToCaller();
  const bool applied = co_await CallInProgress::ApplyRun{&call_};
  if (!applied) co_return false;
  if (device_ != nullptr) device_->TakeFromCaller();
  if (watch_) {
    for (const std::string& line : watch_->AfterApply(*store->memory)) {
      background_->log().Say(line);
    }
  }
  store->TakeAveraged();
  store->iteration = iteration;
  co_return true;
}

Task<Status> SessionCalls::LeaveAsApplyFailed() {
  const std::string why = "apply " + call_.failed();
  (void)(co_await LeaveJob(why, Leaving::kFailed)).ok();
  co_return Status(Code::kAborted, why + "; the worker has left the job");
}

// ---- calls ----

Status SessionCalls::Ready() const {
  if (!any_thread_.attached()) {
    return NotNow(attach_.ok() ? "Attach has not succeeded yet"
                               : "Attach failed: " + attach_.ToString());
  }
  return over_ ? HasLeft() : Status::Ok();
}

Status SessionCalls::HasLeft() const {
  return NotNow("the session has left the job" +
                (failed_.empty() ? ", by Finish or Leave" : ": " + failed_));
}

Status SessionCalls::ReadyToTrain() const {
  PRD_RETURN_IF_ERROR(Ready());
  if (paused_) return NotNow("the session is paused: Resume comes first");
  const Status wrong = CheckUse(welcome());
  if (wrong.ok()) return wrong;
  return NotNow(replica_.gradients_later ? wrong.message() + ": SetGradients comes first"
                                         : "the job began anew: " + wrong.message());
}

// Why this replica cannot be trained as the job wants.
Status SessionCalls::CheckUse(const Welcome& welcome) const {
  if (!replica_.gradients.empty()) return Status::Ok();
  if (NeedsGradients(welcome.plan)) {
    return Wrong("gradients: engine " + welcome.engine +
                 " reduces gradients, and the replica has none");
  }
  if (welcome.on_nonfinite == OnNonfinite::kDrop) {
    return Wrong(
        "gradients: the job drops steps whose gradients are not finite (on_nonfinite = \"drop\"), "
        "and the replica has none");
  }
  return Status::Ok();
}

Task<Status> SessionCalls::Attach(Replica replica) {
  if (over_) co_return HasLeft();
  if (any_thread_.attached()) co_return NotNow("Attach has succeeded already");
  attach_ = co_await JoinJob(std::move(replica));
  if (!any_thread_.attached()) co_return attach_;
  const Status wrong = CheckUse(welcome());
  if (!wrong.ok() && !replica_.gradients_later) {
    (void)(co_await LeaveJob(wrong.message(), Leaving::kFailed)).ok();
    co_return attach_ = wrong;
  }
  if (options_.check_tensors) watch_.emplace(replica_.parameters, replica_.gradients);
  NoteParameters();
  co_return Status::Ok();
}

Task<Status> SessionCalls::JoinJob(Replica replica) {
  PRD_CO_RETURN_IF_ERROR(CheckReplica(replica));
  Result<ReplicaHome> opened = OpenHome(replica, background_->bell().fd(), options_);
  if (!opened.ok()) co_return opened.status();
  const auto home = std::make_shared<ReplicaHome>(std::move(opened).value());
  if (home->device != nullptr) home->device->TakeFromCaller();
  replica_ = std::move(replica);
  Hello hello{.job = options_.job,
              .rank = options_.rank,
              .world_size = options_.world_size,
              .host = background_->host(),
              .host_name = HostName(),
              .pid = static_cast<std::uint32_t>(getpid()),
              .endpoints = background_->endpoints(),
              .model_bytes = Layout(replica_.parameters).bytes(),
              .model_hash = ModelHash(replica_.parameters, replica_.state, replica_.model_tag),
              .iteration = 0,
              .launch = options_.launch,
              .goal = {.steps = options_.goal_steps, .samples = options_.goal_samples},
              .own = {.steps = replica_.trained.steps, .samples = replica_.trained.samples},
              .job_trained = {.steps = replica_.job_trained.steps,
                              .samples = replica_.job_trained.samples}};
  hello.mesh_key = background_->mesh_key();
  hello.returns_at_once = true;
  hello.batch = options_.batch;
  hello.max_share = options_.max_share;
  hello.accumulates = options_.accumulates;
  hello.takes_shares = true;
  hello.mesh_version = kMeshVersion;
  hello.gradients = !replica_.gradients.empty() ? HasGradients::kHere
                    : replica_.gradients_later  ? HasGradients::kLater
                                                : HasGradients::kNone;
  SessionCore::Options core{
      .hello = std::move(hello),
      .token = background_->token(),
      .timeout = std::chrono::nanoseconds(options_.timeout).count(),
      .start_timeout = std::chrono::nanoseconds(options_.start_timeout).count(),
      .controller = options_.controller};
  // The background thread's, which may still hear answers to a call before this one that failed.
  const auto attach = [this, core, home](SessionCore* session, Instant now, Actions* out) {
    background_->MoveTo(std::move(*home));
    // Gradients that are given later are of the parameters' shapes.
    background_->store()->SetTensors(
        replica_.parameters,
        replica_.gradients.empty() ? ShapesOf(replica_.parameters) : replica_.gradients,
        replica_.state);
    background_->store()->kept.SetChangesInCalls(replica_.state_in_apply);
    background_->SetAccumulates(core.hello.accumulates);
    session->Attach(now, core, out);
  };
  device_ = home->device;  // by the time that anything is done with it
  joining_ = true;
  const CallDone done = co_await Drive(attach);
  joining_ = false;
  GiveToCaller();
  if (!done.status.ok()) co_return done.status;
  any_thread_.SetAttached();
  SayMemory(welcome());
  computed_.Begin();
  co_return Status::Ok();
}

// Once, for all workers, of models whose memory somebody may miss.
void SessionCalls::SayMemory(const Welcome& welcome) {
  constexpr std::size_t kLarge = 64 << 20;
  const ReplicaStore::RowBytes bytes = background_->store()->TrainingBytes(welcome.plan);
  if (welcome.rank != 0 || bytes.host + bytes.device < kLarge) return;
  std::string places;
  for (const auto& [held, where] : {std::pair(bytes.device, " MiB on the device"),
                                    std::pair(bytes.host, " MiB in host memory")}) {
    if (held == 0) continue;
    places += (places.empty() ? "" : " and ") + std::to_string(held >> 20) + where;
  }
  background_->log().Say("engine " + welcome.engine + " holds " + places +
                         ", beside the model and its gradients" +
                         (TrainsInGroups(welcome.plan) ? "" : " and what workers exchange") +
                         " (Session::memory, prdctl workers)");
}

Task<Status> SessionCalls::SetGradients(std::vector<Tensor> gradients) {
  PRD_CO_RETURN_IF_ERROR(Ready());
  PRD_CO_RETURN_IF_ERROR(CheckGradients(replica_.parameters, gradients));
  PRD_CO_RETURN_IF_ERROR(CheckApart(replica_, gradients));
  PRD_CO_RETURN_IF_ERROR(CheckPlaces(device_, gradients, "gradients"));
  PRD_CO_RETURN_IF_ERROR(CheckWritten());
  PRD_CO_RETURN_IF_ERROR(co_await Settle());
  const CallDone done = co_await Drive(
      [store = background_->store(), &gradients](SessionCore* core, Instant, Actions* out) {
        store->SetGradients(gradients);
        core->HasGradientsNow();
        out->push_back(CallDone{});
      });
  PRD_CO_RETURN_IF_ERROR(done.status);
  replica_.gradients = std::move(gradients);
  if (watch_) watch_.emplace(replica_.parameters, replica_.gradients);
  NoteParameters();
  co_return Status::Ok();
}

Task<Status> SessionCalls::Pause() {
  PRD_CO_RETURN_IF_ERROR(ReadyToTrain());
  PRD_CO_RETURN_IF_ERROR(CheckNotCaptured(replica_.stream));
  const InOrder order(this, replica_.stream);
  PRD_CO_RETURN_IF_ERROR(CheckWritten());
  PRD_CO_RETURN_IF_ERROR(co_await Settle());
  computed_.Pause();
  const CallDone done =
      co_await Drive([](SessionCore* core, Instant now, Actions* out) { core->Pause(now, out); });
  settled_.adopted = settled_.adopted || done.step.adopted;
  paused_ = done.status.ok();
  {
    const std::lock_guard lock(background_->store()->mutex);
    background_->store()->kept.LeaveCopies();
  }
  co_return done.status;
}

Task<Status> SessionCalls::Resume() {
  PRD_CO_RETURN_IF_ERROR(Ready());
  if (!paused_) co_return NotNow("the session is not paused");
  PRD_CO_RETURN_IF_ERROR(CheckNotCaptured(replica_.stream));
  const InOrder order(this, replica_.stream);
  PRD_CO_RETURN_IF_ERROR(CheckWritten());
  const CallDone done =
      co_await Drive([](SessionCore* core, Instant now, Actions* out) { core->Resume(now, out); });
  settled_.adopted = settled_.adopted || done.step.adopted;
  paused_ = !done.status.ok();
  mean_resumes_ = mean_resumes_ && paused_;
  computed_.Resume();
  co_return done.status;
}

Task<Status> SessionCalls::Average(std::vector<Tensor> into) {
  PRD_CO_RETURN_IF_ERROR(Ready());
  PRD_CO_RETURN_IF_ERROR(CheckTensors(into, "into"));
  std::vector<Tensor> with_averaged = replica_.parameters;
  for (const StateTensor& tensor : replica_.state) {
    if (tensor.average) with_averaged.push_back({tensor.data, tensor.count, tensor.dtype});
  }
  const bool with_state = !SameShapes(into, replica_.parameters);
  if (with_state && !SameShapes(into, with_averaged)) {
    co_return Wrong(
        "into: needed are the number, sizes and dtypes of the parameters, or those and then those "
        "of the averaged state");
  }
  const bool to_device = device_ != nullptr && CheckPlaces(device_, into, "into").ok();
  if (!to_device) PRD_CO_RETURN_IF_ERROR(CheckPlaces(nullptr, into, "into"));
  PRD_CO_RETURN_IF_ERROR(CheckNotCaptured(replica_.stream));
  const InOrder order(this, replica_.stream);
  PRD_CO_RETURN_IF_ERROR(CheckWritten());
  PRD_CO_RETURN_IF_ERROR(co_await Settle());
  if (!paused_) computed_.Pause();
  const CallDone done = co_await Drive(
      [background = background_.get(), with_state](SessionCore* core, Instant now, Actions* out) {
        background->mean().Begin(with_state && AllOrNone(core->welcome().plan));
        core->Average(now, with_state, out);
      });
  if (!paused_) computed_.Resume();
  const std::shared_ptr<Buffer> mean = background_->mean().Take(with_state);
  PRD_CO_RETURN_IF_ERROR(done.status);
  const Layout layout(into);
  if (to_device) {
    const std::lock_guard lock(background_->store()->mutex);
    device_->Combine(layout, Memory::Tensors(), {{Memory::InHost(mean->data(), mean)}});
  } else {
    layout.Write(0, layout.bytes(), mean->data());
  }
  co_return background_->store()->memory->failure();
}

// A call that is to be made again leaves the session paused, as its first part does.
Task<Status> SessionCalls::Mean(std::vector<double> values) {
  PRD_CO_RETURN_IF_ERROR(paused_ ? Ready() : ReadyToTrain());
  if (values.empty() || values.size() > kMaxNumbers) {
    co_return Wrong("values: found " + std::to_string(values.size()) + ", allowed are 1 to " +
                    std::to_string(kMaxNumbers));
  }
  if (!welcome().job_calls) {
    co_return NotNow("Mean: the controller is of an older version, which does not know it");
  }
  PRD_CO_RETURN_IF_ERROR(CheckNotCaptured(replica_.stream));
  const InOrder order(this, replica_.stream);
  PRD_CO_RETURN_IF_ERROR(CheckWritten());
  PRD_CO_RETURN_IF_ERROR(co_await Settle());
  const bool resumes = !paused_ || mean_resumes_;
  if (!paused_) computed_.Pause();
  given_ = std::move(values);  // the request has but a pointer: GCC 12 destroys what one owns twice
  const CallDone done =
      co_await Drive([given = &given_, resumes](SessionCore* core, Instant now, Actions* out) {
        core->Mean(now, *given, resumes, out);
      });
  settled_.adopted = settled_.adopted || done.step.adopted;
  paused_ = !resumes || done.status.code() == Code::kUnavailable;
  mean_resumes_ = resumes && paused_;
  computed_.Resume();
  if (done.status.ok()) mean_ = done.numbers;
  co_return done.status;
}

Task<Status> SessionCalls::Finish(FinishOptions options) {
  PRD_CO_RETURN_IF_ERROR(options.wait ? ReadyToTrain() : Ready());
  PRD_CO_RETURN_IF_ERROR(CheckNotCaptured(replica_.stream));
  const InOrder order(this, replica_.stream);
  PRD_CO_RETURN_IF_ERROR(CheckWritten());
  PRD_CO_RETURN_IF_ERROR(co_await Settle());
  if (!options.wait) co_return co_await LeaveJob("finished, does not wait");
  const CallDone done =
      co_await Drive([](SessionCore* core, Instant now, Actions* out) { core->Finish(now, out); });
  computed_.Begin();
  if (done.status.ok()) over_ = true;
  co_return done.status;
}

Task<Status> SessionCalls::Leave(std::string reason) {
  if (!joining_) PRD_CO_RETURN_IF_ERROR(Ready());
  const Status status = co_await LeaveJob(std::move(reason));
  GiveToCaller();
  co_return status;
}

// kNonfinite: because of the step about to come, which is told as not finite.
Task<Status> SessionCalls::LeaveJob(std::string reason, Leaving why) {
  SettleSoon();
  over_ = true;
  if (why != Leaving::kByItself) failed_ = reason;
  // A controller takes no message of any size.
  background_->Ask(
      [reason = std::string(CutText(reason)), why](SessionCore* core, Instant now, Actions* out) {
        if (why == Leaving::kNonfinite) core->report().NoteNonfinite();
        core->Leave(now, {.reason = reason, .failed = why != Leaving::kByItself}, out);
      });
  const Background::Reply reply = co_await CallInProgress::Answer{&call_};
  co_return reply.done.status;
}

// ---- a step that returned before its reduction was through ----

void SessionCalls::SetEarly(std::optional<StepOutcome> said) {
  early_ = std::move(said);
  any_thread_.SetEarly(early_ ? std::optional(early_->iteration) : std::nullopt);
}

// Whether the step before went as it said. What it takes to make it good is done here.
Task<Status> SessionCalls::Settle() {
  if (!early_) co_return Status::Ok();
  background_->AskToSettle();
  const Background::Reply reply = co_await CallInProgress::Answer{&call_};
  const StepOutcome said = *early_;
  SetEarly(std::nullopt);
  computed_.BeginAfter(reply.at);
  const StepOutcome& came = reply.done.step;
  settled_.attempts += came.attempts - said.attempts;
  settled_.sent_bytes += came.sent_bytes - std::min(came.sent_bytes, said.sent_bytes);
  settled_.reduced += came.reduced - said.reduced;
  settled_.adopted = settled_.adopted || came.adopted;
  co_return reply.done.status;
}

// For who leaves: waits for a reduction that may be about to end, but not for another one.
void SessionCalls::SettleSoon() {
  if (!early_) return;
  background_->AskToSettle();
  if (!background_->Await(kLeaveWait)) {
    background_->Cancel();
    (void)background_->Await(kForEver);
  }
  SetEarly(std::nullopt);
}

}  // namespace prd
