#include "prd/session.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "worker/background.h"
#include "worker/device/gpu.h"
#include "worker/host.h"
#include "worker/tensor_watch.h"

namespace prd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxNameBytes = 256;
constexpr std::size_t kCurveKeyBytes = 40;  // Z85
constexpr auto kLeaveWait = std::chrono::seconds(1);
// Gradients that are looked at in every step where values that are not finite only count; larger
// ones in one step of so many.
constexpr std::size_t kLookedAtAlways = 64 << 20;
constexpr std::int64_t kLookedAtEvery = 16;

Status Wrong(const std::string& what) { return Status(Code::kInvalidArgument, what); }

Status CheckOptions(const SessionOptions& options) {
  if (options.job.empty() || options.job.size() > kMaxNameBytes) {
    return Wrong("job: found a name of " + std::to_string(options.job.size()) +
                 " bytes, allowed is 1 to 256 (PRD_JOB)");
  }
  if (options.controller.rfind("tcp://", 0) != 0 && options.controller.rfind("ipc://", 0) != 0) {
    return Wrong("controller: found \"" + options.controller +
                 "\", needed is tcp://HOST:PORT or ipc://PATH (PRD_CONTROLLER)");
  }
  if (options.rank < -1) {
    return Wrong("rank: found " + std::to_string(options.rank) +
                 ", allowed is -1 (the controller gives one) or more (PRD_RANK)");
  }
  if (options.world_size < 0) {
    return Wrong("world_size: found " + std::to_string(options.world_size) +
                 ", allowed is 0 (the job's config says) or more (PRD_WORLD_SIZE)");
  }
  if (options.timeout.count() < 0) {
    return Wrong("timeout: found " + std::to_string(options.timeout.count()) +
                 " ms, allowed is 0 (for ever) or more (PRD_TIMEOUT_MS)");
  }
  if (options.start_timeout.count() < 0) {
    return Wrong("start_timeout: found " + std::to_string(options.start_timeout.count()) +
                 " ms, allowed is 0 (as timeout) or more (PRD_START_TIMEOUT_MS)");
  }
  if (options.launch.size() > kMaxNameBytes) {
    return Wrong("launch: found " + std::to_string(options.launch.size()) +
                 " bytes, allowed is 0 to 256 (PRD_LAUNCH)");
  }
  if (options.goal_steps < 0 || options.goal_samples < 0) {
    return Wrong("goal_steps, goal_samples: found " + std::to_string(options.goal_steps) + " and " +
                 std::to_string(options.goal_samples) +
                 ", allowed is 0 (no goal) or more (PRD_GOAL_STEPS, PRD_GOAL_SAMPLES)");
  }
  if (options.reduce_timeout.count() < 0) {
    return Wrong("reduce_timeout: found " + std::to_string(options.reduce_timeout.count()) +
                 " ms, allowed is 0 (the job's lease) or more (PRD_REDUCE_TIMEOUT_MS)");
  }
  if (options.max_communicators < 1) {
    return Wrong("max_communicators: found " + std::to_string(options.max_communicators) +
                 ", allowed is 1 or more (PRD_MAX_COMMUNICATORS)");
  }
  const std::size_t keys[] = {options.curve_server_key.size(), options.curve_public_key.size(),
                              options.curve_secret_key.size()};
  const bool none = std::all_of(std::begin(keys), std::end(keys), [](auto n) { return n == 0; });
  const bool all =
      std::all_of(std::begin(keys), std::end(keys), [](auto n) { return n == kCurveKeyBytes; });
  if (!none && !all) {
    return Wrong(
        "curve_server_key, curve_public_key, curve_secret_key: allowed are three keys of 40 "
        "characters (Z85), or none");
  }
  return Status::Ok();
}

template <typename T>  // Tensor, StateTensor
Status CheckTensors(const std::vector<T>& tensors, const char* which) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const T& tensor = tensors[i];
    const std::size_t size = DTypeSize(tensor.dtype);
    const std::string name = std::string(which) + "[" + std::to_string(i) + "]";
    if (size == 0) return Wrong(name + ": its dtype is none of DType");
    if (tensor.count > (std::size_t{1} << 48) / size) return Wrong(name + ": over 2^48 bytes");
    if (tensor.count != 0 && tensor.data == nullptr)
      return Wrong(name + ": data is null, but count is not 0");
    if (reinterpret_cast<std::uintptr_t>(tensor.data) % size != 0) {
      return Wrong(name + ": data is not aligned to the element size");
    }
  }
  return Status::Ok();
}

