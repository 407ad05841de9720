#include "worker/core/call_work.h"

#include <utility>

namespace prd {

CallWork::Held CallWork::TakeHeld() {
  Held held = std::move(*held_);
  held_.reset();
  return held;
}

void CallWork::Reduce(Instant now, Group group, const Reduced& what, bool in_place, Actions* out) {
  state_ = State::kReduce;
  decides_ = Decides::kHere;
  group_ = std::move(group);
  at_ = now;
  bytes_ = 0;
  digest_ = 0;
  out->push_back(StartReduce{.group = group_, .what = what, .in_place = in_place});
}

void CallWork::Fetch(const GroupMember& source, bool in_place, Actions* out) {
  state_ = State::kFetch;
  source_ = source.rank;
  out->push_back(StartFetch{.source = source, .in_place = in_place});
}

void CallWork::Apply(ApplyNow::What what, Iteration iteration, Actions* out) {
  group_.id = kNoGroup;
  state_ = State::kApply;
  out->push_back(ApplyNow{.what = what, .iteration = iteration});
}

void CallWork::ApplyResult(Actions* out) {
  state_ = State::kApply;
  out->push_back(ApplyNow{
      .what = ApplyNow::What::kGradients, .iteration = group_.iteration, .digest = group_.digest});
}

void CallWork::OnReduced(std::uint64_t sent_bytes, std::uint64_t digest) {
  bytes_ = sent_bytes;
  digest_ = digest;
}

void CallWork::OnApplied(std::uint64_t digest) {
  digest_ = digest;
  End();
}

void CallWork::Cancel(Actions* out) {
  if (reduces()) out->push_back(CancelReduce{});
  if (fetches()) out->push_back(CancelFetch{});
  if (!applies()) End();
}

void CallWork::Drop(Actions* out) {
  Cancel(out);
  group_.id = kNoGroup;
}

void CallWork::HandOver() {
  if (decides_ == Decides::kHere) decides_ = Decides::kDevice;
}

void CallWork::GiveUp(const std::string& reason, Actions* out) {
  decides_ = Decides::kGivenUp;
  out->push_back(GiveUpReduce{reason});
}

Finished CallWork::Report(Instant now, Outcome outcome, const std::string& detail,
                          DurationNs waited) const {
  return {.group = group_.id,
          .outcome = outcome,
          .detail = detail,
          .wait_ns = waited,
          .reduce_ns = now - at_,
          .bytes = bytes_,
          .digest = outcome == Outcome::kOk ? digest_ : 0};
}

}  // namespace prd
