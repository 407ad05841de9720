// The C++ face of a session's calls: they block, and run `apply` themselves.
#include "prd/session.h"

#include <utility>

#include "worker/session_calls.h"

namespace prd {

class Session::Impl {
 public:
  explicit Impl(std::unique_ptr<SessionCalls> calls) : calls_(std::move(calls)) {}

  SessionCalls* calls() { return calls_.get(); }
  AnyThreadCalls& any_thread() { return calls_->any_thread(); }

  // Runs the call that this makes, of calls(), to its end. What `apply` throws leaves it, once the
  // worker has left the job.
  template <typename F>
  Status Run(const char* name, F&& make) {
    return calls_->entrance().Enter(name, [&] {
      PRD_RETURN_IF_ERROR(calls_->call().Begin(name, make()));
      while (calls_->call().Next() == CallInProgress::Wants::kApply) RunApply();
      return calls_->call().status();
    });
  }
  // A forked child has none of the session's threads: it leaves all as it is.
  void Drop() {
    if (calls_ != nullptr && calls_->forked()) (void)calls_.release();
    calls_.reset();
  }

 private:
  void RunApply() {
    try {
      calls_->apply()();
    } catch (...) {
      (void)calls_->call().Applied("threw an exception").ok();
      (void)calls_->call().Next();  // the call ends
      throw;
    }
    (void)calls_->call().Applied("").ok();
  }

  std::unique_ptr<SessionCalls> calls_;
};

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

void Session::Drop() {
  if (impl_ != nullptr) impl_->Drop();
  impl_.reset();
}

Result<Session> Session::Create(SessionOptions options) {
  Result<std::unique_ptr<SessionCalls>> calls = SessionCalls::Create(std::move(options));
  if (!calls.ok()) return calls.status();
  return Session(std::make_unique<Impl>(std::move(calls).value()));
}

Status Session::Attach(Replica replica) {
  if (!replica.apply) {
    return Status(Code::kInvalidArgument,
                  "apply: found none, needed is the function that applies the gradients");
  }
  return impl_->Run("Attach", [&] { return impl_->calls()->Attach(std::move(replica)); });
}
Status Session::SetGradients(std::vector<Tensor> gradients) {
  return impl_->Run("SetGradients",
                    [&] { return impl_->calls()->SetGradients(std::move(gradients)); });
}
Result<StepResult> Session::Step(StepInput input) {
  PRD_RETURN_IF_ERROR(impl_->Run("Step", [&] { return impl_->calls()->Step(input); }));
  return impl_->calls()->result();
}
Status Session::Pause() {
  return impl_->Run("Pause", [&] { return impl_->calls()->Pause(); });
}
Status Session::Resume() {
  return impl_->Run("Resume", [&] { return impl_->calls()->Resume(); });
}
Status Session::Average(const std::vector<Tensor>& into) {
  return impl_->Run("Average", [&] { return impl_->calls()->Average(into); });
}
Result<std::vector<double>> Session::Mean(const std::vector<double>& values) {
  PRD_RETURN_IF_ERROR(impl_->Run("Mean", [&] { return impl_->calls()->Mean(values); }));
  return impl_->calls()->mean();
}
Status Session::Finish(FinishOptions options) {
  return impl_->Run("Finish", [&] { return impl_->calls()->Finish(options); });
}
Status Session::Leave(const std::string& reason) {
  return impl_->Run("Leave", [&] { return impl_->calls()->Leave(reason); });
}
Progress Session::progress() const { return impl_->any_thread().progress(); }
void Session::LeaveSoon(const char* reason, std::chrono::milliseconds grace) {
  impl_->any_thread().LeaveSoon(reason, grace);
}
void Session::TellLoss(double loss) { impl_->any_thread().TellLoss(loss); }
Status Session::Stop(const std::string& reason) { return impl_->any_thread().Stop(reason); }
void Session::Cancel() { impl_->any_thread().Cancel(); }

bool Session::Interrupted() const { return impl_->any_thread().interrupted(); }

BatchShare Session::share(int ahead) const { return impl_->any_thread().share(ahead); }
double Session::clock() const { return impl_->any_thread().clock(); }
int Session::rank() const { return impl_->any_thread().rank(); }
int Session::workers() const { return impl_->any_thread().workers(); }
std::int64_t Session::iteration() const { return impl_->any_thread().iteration(); }
bool Session::needs_gradients() const { return impl_->any_thread().needs_gradients(); }
GroupTransports Session::group_transports() const { return impl_->any_thread().group_transports(); }
std::vector<MemoryHeld> Session::memory() const { return impl_->any_thread().memory(); }
GroupTransports Session::group_ways() const { return impl_->any_thread().group_transports(); }
std::string Session::engine() const { return impl_->any_thread().engine(); }

}  // namespace prd