// Number, sizes and dtypes.
bool SameShapes(const std::vector<Tensor>& one, const std::vector<Tensor>& other) {
  return std::equal(
      one.begin(), one.end(), other.begin(), other.end(),
      [](const Tensor& a, const Tensor& b) { return a.count == b.count && a.dtype == b.dtype; });
}

Status CheckReplica(const Replica& replica) {
  PRD_RETURN_IF_ERROR(CheckTensors(replica.parameters, "parameters"));
  PRD_RETURN_IF_ERROR(CheckTensors(replica.gradients, "gradients"));
  PRD_RETURN_IF_ERROR(CheckTensors(replica.state, "state"));
  if (!replica.gradients.empty() && !SameShapes(replica.parameters, replica.gradients)) {
    return Wrong("gradients: needed are the number, sizes and dtypes of the parameters, or none");
  }
  for (const TrainingCount& count : {replica.trained, replica.job_trained}) {
    if (count.steps < 0 || count.samples < 0) {
      return Wrong("trained, job_trained: found " + std::to_string(count.steps) + " steps and " +
                   std::to_string(count.samples) + " samples, allowed is 0 or more");
    }
  }
  if (Layout(replica.parameters).bytes() == 0)
    return Wrong("parameters: found no elements, needed is one at least");
  if (!replica.apply)
    return Wrong("apply: found none, needed is the function that applies the gradients");
  return Status::Ok();
}

}  // namespace

class Session::Impl {
 public:
  Impl(SessionOptions options, std::unique_ptr<Background> background)
      : options_(std::move(options)), background_(std::move(background)) {}

  ~Impl() {
    if (attached_ && !over_) (void)Leave("its session was destroyed").ok();
  }

  // Runs a call of the session, unless another one runs or this process is not the session's.
  template <typename F>
  auto Enter(const char* name, F&& call) -> decltype(call()) {
    if (forked()) {
      return Status(
          Code::kFailedPrecondition,
          "this process was forked from pid " + std::to_string(pid_) + ", which has the session");
    }
    const char* running = nullptr;
    if (!running_.compare_exchange_strong(running, name)) {
      const bool same = caller_ == std::this_thread::get_id();
      return Status(
          Code::kFailedPrecondition,
          same ? std::string(name) + " was called inside " + running + ", from `apply` or the log"
               : std::string("two threads call this session at once (") + name + " while " +
                     running + " runs)");
    }
    caller_ = std::this_thread::get_id();
    const struct Leaver {
      Impl* impl;
      ~Leaver() {
        impl->caller_ = std::thread::id();
        impl->running_ = nullptr;
      }
    } leaver{this};
    return call();
  }
  bool forked() const { return getpid() != pid_; }

  Status Attach(Replica replica);
  Result<StepResult> Step(const StepInput& input);
  Status Pause();
  Status Resume();
  Status Average(const std::vector<Tensor>& into);
  Status Finish(const FinishOptions& options);
  // `nonfinite`: because of the step about to come, which is told as not finite.
  Status Leave(const std::string& reason, bool nonfinite = false);
  void Cancel() { background_->Cancel(); }
  void GiveToCaller();

  Welcome welcome() const { return background_->welcome(); }
  bool attached() const { return attached_; }
  bool interrupted() const { return background_->interrupted(); }
  Progress progress() const;
  GroupTransports group_transports() const {
    return {.collective = background_->groups(Way::kCollective),
            .exchange = background_->groups(Way::kExchange),
            .staged = background_->groups(Way::kStaged)};
  }
  Iteration iteration() const {
    return early_ ? early_->iteration : background_->store()->iteration.load();
  }

