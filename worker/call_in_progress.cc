#include "worker/call_in_progress.h"

namespace prd {
namespace {

Status NotNow(const std::string& what) { return Status(Code::kFailedPrecondition, what); }

}  // namespace

Status CallInProgress::Begin(const char* name, Task<Status> call) {
  if (call_) {
    return NotNow(std::string(name) + ": " + name_ +
                  " is in progress, and is to be brought to its end first");
  }
  name_ = name;
  failed_.clear();
  status_ = Status::Ok();
  call_.emplace(std::move(call));
  stopped_ = call_->handle();
  GoOn();
  return status_;
}

void CallInProgress::StopAt(std::coroutine_handle<> at, Wants wants) {
  stopped_ = at;
  wants_ = wants;
  asked_ = false;
  thread_ = std::this_thread::get_id();
}

// To where it stops next, or to its end.
void CallInProgress::GoOn() {
  wants_ = Wants::kDone;
  std::exchange(stopped_, nullptr).resume();
  if (wants_ != Wants::kDone) return;
  Task<Status> ended = *std::move(call_);
  call_.reset();
  status_ = ended.Take();
}

CallInProgress::Wants CallInProgress::Next(std::chrono::nanoseconds wait) {
  while (wants_ == Wants::kPending) {
    reply_ = background_->Await(wait);
    if (!reply_) return Wants::kPending;
    GoOn();
  }
  asked_ = wants_ == Wants::kApply;
  return wants_;
}

Status CallInProgress::Applied(const std::string& failed) {
  if (!asked_) return NotNow("the call in progress has not asked for `apply`");
  if (thread_ != std::this_thread::get_id()) {
    return NotNow("`apply` was asked for on another thread, which has the replica");
  }
  asked_ = false;
  failed_ = failed;
  GoOn();
  return Status::Ok();
}

bool CallInProgress::GiveUp() {
  if (!call_) return false;
  const bool waits = wants_ == Wants::kPending;
  if (waits) {
    background_->Cancel();
    while (background_->Await(std::chrono::nanoseconds(-1))->early) background_->AskToSettle();
  }
  wants_ = Wants::kDone;
  asked_ = false;
  stopped_ = nullptr;
  call_.reset();
  return waits;
}

}  // namespace prd
