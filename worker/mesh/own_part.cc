#include "worker/mesh/own_part.h"

#include <mutex>

namespace prd {

Status OwnPart::Choose(Reduced what) {
  using enum What;
  const bool inbox = what.landing == Landing::kInbox;
  if (what == Reduced{Payload::kParameters, Landing::kParameters}) {
    what_ = kParameters;
  } else if (what == Reduced{Payload::kParameters, Landing::kInbox}) {
    what_ = kVirtual;
  } else if (what == Reduced{Payload::kGradients, Landing::kGradients}) {
    what_ = kGradients;
  } else if (what == Reduced{Payload::kGradients, Landing::kInbox}) {
    what_ = kOutbox;
  } else if (what == Reduced{Payload::kChange, Landing::kBase}) {
    what_ = kDifference;
  } else {
    return Status(Code::kFailedPrecondition,
                  "no worker can reduce this, and have the result there");
  }
  if (what.payload == Payload::kGradients) shape_ = &store_->gradients;
  if (group_->kind == GroupKind::kInitial) shape_ = store_->BeginsWith();
  if (inbox && !RowsOf(*plan_).inbox) {
    return Status(Code::kFailedPrecondition, "the job's plan keeps no inbox");
  }
  if (what_ == kDifference && store_->base.size() != shape_->bytes()) {
    return Status(Code::kFailedPrecondition, "the parameters of the round's start are not known");
  }
  if (what_ == kOutbox && contributes() && !store_->owes) {
    return Status(Code::kFailedPrecondition, "there are no gradients to contribute");
  }
  taken_ = what_ != kVirtual && !store_->away;
  const bool changes = what_ == kDifference && (device() || !Settles());
  if (changes && contributes()) store_->TakeDifference();
  own_row_ = what_ == kVirtual || (contributes() && (changes || what_ == kOutbox));
  return CheckInitial();
}

Status OwnPart::CheckInitial() const {
  if (group_->initial_weight == 0) return Status::Ok();
  const bool models = what_ == What::kParameters || what_ == What::kVirtual;
  if (models && store_->initial.size() == shape_->bytes()) return Status::Ok();
  return Status(Code::kFailedPrecondition, "no initial model is kept here");
}

bool OwnPart::Take() {
  if (store_->away) return false;
  if (what_ != What::kVirtual) return taken_ = true;
  const std::unique_lock lock(store_->mutex, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  store_->TakeVirtual();
  return taken_ = true;
}

bool OwnPart::Commits() const {
  return what_ == What::kParameters && group_->kind == GroupKind::kTrain &&
         !(device() && MayBeLate());
}

bool OwnPart::InPlace() const {
  if (device() || ResultStays()) return false;
  const bool gradients =
      what_ == What::kGradients && !store_->keeps_gradients && shape_->bytes() > direct_bytes_;
  return Commits() || gradients || Settles() || Overwrites();
}

bool OwnPart::ReplacesOutbox(bool on_plane) const {
  const bool kept = what_ == What::kOutbox;  // gradients that a round may be without
  return own_row_ && !kept && (on_plane || !device());
}

DevicePlane::Into OwnPart::Into() const {
  if (Commits()) return DevicePlane::Into::kTensors;
  if (!ReplacesOutbox(true)) return DevicePlane::Into::kRow;
  return what_ == What::kVirtual ? DevicePlane::Into::kChange : DevicePlane::Into::kOwn;
}

bool OwnPart::ResultStays() const {
  const bool in_place = what_ == What::kParameters || what_ == What::kGradients;
  if (device() || !in_place || group_->initial_weight != 0 || group_->ring_only) return false;
  for (std::size_t i = 0; i < group_->members.size(); ++i) {
    if (group_->members[i].weight != (i == position_ ? 1 : 0)) return false;
  }
  if (group_->members.size() == 1) return true;
  // Others may copy a round's result later; and small rows do not go around a ring.
  return group_->kind != GroupKind::kRound && shape_->bytes() > direct_bytes_;
}

}  // namespace prd