 private:
  Status Ready() const;
  Status ReadyToTrain() const;
  Status JoinJob(Replica replica);
  Status CheckUse(const Welcome& welcome) const;
  void SayIfNotWeighed(const Welcome& welcome, std::int64_t samples);
  Result<bool> LookForNonfinite(const Welcome& welcome, bool discard);
  Status CheckWritten();
  void TakeFromCaller(bool step_begins);
  Status WaitForCaller();
  template <typename F>
  std::int64_t WithReplica(F&& change);
  void RunApply(Iteration iteration);
  std::int64_t ApplyRounds();
  std::int64_t DoDuty(const ApplyNow& duty, std::uint64_t* digest);
  std::int64_t LocalStep(const Plan& plan, bool discard);
  // A call of the session, between what the caller has enqueued before it on this stream and what
  // it enqueues after it.
  class InOrder {
   public:
    InOrder(Impl* impl, void* stream, bool step = false) : impl_(impl) {
      if (impl_->device_ != nullptr) impl_->device_->SetCallerStream(stream);
      impl_->TakeFromCaller(step);
    }
    ~InOrder() {
      impl_->NoteParameters();
      impl_->GiveToCaller();
    }
    InOrder(const InOrder&) = delete;
    InOrder& operator=(const InOrder&) = delete;

   private:
    Impl* impl_;
  };
  void NoteParameters();
  CallDone Drive(Background::Request request, bool may_be_early = false);
  Status Settle();
  void SettleSoon();
  StepResult Describe(const StepOutcome& outcome) const;

  const SessionOptions options_;
  std::unique_ptr<Background> background_;
  Replica replica_;
  DeviceMemory* device_ = nullptr;  // the store's, if the replica is on one
  std::optional<TensorWatch> watch_;
  const pid_t pid_ = getpid();
  std::atomic<const char*> running_ = nullptr;  // the call in progress
  std::atomic<std::thread::id> caller_;         // its thread
  Status attach_;                               // what the last one gave
  bool attached_ = false;
  bool paused_ = false;
  bool said_samples_ = false;
  bool over_ = false;
  std::int64_t looked_ = 0;     // steps that might be looked at for values that are not finite
  Clock::time_point returned_;  // from the last call, or its reduction's end if that was later
  Clock::duration computed_{};  // before Pause, since then
  // The last step returned before its reduction was through: what it said. And what came of it
  // besides, for the next step to tell.
  std::optional<StepOutcome> early_;
  StepOutcome settled_;
  std::uint64_t exchanged_ = 0;  // bytes, up to then
};

Status Session::Impl::Ready() const {
  if (!attached_) {
    return Status(Code::kFailedPrecondition, attach_.ok() ? "Attach has not succeeded yet"
                                                          : "Attach failed: " + attach_.ToString());
  }
  if (over_)
    return Status(Code::kFailedPrecondition, "the session has left the job, by Finish or Leave");
  return Status::Ok();
}

Status Session::Impl::ReadyToTrain() const {
  PRD_RETURN_IF_ERROR(Ready());
  if (paused_)
    return Status(Code::kFailedPrecondition, "the session is paused: Resume comes first");
  return Status::Ok();
}

// The parameters are as the last call left them, where that is watched. REQUIRES: the device has
// been told to wait for the caller.
Status Session::Impl::CheckWritten() {
  if (!watch_) return Status::Ok();
  const std::lock_guard lock(background_->store()->mutex);
  return watch_->Check(*background_->store()->memory);
}

void Session::Impl::NoteParameters() {
  if (!watch_) return;
  const std::lock_guard lock(background_->store()->mutex);
  watch_->Note(*background_->store()->memory);
}

// What the session does to the replica comes after what the caller has enqueued so far, and with
// the state that the caller has written.
void Session::Impl::TakeFromCaller(bool step_begins) {
  ReplicaStore* store = background_->store();
  const std::lock_guard lock(store->mutex);
  if (device_ != nullptr) device_->TakeFromCaller();
  store->BeginCall(step_begins);
}

// What the caller enqueues from now on comes after what the session has done to the replica.
void Session::Impl::GiveToCaller() {
  ReplicaStore* store = background_->store();
  const std::lock_guard lock(store->mutex);
  store->EndCall();
  if (device_ != nullptr) device_->GiveToCaller();
}

// The engine is to hear of a step when the device has done it, not when it has been enqueued.
Status Session::Impl::WaitForCaller() {
  if (device_ == nullptr) return Status::Ok();
  Status status = device_->WaitForCaller();
  if (!status.ok()) background_->Wake();  // to leave
  return status;
}

