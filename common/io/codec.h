// Between the plain structs of common/base and Cap'n Proto bytes: the only code that sees generated
// types. Encoders cannot fail. Decoders take bytes from anywhere: any alignment, any content. They
// copy, check every enum and length, bound what they allocate by the input's size, and
// never throw: what does not decode is kInvalidArgument with the reason.
// Thread safe: no shared state.
#ifndef PRD_COMMON_IO_CODEC_H_
#define PRD_COMMON_IO_CODEC_H_

#include <string>
#include <string_view>

#include "common/base/admin.h"
#include "common/base/history.h"
#include "common/base/messages.h"
#include "prd/status.h"

namespace prd {

// Replaces *out and uses its memory again, for callers that send or store many.
void EncodeTo(const WorkerEnvelope& envelope, std::string* out);
void EncodeTo(const ControllerEnvelope& envelope, std::string* out);
void EncodeTo(const Record& record, std::string* out);
void EncodeTo(const AdminRequest& request, std::string* out);
void EncodeTo(const AdminReply& reply, std::string* out);

template <typename Message>
std::string Encode(const Message& message) {
  std::string bytes;
  EncodeTo(message, &bytes);
  return bytes;
}

// Texts that go from here to other workers, the log and the history are cut (kMaxText); in a
// Hello, they are refused when they are longer (run_limits.h).
Result<WorkerEnvelope> DecodeWorkerEnvelope(std::string_view bytes);
Result<ControllerEnvelope> DecodeControllerEnvelope(std::string_view bytes);
Result<Record> DecodeRecord(std::string_view bytes);
Result<AdminRequest> DecodeAdminRequest(std::string_view bytes);
Result<AdminReply> DecodeAdminReply(std::string_view bytes);

}  // namespace prd

#endif  // PRD_COMMON_IO_CODEC_H_
