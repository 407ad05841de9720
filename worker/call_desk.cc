#include "worker/call_desk.h"

#include <utility>

namespace prd {

void CallDesk::Ask(Request request, bool may_be_early) {
  const std::lock_guard lock(mutex_);
  reply_.reset();
  request_ = std::move(request);
  may_be_early_ = may_be_early;
}

std::optional<CallDesk::Reply> CallDesk::Await(std::chrono::nanoseconds wait) {
  std::unique_lock lock(mutex_);
  const auto answered = [this] { return reply_.has_value() || !failure_.ok(); };
  if (wait.count() < 0) {
    answered_.wait(lock, answered);
  } else if (!answered_.wait_for(lock, wait, answered)) {
    return std::nullopt;
  }
  if (!reply_) return Reply{.done = {failure_, {}}};
  return std::exchange(reply_, std::nullopt);
}

CallDesk::Request CallDesk::Take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(request_, nullptr);
}

void CallDesk::Answer(Reply reply) {
  const std::lock_guard lock(mutex_);
  reply_ = std::move(reply);
  reply_->at = std::chrono::steady_clock::now();
  answered_.notify_all();
}

bool CallDesk::TakeMayBeEarly() {
  const std::lock_guard lock(mutex_);
  return std::exchange(may_be_early_, false);
}

void CallDesk::Fail(Status why) {
  const std::lock_guard lock(mutex_);
  failure_ = std::move(why);
  answered_.notify_all();
}

}  // namespace prd