Status Session::Impl::Attach(Replica replica) {
  if (attached_) return Status(Code::kFailedPrecondition, "Attach has succeeded already");
  attach_ = JoinJob(std::move(replica));
  if (!attached_) return attach_;
  if (const Status wrong = CheckUse(welcome()); !wrong.ok()) {
    (void)Leave(wrong.message()).ok();
    return wrong;
  }
  if (options_.check_tensors) watch_.emplace(replica_.parameters, replica_.gradients);
  NoteParameters();
  return Status::Ok();
}

// Why this replica cannot be trained as the job wants.
Status Session::Impl::CheckUse(const Welcome& welcome) const {
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

Status Session::Impl::JoinJob(Replica replica) {
  PRD_RETURN_IF_ERROR(CheckReplica(replica));
  Result<ReplicaHome> opened = OpenHome(replica, background_->wake(), options_);
  if (!opened.ok()) return opened.status();
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
              .model_hash = ModelHash(replica_.parameters, replica_.state),
              .iteration = 0,
              .launch = options_.launch,
              .goal = {.steps = options_.goal_steps, .samples = options_.goal_samples},
              .own = {.steps = replica_.trained.steps, .samples = replica_.trained.samples},
              .job_trained = {.steps = replica_.job_trained.steps,
                              .samples = replica_.job_trained.samples}};
  SessionCore::Options core{
      .hello = std::move(hello),
      .token = background_->token(),
      .timeout = std::chrono::nanoseconds(options_.timeout).count(),
      .start_timeout = std::chrono::nanoseconds(options_.start_timeout).count(),
      .controller = options_.controller};
  // The background thread's, which may still hear answers to a call before this one that failed.
  const auto attach = [this, core, home](SessionCore* session, Instant now, Actions* out) {
    background_->MoveTo(std::move(*home));
    background_->store()->SetTensors(replica_.parameters, replica_.gradients, replica_.state);
    session->Attach(now, core, out);
  };
  device_ = home->device;  // by the time that anything is done with it
  const CallDone done = Drive(attach);
  GiveToCaller();
  if (!done.status.ok()) return done.status;
  attached_ = true;
  returned_ = Clock::now();
  return Status::Ok();
}

// Runs change() with the replica locked. What the caller's `apply` throws leaves the job.
template <typename F>
std::int64_t Session::Impl::WithReplica(F&& change) {
  try {
    const std::lock_guard lock(background_->store()->mutex);
    return change();
  } catch (...) {
    (void)Leave("apply threw an exception").ok();
    throw;
  }
}

// Runs the caller's `apply`; the replica is then at `iteration`. REQUIRES: it is locked.
void Session::Impl::RunApply(Iteration iteration) {
  ReplicaStore* store = background_->store();
  store->GiveAveraged();
  if (watch_) watch_->BeforeApply(*store->memory);
  if (device_ != nullptr) device_->GiveToCaller();
  replica_.apply();
  if (device_ != nullptr) device_->TakeFromCaller();
  if (watch_) {
    for (const std::string& line : watch_->AfterApply(*store->memory)) {
      background_->log().Say(line);
    }
  }
  store->TakeAveraged();
  store->iteration = iteration;
}

// Applies the results of the rounds that are here, as one; returns their number. REQUIRES: the
// replica is locked.
std::int64_t Session::Impl::ApplyRounds() {
  ReplicaStore* store = background_->store();
  const std::int64_t rounds = store->inbox_rounds;
  const Iteration iteration = store->inbox_iteration;
  if (!store->TakeInbox()) return 0;
  RunApply(iteration);
  return rounds;
}

// Returns whose results the replica got.
std::int64_t Session::Impl::DoDuty(const ApplyNow& duty, std::uint64_t* digest) {
  return WithReplica([&]() -> std::int64_t {
    ReplicaStore* store = background_->store();
    if (duty.what == ApplyNow::What::kInboxOfGradients) return ApplyRounds();
    if (duty.what == ApplyNow::What::kInboxOfChanges) return store->AddInbox();
    RunApply(duty.iteration);
    if (duty.digest) *digest = store->memory->DigestOf(store->trained);
    return 1;
  });
}

CallDone Session::Impl::Drive(Background::Request request, bool may_be_early) {
  Background::Reply reply = background_->Call(std::move(request), may_be_early);
  while (reply.duty) {
    std::uint64_t digest = 0;
    const std::int64_t rounds = DoDuty(*reply.duty, &digest);
    reply = background_->Call(
        [at = iteration(), rounds, digest](SessionCore* core, Instant now, Actions* out) {
          core->Applied(now, at, rounds, out, digest);
        });
  }
  if (reply.early) early_ = reply.done.step;
  return std::move(reply.done);
}

