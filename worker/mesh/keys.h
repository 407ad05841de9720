// The keys that protect what workers send each other.
//
// Every session draws an X25519 pair. The public half goes into Hello, and the controller gives it
// to those whom it announces the worker to. Two workers derive a key for each direction between
// them from their pairs (RFC 5869, HKDF-SHA256), bound to the run and to both incarnations. From
// that key come the proof that opens a connection (door.h) and the key of the frames on it
// (seal.h), both bound to the connection's number and to what it is for. So nothing that was proven
// or sealed for one connection is of use on another.
#ifndef PRD_WORKER_MESH_KEYS_H_
#define PRD_WORKER_MESH_KEYS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/io/secret.h"
#include "prd/status.h"

namespace prd {

using SecretKey = SecretBytes<32>;

struct MeshKeyPair {
  MeshKey public_key;
  SecretKey secret{};
};

// kInternal: the system gives no random numbers.
Result<MeshKeyPair> DrawMeshKeys();
// The pair with this secret, which may be any. kInternal: libcrypto has no memory.
Result<MeshKeyPair> MeshKeysOf(const SecretKey& secret);

// From one worker to another, in a run.
struct Direction {
  RunId run = kNoRun;
  Incarnation from = 0;
  Incarnation to = 0;
};

// The two directions between this worker and a peer.
struct PairKeys {
  SecretKey out{};
  SecretKey in{};
};
// What X25519 makes of a pair and a peer's key. nullopt: `peer` is no key that anybody can have
// drawn.
std::optional<SecretKey> SharedSecret(const MeshKeyPair& own, const MeshKey& peer);
using SecretOf = std::optional<SecretKey> (*)(const MeshKeyPair& own, const MeshKey& peer);

// nullopt: there is no shared secret.
std::optional<PairKeys> AgreeOnKeys(const MeshKeyPair& own, const MeshKey& peer,
                                    const Direction& out, SecretOf secret_of = SharedSecret);

// What a connection carries.
enum class Purpose : char { kData = 'd', kSignals = 's' };

// What a connection names itself: text of a ZMTP user name. A sender numbers its connections; no
// number comes twice under one incarnation.
struct Pass {
  Incarnation from = 0;
  std::uint64_t number = 0;
  Purpose purpose = Purpose::kData;
  friend bool operator==(const Pass&, const Pass&) = default;
};
std::string EncodePass(const Pass& pass);
std::optional<Pass> DecodePass(std::string_view text);

// Shows that whoever opens this connection has the key of the direction: text of a ZMTP password.
std::string ProofOf(const SecretKey& direction, const Pass& pass);
// In a time that does not depend on where they differ.
bool SameProof(std::string_view one, std::string_view other);

// The key of the frames on this connection: AES-128.
using SealKey = SecretBytes<16>;
SealKey SealKeyOf(const SecretKey& direction, const Pass& pass);

}  // namespace prd

#endif  // PRD_WORKER_MESH_KEYS_H_
