#include "worker/mesh/replica_store.h"

#include "common/base/check.h"
#include "worker/mesh/kernels.h"

namespace prd {

void ReplicaStore::Deposit() {
  if (outbox.size() != gradients.bytes()) {
    outbox.resize(gradients.bytes());
    owes = false;
  }
  if (owes) {
    const Weight one = {1, 1};
    gradients.ForEach(0, outbox.size(),
                      [&](DType dtype, const std::byte* data, std::size_t length, std::size_t at) {
                        AddScaled(dtype, outbox.data() + at, data, length, one);
                      });
  } else {
    gradients.Read(0, outbox.size(), outbox.data());
  }
  owes = true;
}

bool ReplicaStore::TakeInbox() {
  if (inbox_rounds == 0) return false;
  PRD_CHECK(inbox.size() == gradients.bytes());
  gradients.Write(0, inbox.size(), inbox.data());
  inbox_rounds = 0;
  return true;
}

}  // namespace prd