// Whether the step before went as it said. What it takes to make it good is done here.
Status Session::Impl::Settle() {
  if (!early_) return Status::Ok();
  const Background::Reply reply = *background_->Settle();
  const StepOutcome said = *std::exchange(early_, std::nullopt);
  returned_ = std::max(returned_, reply.at);
  const StepOutcome& came = reply.done.step;
  settled_.attempts += came.attempts - said.attempts;
  settled_.sent_bytes += came.sent_bytes - std::min(came.sent_bytes, said.sent_bytes);
  settled_.reduced += came.reduced - said.reduced;
  settled_.adopted = settled_.adopted || came.adopted;
  return reply.done.status;
}

// For who leaves: waits for a reduction that may be about to end, but not for another one.
void Session::Impl::SettleSoon() {
  if (!early_) return;
  if (!background_->Settle(kLeaveWait)) {
    background_->Cancel();
    (void)background_->Settle();
  }
  early_.reset();
}

// What a step does to the replica before the engine hears of it: the local step, and the averages
// that have come since the step before. Returns their number.
std::int64_t Session::Impl::LocalStep(const Plan& plan, bool discard) {
  const bool counts = CountsLocalSteps(plan);
  if (!counts && (discard || !AppliesFirst(plan))) return 0;
  return WithReplica([&] {
    if (!discard) RunApply(iteration() + (counts ? 1 : 0));
    return counts ? background_->store()->AddInbox() : 0;
  });
}

// Gradients and changes of a step are weighted by its samples. Averages of parameters are not,
// unless the engine's options say so, and what is exchanged or pushed is not.
void Session::Impl::SayIfNotWeighed(const Welcome& welcome, std::int64_t samples) {
  if (samples == 0 || said_samples_ || AllOrNone(welcome.plan)) return;
  said_samples_ = true;
  background_->log().Say("engine " + welcome.engine +
                         " does not weigh by samples, unless its options say so: batches of any "
                         "size count alike in its averages");
}

// Whether the step's gradients, or the parameters where there are none, have a value that is not
// finite. An error: the worker has left for that.
Result<bool> Session::Impl::LookForNonfinite(const Welcome& welcome, bool discard) {
  const bool gradients = !replica_.gradients.empty();
  const bool passes = welcome.on_nonfinite == OnNonfinite::kPass;
  // A device's tensors are read through host memory: too dear for who only counts.
  if (discard || (passes && (!gradients || device_ != nullptr))) return false;
  const bool large = background_->store()->gradients.bytes() > kLookedAtAlways;
  if (passes && large && looked_++ % kLookedAtEvery != 0) return false;
  std::optional<Layout::Element> found;
  {
    ReplicaStore* store = background_->store();
    const std::lock_guard lock(store->mutex);
    found = store->memory->FirstNonfinite(gradients ? store->gradients : store->trained);
  }
  if (!found || welcome.on_nonfinite != OnNonfinite::kStop) return found.has_value();
  const std::int64_t step = background_->progress().own.steps + 1;
  const std::string why = std::string(gradients ? "gradients[" : "parameters[") +
                          std::to_string(found->tensor) +
                          "] has a value that is not finite, in step " + std::to_string(step) +
                          " (on_nonfinite = \"stop\")";
  (void)Leave(why, true).ok();
  return Status(Code::kFailedPrecondition, why);
}

