// Random messages and records of every kind, every field drawn, for tests of the codec. Numbers
// are often at the ends of their ranges; doubles are finite; strings hold any byte.
#ifndef PRD_TESTS_IO_RANDOM_MESSAGES_H_
#define PRD_TESTS_IO_RANDOM_MESSAGES_H_

#include "common/base/admin.h"
#include "common/base/history.h"
#include "common/base/messages.h"
#include "common/base/prng.h"

namespace prd {

// `kind` is the index in the body's variant, taken modulo the number of kinds.
WorkerEnvelope RandomWorkerEnvelope(Prng& prng, std::size_t kind);
ControllerEnvelope RandomControllerEnvelope(Prng& prng, std::size_t kind);
Record RandomRecord(Prng& prng, std::size_t kind);
AdminRequest RandomAdminRequest(Prng& prng, std::size_t kind);
AdminReply RandomAdminReply(Prng& prng, std::size_t kind);

}  // namespace prd

#endif  // PRD_TESTS_IO_RANDOM_MESSAGES_H_
