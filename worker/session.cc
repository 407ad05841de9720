#include "prd/session.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "worker/background.h"
#include "worker/host.h"

namespace prd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxNameBytes = 256;
constexpr std::size_t kCurveKeyBytes = 40;  // Z85
constexpr auto kLeaveWait = std::chrono::seconds(1);

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

Status CheckReplica(const Replica& replica) {
  PRD_RETURN_IF_ERROR(CheckTensors(replica.parameters, "parameters"));
  PRD_RETURN_IF_ERROR(CheckTensors(replica.gradients, "gradients"));
  PRD_RETURN_IF_ERROR(CheckTensors(replica.state, "state"));
  if (!replica.gradients.empty()) {
    const bool same = std::equal(
        replica.parameters.begin(), replica.parameters.end(), replica.gradients.begin(),
        replica.gradients.end(),
        [](const Tensor& a, const Tensor& b) { return a.count == b.count && a.dtype == b.dtype; });
    if (!same)
      return Wrong("gradients: needed are the number, sizes and dtypes of the parameters, or none");
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

  Status Attach(Replica replica);
  Result<StepResult> Step(const StepInput& input);
  Status Finish();
  Status Leave(const std::string& reason);
  void Cancel() { background_->Cancel(); }
  void GiveToCaller();

  Welcome welcome() const { return background_->welcome(); }
  bool attached() const { return attached_; }
  bool interrupted() const { return background_->interrupted(); }
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
    ~InOrder() { impl_->GiveToCaller(); }
    InOrder(const InOrder&) = delete;
    InOrder& operator=(const InOrder&) = delete;

   private:
    Impl* impl_;
  };
  CallDone Drive(Background::Request request, bool may_be_early = false);
  Status Settle();
  void SettleSoon();
  StepResult Describe(const StepOutcome& outcome) const;

  const SessionOptions options_;
  std::unique_ptr<Background> background_;
  Replica replica_;
  DeviceMemory* device_ = nullptr;  // the store's, if the replica is on one
  bool attached_ = false;
  bool over_ = false;
  Clock::time_point returned_;  // from the last call, or its reduction's end if that was later
  // The last step returned before its reduction was through: what it said. And what came of it
  // besides, for the next step to tell.
  std::optional<StepOutcome> early_;
  StepOutcome settled_;
  std::uint64_t exchanged_ = 0;  // bytes, up to then
};

Status Session::Impl::Ready() const {
  if (!attached_) return Status(Code::kFailedPrecondition, "Attach has not succeeded yet");
  if (over_)
    return Status(Code::kFailedPrecondition, "the session has left the job, by Finish or Leave");
  return Status::Ok();
}

// What the session does to the replica comes after what the caller has enqueued so far, and with
// the state that the caller has written.
void Session::Impl::TakeFromCaller(bool step_begins) {
  ReplicaStore* store = background_->store();
  const std::lock_guard lock(store->mutex);
  if (device_ != nullptr) device_->TakeFromCaller();
  store->TakeAveraged(step_begins);
}

// What the caller enqueues from now on comes after what the session has done to the replica.
void Session::Impl::GiveToCaller() {
  ReplicaStore* store = background_->store();
  const std::lock_guard lock(store->mutex);
  store->GiveAveraged();
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
              .iteration = 0};
  SessionCore::Options core{.hello = std::move(hello),
                            .timeout = std::chrono::nanoseconds(options_.timeout).count()};
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
  if (NeedsGradients(welcome().plan) && replica_.gradients.empty()) {
    const std::string why =
        "engine " + welcome().engine + " reduces gradients, and the replica has none";
    (void)Leave(why).ok();
    return Wrong("gradients: " + why);
  }
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
  if (device_ != nullptr) device_->GiveToCaller();
  replica_.apply();
  if (device_ != nullptr) device_->TakeFromCaller();
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

Result<StepResult> Session::Impl::Step(const StepInput& input) {
  PRD_RETURN_IF_ERROR(Ready());
  if (input.samples < 0) {
    return Wrong("samples: found " + std::to_string(input.samples) + ", allowed is 0 or more");
  }
  const Plan plan = welcome().plan;
  if (NeedsGradients(plan) && replica_.gradients.empty()) {
    return Status(Code::kFailedPrecondition, "the job began anew with engine " + welcome().engine +
                                                 ", which reduces gradients; the replica has none");
  }
  const InOrder order(this, input.stream.value_or(replica_.stream), true);
  const Status settled = Settle();
  // In any case, as where the group of this step fails.
  const std::int64_t taken = LocalStep(plan, input.discard);
  PRD_RETURN_IF_ERROR(settled);
  PRD_RETURN_IF_ERROR(WaitForCaller());
  const auto computed = std::chrono::nanoseconds(Clock::now() - returned_);
  const prd::Ready ready{.iteration = iteration() + (CountsLocalSteps(plan) ? 0 : 1),
                         .step_ns = computed.count(),
                         .samples = input.samples};
  const CallDone done = Drive(
      [ready, discard = input.discard, taken](SessionCore* core, Instant now, Actions* out) {
        core->Step(now, ready, discard, taken, out);
      },
      device_ != nullptr);
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

Status Session::Impl::Finish() {
  PRD_RETURN_IF_ERROR(Ready());
  const InOrder order(this, replica_.stream);
  PRD_RETURN_IF_ERROR(Settle());
  const CallDone done =
      Drive([](SessionCore* core, Instant now, Actions* out) { core->Finish(now, out); });
  returned_ = Clock::now();
  over_ = done.status.ok();
  return done.status;
}

Status Session::Impl::Leave(const std::string& reason) {
  PRD_RETURN_IF_ERROR(Ready());
  SettleSoon();
  over_ = true;
  return background_
      ->Call(
          [reason](SessionCore* core, Instant now, Actions* out) { core->Leave(now, reason, out); })
      .done.status;
}

// ---- the public face ----

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

Result<Session> Session::Create(SessionOptions options) {
  PRD_RETURN_IF_ERROR(CheckOptions(options));
  Result<std::unique_ptr<Background>> background = Background::Start(options);
  if (!background.ok()) return background.status();
  return Session(std::make_unique<Impl>(std::move(options), std::move(background).value()));
}

Status Session::Attach(Replica replica) { return impl_->Attach(std::move(replica)); }
Result<StepResult> Session::Step(StepInput input) { return impl_->Step(input); }
Status Session::Finish() { return impl_->Finish(); }
Status Session::Leave(const std::string& reason) {
  const Status status = impl_->Leave(reason);
  impl_->GiveToCaller();
  return status;
}
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
