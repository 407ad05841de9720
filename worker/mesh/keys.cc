#include "worker/mesh/keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>

#include "common/base/check.h"

namespace prd {
namespace {

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Context = std::unique_ptr<EVP_PKEY_CTX, decltype(&EVP_PKEY_CTX_free)>;

constexpr std::string_view kSalt = "prd mesh 8";
constexpr std::string_view kPair = "pair";
constexpr std::string_view kConnect = "connect";
constexpr std::string_view kFrames = "frames";

SecretKey Hmac(std::string_view key, std::string_view text) {
  SecretKey out;
  unsigned length = 0;
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  PRD_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes, text.size(),
                 out.data(), &length) != nullptr &&
            length == out.size());
  return out;
}

template <std::size_t n>
std::string_view View(const std::array<std::uint8_t, n>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void Append(std::string* text, std::uint64_t number) {
  for (int shift = 0; shift < 64; shift += 8) text->push_back(static_cast<char>(number >> shift));
}

Key OwnKey(const SecretKey& secret) {
  return {EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, nullptr, secret.data(), secret.size()),
          EVP_PKEY_free};
}

// HKDF's second step; one block is enough.
SecretKey Expand(const SecretKey& extracted, const Direction& way, const MeshKey& from,
                 const MeshKey& to) {
  std::string info(kPair);
  Append(&info, way.run);
  Append(&info, way.from);
  Append(&info, way.to);
  info += View(from.bytes);
  info += View(to.bytes);
  info.push_back(1);
  return Hmac(View(extracted), info);
}

SecretKey OfConnection(const SecretKey& direction, std::string_view use, const Pass& pass) {
  std::string text(use);
  Append(&text, pass.number);
  text.push_back(static_cast<char>(pass.purpose));
  return Hmac(View(direction), text);
}

}  // namespace

Result<MeshKeyPair> DrawMeshKeys() {
  SecretKey secret;
  if (RAND_priv_bytes(secret.data(), static_cast<int>(secret.size())) == 1) {
    return MeshKeysOf(secret);
  }
  return Status(Code::kInternal, "libcrypto cannot make a key: the system gives no random numbers");
}

Result<MeshKeyPair> MeshKeysOf(const SecretKey& secret) {
  MeshKeyPair pair{.public_key = {}, .secret = secret};
  std::size_t length = pair.public_key.bytes.size();
  const Key key = OwnKey(secret);
  if (key != nullptr &&
      EVP_PKEY_get_raw_public_key(key.get(), pair.public_key.bytes.data(), &length) == 1) {
    return pair;
  }
  return Status(Code::kInternal, "libcrypto cannot make a key");
}

// A point of low order has no secret.
std::optional<SecretKey> SharedSecret(const MeshKeyPair& own, const MeshKey& peer) {
  const Key mine = OwnKey(own.secret);
  const Key theirs(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, nullptr, peer.bytes.data(), peer.bytes.size()),
      EVP_PKEY_free);
  if (mine == nullptr || theirs == nullptr) return std::nullopt;
  const Context context(EVP_PKEY_CTX_new(mine.get(), nullptr), EVP_PKEY_CTX_free);
  SecretKey shared;
  std::size_t length = shared.size();
  const bool ok = context != nullptr && EVP_PKEY_derive_init(context.get()) == 1 &&
                  EVP_PKEY_derive_set_peer(context.get(), theirs.get()) == 1 &&
                  EVP_PKEY_derive(context.get(), shared.data(), &length) == 1 &&
                  length == shared.size();
  if (!ok) return std::nullopt;
  return shared;
}

std::optional<PairKeys> AgreeOnKeys(const MeshKeyPair& own, const MeshKey& peer,
                                    const Direction& out, SecretOf secret_of) {
  const std::optional<SecretKey> shared = secret_of(own, peer);
  if (!shared) return std::nullopt;
  const SecretKey extracted = Hmac(kSalt, View(*shared));  // HKDF's first step
  const Direction in{.run = out.run, .from = out.to, .to = out.from};
  return PairKeys{.out = Expand(extracted, out, own.public_key, peer),
                  .in = Expand(extracted, in, peer, own.public_key)};
}

std::string EncodePass(const Pass& pass) {
  char text[64];
  std::snprintf(text, sizeof text, "%016llx-%016llx-%c", static_cast<unsigned long long>(pass.from),
                static_cast<unsigned long long>(pass.number), static_cast<char>(pass.purpose));
  return text;
}

std::optional<Pass> DecodePass(std::string_view text) {
  constexpr std::size_t kDigits = 16;
  if (text.size() != 2 * kDigits + 3) return std::nullopt;
  Pass pass;
  const auto read = [&](std::size_t at, std::uint64_t* to) {
    const char* begin = text.data() + at;
    const auto [end, error] = std::from_chars(begin, begin + kDigits, *to, 16);
    return error == std::errc() && end == begin + kDigits;
  };
  pass.purpose = static_cast<Purpose>(text.back());
  const bool good = read(0, &pass.from) && read(kDigits + 1, &pass.number) &&
                    (pass.purpose == Purpose::kData || pass.purpose == Purpose::kSignals);
  // One text for each pass.
  if (!good || pass.from == 0 || EncodePass(pass) != text) return std::nullopt;
  return pass;
}

std::string ProofOf(const SecretKey& direction, const Pass& pass) {
  const SecretKey proof = OfConnection(direction, kConnect, pass);
  std::string text;
  for (const std::uint8_t byte : proof) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

bool SameProof(std::string_view one, std::string_view other) {
  return one.size() == other.size() && CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

SealKey SealKeyOf(const SecretKey& direction, const Pass& pass) {
  const SecretKey whole = OfConnection(direction, kFrames, pass);
  SealKey key;
  std::copy_n(whole.begin(), key.size(), key.begin());
  return key;
}

}  // namespace prd