Result<StepResult> Session::Impl::Step(const StepInput& input) {
  PRD_RETURN_IF_ERROR(ReadyToTrain());
  if (input.samples < 0) {
    return Wrong("samples: found " + std::to_string(input.samples) + ", allowed is 0 or more");
  }
  const Welcome welcome = this->welcome();
  const Plan& plan = welcome.plan;
  if (const Status wrong = CheckUse(welcome); !wrong.ok()) {
    return Status(Code::kFailedPrecondition, "the job began anew: " + wrong.message());
  }
  SayIfNotWeighed(welcome, input.samples);
  const InOrder order(this, input.stream.value_or(replica_.stream), true);
  PRD_RETURN_IF_ERROR(CheckWritten());
  const Status settled = Settle();
  const bool gradients = !replica_.gradients.empty();
  Result<bool> nonfinite = gradients ? LookForNonfinite(welcome, input.discard) : false;
  if (!nonfinite.ok()) return nonfinite.status();
  const bool discard = input.discard || (*nonfinite && welcome.on_nonfinite == OnNonfinite::kDrop);
  // In any case, as where the group of this step fails.
  const std::int64_t taken = LocalStep(plan, discard);
  if (!gradients) nonfinite = LookForNonfinite(welcome, discard);
  if (!nonfinite.ok()) return nonfinite.status();
  PRD_RETURN_IF_ERROR(settled);
  PRD_RETURN_IF_ERROR(WaitForCaller());
  const auto computed = std::chrono::nanoseconds(Clock::now() - returned_);
  const prd::Ready ready{.iteration = iteration() + (CountsLocalSteps(plan) ? 0 : 1),
                         .step_ns = computed.count(),
                         .samples = input.samples};
  const CallDone done = Drive(
      [ready, discard, taken, nonfinite = *nonfinite](SessionCore* core, Instant now,
                                                      Actions* out) {
        if (nonfinite) core->NoteNonfinite();
        core->Step(now, ready, discard, taken, out);
      },
      device_ != nullptr && !watch_);
  returned_ = Clock::now();
  if (!done.status.ok()) return done.status;
  StepOutcome outcome = done.step;
  outcome.attempts += settled_.attempts;
  outcome.sent_bytes += settled_.sent_bytes;
  outcome.reduced += settled_.reduced;
  outcome.adopted = outcome.adopted || settled_.adopted;
  settled_ = {};
  StepResult result = Describe(outcome);
  const std::uint64_t exchanged = background_->exchanged_bytes();
  result.sent_bytes += exchanged - std::exchange(exchanged_, exchanged);
  result.computed = computed;
  return result;
}

StepResult Session::Impl::Describe(const StepOutcome& outcome) const {
  StepResult result;
  result.steps = outcome.own.steps;
  result.done = outcome.done;
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

Progress Session::Impl::progress() const {
  if (forked()) return {};
  const Background::Progress now = background_->progress();
  return {.steps = now.job.trained.steps,
          .samples = now.job.trained.samples,
          .workers = now.job.workers,
          .goal_steps = now.goal.steps,
          .goal_samples = now.goal.samples,
          .done = now.job.done,
          .own_steps = now.own.steps,
          .own_samples = now.own.samples};
}

Status Session::Impl::Pause() {
  PRD_RETURN_IF_ERROR(ReadyToTrain());
  const InOrder order(this, replica_.stream);
  PRD_RETURN_IF_ERROR(CheckWritten());
  PRD_RETURN_IF_ERROR(Settle());
  computed_ = Clock::now() - returned_;
  const CallDone done =
      Drive([](SessionCore* core, Instant now, Actions* out) { core->Pause(now, out); });
  settled_.adopted = settled_.adopted || done.step.adopted;
  paused_ = done.status.ok();
  {
    const std::lock_guard lock(background_->store()->mutex);
    background_->store()->LeaveCopy();
  }
  return done.status;
}

Status Session::Impl::Resume() {
  PRD_RETURN_IF_ERROR(Ready());
  if (!paused_) return Status(Code::kFailedPrecondition, "the session is not paused");
  const InOrder order(this, replica_.stream);
  PRD_RETURN_IF_ERROR(CheckWritten());
  const CallDone done =
      Drive([](SessionCore* core, Instant now, Actions* out) { core->Resume(now, out); });
  settled_.adopted = settled_.adopted || done.step.adopted;
  paused_ = !done.status.ok();
  returned_ = Clock::now() - computed_;
  return done.status;
}

Status Session::Impl::Average(const std::vector<Tensor>& into) {
  PRD_RETURN_IF_ERROR(Ready());
  PRD_RETURN_IF_ERROR(CheckTensors(into, "into"));
  if (!SameShapes(into, replica_.parameters)) {
    return Wrong("into: needed are the number, sizes and dtypes of the parameters");
  }
  const auto on_device = [this](const Tensor& tensor) {
    return tensor.count == 0 || device_->gpu()->CheckPointer(tensor.data).ok();
  };
  const bool to_device = device_ != nullptr && std::all_of(into.begin(), into.end(), on_device);
  for (std::size_t i = 0; !to_device && i < into.size(); ++i) {
    const Status here = CheckHostPointer(into[i].data);
    if (!here.ok()) return Wrong("into[" + std::to_string(i) + "]: " + here.message());
  }
  const InOrder order(this, replica_.stream);
  PRD_RETURN_IF_ERROR(CheckWritten());
  PRD_RETURN_IF_ERROR(Settle());
  const CallDone done =
      Drive([background = background_.get()](SessionCore* core, Instant now, Actions* out) {
        background->BeginMean();
        core->Average(now, out);
      });
  const std::shared_ptr<Buffer> mean = background_->TakeMean();
  PRD_RETURN_IF_ERROR(done.status);
  const Layout layout(into);
  if (to_device) {
    const std::lock_guard lock(background_->store()->mutex);
    device_->Combine(layout, Memory::Tensors(), {{Memory::InHost(mean->data(), mean)}});
  } else {
    layout.Write(0, layout.bytes(), mean->data());
  }
  return background_->store()->memory->failure();
}

Status Session::Impl::Finish(const FinishOptions& options) {
  PRD_RETURN_IF_ERROR(ReadyToTrain());
  const InOrder order(this, replica_.stream);
  PRD_RETURN_IF_ERROR(CheckWritten());
  PRD_RETURN_IF_ERROR(Settle());
  if (!options.wait) return Leave("finished, does not wait");
  const CallDone done =
      Drive([](SessionCore* core, Instant now, Actions* out) { core->Finish(now, out); });
  returned_ = Clock::now();
  over_ = done.status.ok();
  return done.status;
}

Status Session::Impl::Leave(const std::string& reason, bool nonfinite) {
  PRD_RETURN_IF_ERROR(Ready());
  SettleSoon();
  over_ = true;
  return background_
      ->Call([reason, nonfinite](SessionCore* core, Instant now, Actions* out) {
        if (nonfinite) core->NoteNonfinite();
        core->Leave(now, reason, out);
      })
      .done.status;
}

// ---- the public face ----

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&& other) noexcept {
  if (this != &other) {
    Drop();
    impl_ = std::move(other.impl_);
  }
  return *this;
}
Session::~Session() { Drop(); }

