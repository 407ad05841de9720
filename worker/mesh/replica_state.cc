#include "worker/mesh/replica_state.h"

namespace prd {

// ---- averaged ----

std::vector<Tensor> AveragedState::Set(Memory* memory, const std::vector<Tensor>& tensors) {
  tensors_ = Layout(tensors);
  memory->Size(&shadow_, MemoryUse::kState, tensors_.bytes());
  newer_ = false;
  std::vector<Tensor> shadows;
  const Layout in_shadow = tensors_.Over(shadow_.data());
  for (const Layout::Piece& piece : in_shadow.pieces()) {
    shadows.push_back(
        {piece.data, (piece.end - piece.begin) / DTypeSize(piece.dtype), piece.dtype});
  }
  return shadows;
}

void AveragedState::Take(Memory* memory, bool step_begins) {
  caller_newer_ = step_begins && mixes_first_;
  if (caller_newer_) {
    memory->Size(&given_, MemoryUse::kState, shadow_.size());
    memory->Combine(tensors_, Memory::In(given_), {{Memory::In(shadow_)}});
  } else {
    memory->Combine(tensors_, Memory::In(shadow_), {{Memory::Tensors()}});
  }
  newer_ = false;
}

bool AveragedState::Give(Memory* memory) {
  constexpr Weight kMinus = {-1, -1};
  const bool newer = newer_.exchange(false);
  const Memory::Place to = Memory::Tensors();
  if (newer && caller_newer_) {
    memory->Combine(tensors_, to, {{to}, {Memory::In(given_), kMinus}, {Memory::In(shadow_)}});
  } else if (newer) {
    memory->Combine(tensors_, to, {{Memory::In(shadow_)}});
  }
  return caller_newer_;
}

// ---- kept ----

void KeptState::Set(const std::vector<Tensor>& tensors) {
  tensors_ = Layout(tensors);
  copied_ = false;
  copies_due_ = 0;
}

void KeptState::Copy(Memory* memory) {
  copied_ = --copies_due_ > 0;
  memory->Size(&copy_, MemoryUse::kState, copied_ ? bytes() : 0);
  if (copied_) memory->Combine(tensors_, Memory::In(copy_), {{Memory::Tensors()}});
}

bool KeptState::CanBeCopied() {
  if (!changes_outside()) return true;
  LeaveCopies();
  return lent || copied_;
}

}  // namespace prd
