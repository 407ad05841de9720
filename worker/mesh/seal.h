// Sealed frames: header and payload are encrypted and authenticated, so that whoever sees or
// carries them learns their sizes and their order, and can change, repeat, or add none.
//
// AES-128-GCM (NIST SP 800-38D), by libcrypto. Each connection has a key of its own (keys.h). The
// nonce is a counter of the connection, which goes up with every frame that is sealed, sent or not;
// so no nonce comes twice under a key. On the wire the first part is the counter (8 bytes,
// little-endian), the header, sealed, and the tag of both; the second part is the payload, sealed.
//
// What goes by ipc is not sealed: at both ends the kernel says that the other one is a process of
// the same user, and nobody else is on the path.
//
// Not thread safe.
#ifndef PRD_WORKER_MESH_SEAL_H_
#define PRD_WORKER_MESH_SEAL_H_

#include <openssl/evp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "common/base/messages.h"
#include "worker/mesh/frame.h"
#include "worker/mesh/keys.h"

namespace prd {

// `leaves_host`: the connection is tcp.
inline bool Seals(MeshSecurity security, bool leaves_host) {
  return security == MeshSecurity::kAead && leaves_host;
}

inline constexpr std::size_t kTagBytes = 16;
inline constexpr std::size_t kSealedHeaderBytes = 8 + kFrameHeaderBytes + kTagBytes;

namespace seal_internal {
struct FreeCipher {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};
using Cipher = std::unique_ptr<EVP_CIPHER_CTX, FreeCipher>;
}  // namespace seal_internal

// The sending side of a connection.
class FrameSealer {
 public:
  explicit FrameSealer(const SealKey& key);

  // Writes as many bytes to `sealed` as `payload` has; the two may be the same memory. Returns the
  // first part.
  std::array<std::byte, kSealedHeaderBytes> Seal(
      const std::array<std::byte, kFrameHeaderBytes>& header, std::span<const std::byte> payload,
      std::byte* sealed);

 private:
  seal_internal::Cipher cipher_;
  std::uint64_t counter_ = 0;  // of the last one
};

// The receiving side.
class FrameOpener {
 public:
  explicit FrameOpener(const SealKey& key);

  // Opens the payload in place. nullopt: the frame is not from the connection's other end, was
  // changed, or has come before; the payload is then noise.
  std::optional<std::array<std::byte, kFrameHeaderBytes>> Open(std::span<const std::byte> first,
                                                               std::span<std::byte> payload);

 private:
  seal_internal::Cipher cipher_;
  std::uint64_t newest_ = 0;  // counter
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_SEAL_H_