// A forked child has none of the session's threads: it leaves all as it is.
void Session::Drop() {
  if (impl_ != nullptr && impl_->forked()) (void)impl_.release();
  impl_.reset();
}

Result<Session> Session::Create(SessionOptions options) {
  PRD_RETURN_IF_ERROR(CheckOptions(options));
  Result<std::unique_ptr<Background>> background = Background::Start(options);
  if (!background.ok()) return background.status();
  return Session(std::make_unique<Impl>(std::move(options), std::move(background).value()));
}

Status Session::Attach(Replica replica) {
  return impl_->Enter("Attach", [&] { return impl_->Attach(std::move(replica)); });
}
Result<StepResult> Session::Step(StepInput input) {
  return impl_->Enter("Step", [&] { return impl_->Step(input); });
}
Status Session::Pause() {
  return impl_->Enter("Pause", [&] { return impl_->Pause(); });
}
Status Session::Resume() {
  return impl_->Enter("Resume", [&] { return impl_->Resume(); });
}
Status Session::Average(const std::vector<Tensor>& into) {
  return impl_->Enter("Average", [&] { return impl_->Average(into); });
}
Status Session::Finish(FinishOptions options) {
  return impl_->Enter("Finish", [&] { return impl_->Finish(options); });
}
Status Session::Leave(const std::string& reason) {
  return impl_->Enter("Leave", [&] {
    const Status status = impl_->Leave(reason);
    impl_->GiveToCaller();
    return status;
  });
}
Progress Session::progress() const { return impl_->progress(); }
void Session::Cancel() { impl_->Cancel(); }

bool Session::Interrupted() const { return impl_->interrupted(); }

int Session::rank() const { return impl_->attached() ? impl_->welcome().rank : -1; }
int Session::workers() const { return impl_->attached() ? impl_->welcome().workers : 0; }
std::int64_t Session::iteration() const { return impl_->iteration(); }
GroupTransports Session::group_transports() const { return impl_->group_transports(); }
GroupTransports Session::group_ways() const { return impl_->group_transports(); }
std::string Session::engine() const {
  return impl_->attached() ? impl_->welcome().engine : std::string();
}

}  // namespace prd
