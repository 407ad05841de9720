// Random messages about communicators, of every kind, with every field drawn.
#ifndef PRD_TESTS_WORKER_DEVICE_RANDOM_COMM_MESSAGE_H_
#define PRD_TESTS_WORKER_DEVICE_RANDOM_COMM_MESSAGE_H_

#include <cstddef>
#include <string>

#include "common/base/prng.h"
#include "worker/device/communicators.h"

namespace prd {

inline constexpr std::size_t kCommKinds = static_cast<std::size_t>(CommMessage::Kind::kGone) + 1;

// `kind` is taken modulo the number of kinds.
inline CommMessage RandomCommMessage(Prng& prng, std::size_t kind, std::size_t max_members) {
  CommMessage message{.kind = static_cast<CommMessage::Kind>(kind % kCommKinds),
                      .comm = {.leader = prng.Next(), .number = prng.Next()},
                      .group = prng.Next(),
                      .way = static_cast<Way>(prng.Below(3)),
                      .cover = prng.Below(2) == 1,
                      .refusal = static_cast<Refusal>(prng.Below(4)),
                      .members = {},
                      .id = {},
                      .reason = std::string(prng.Below(40), 'x')};
  message.members.resize(prng.Below(2) == 0 ? 0 : prng.Below(max_members + 1));
  for (Incarnation& member : message.members) member = prng.Next();
  if (message.kind == CommMessage::Kind::kCreate) {
    for (std::byte& byte : message.id) byte = static_cast<std::byte>(prng.Next());
  }
  return message;
}

}  // namespace prd

#endif  // PRD_TESTS_WORKER_DEVICE_RANDOM_COMM_MESSAGE_H_
