#include "worker/mesh/seal.h"

#include <cstring>
#include <limits>

#include "common/base/archive.h"  // checks that the machine is little-endian
#include "common/base/check.h"

namespace prd {
namespace {

using Nonce = std::array<std::uint8_t, 12>;

Nonce NonceOf(std::uint64_t counter) {
  Nonce nonce{};
  std::memcpy(nonce.data(), &counter, sizeof counter);
  return nonce;
}

unsigned char* Out(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* In(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

int Length(std::span<const std::byte> bytes) {
  PRD_CHECK(bytes.size() <= static_cast<std::size_t>(std::numeric_limits<int>::max()));
  return static_cast<int>(bytes.size());
}

}  // namespace

FrameSealer::FrameSealer(const SealKey& key) : cipher_(EVP_CIPHER_CTX_new()) {
  PRD_CHECK(cipher_ != nullptr && EVP_EncryptInit_ex(cipher_.get(), EVP_aes_128_gcm(), nullptr,
                                                     key.data(), nullptr) == 1);
}

std::array<std::byte, kSealedHeaderBytes> FrameSealer::Seal(
    const std::array<std::byte, kFrameHeaderBytes>& header, std::span<const std::byte> payload,
    std::byte* sealed) {
  std::array<std::byte, kSealedHeaderBytes> first;
  PRD_CHECK(++counter_ != 0);
  const Nonce nonce = NonceOf(counter_);
  std::memcpy(first.data(), &counter_, sizeof counter_);
  std::byte* header_at = first.data() + sizeof counter_;
  EVP_CIPHER_CTX* cipher = cipher_.get();
  int done = 0;
  unsigned char none[16];
  PRD_CHECK(EVP_EncryptInit_ex(cipher, nullptr, nullptr, nullptr, nonce.data()) == 1);
  PRD_CHECK(EVP_EncryptUpdate(cipher, Out(header_at), &done, In(header.data()), Length(header)) ==
            1);
  if (!payload.empty()) {
    PRD_CHECK(EVP_EncryptUpdate(cipher, Out(sealed), &done, In(payload.data()), Length(payload)) ==
              1);
  }
  PRD_CHECK(EVP_EncryptFinal_ex(cipher, none, &done) == 1);
  PRD_CHECK(EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_AEAD_GET_TAG, kTagBytes,
                                header_at + kFrameHeaderBytes) == 1);
  return first;
}

FrameOpener::FrameOpener(const SealKey& key) : cipher_(EVP_CIPHER_CTX_new()) {
  PRD_CHECK(cipher_ != nullptr && EVP_DecryptInit_ex(cipher_.get(), EVP_aes_128_gcm(), nullptr,
                                                     key.data(), nullptr) == 1);
}

std::optional<std::array<std::byte, kFrameHeaderBytes>> FrameOpener::Open(
    std::span<const std::byte> first, std::span<std::byte> payload) {
  if (first.size() != kSealedHeaderBytes) return std::nullopt;
  std::uint64_t counter = 0;
  std::memcpy(&counter, first.data(), sizeof counter);
  if (counter <= newest_) return std::nullopt;
  const Nonce nonce = NonceOf(counter);
  const std::byte* header_at = first.data() + sizeof counter;
  std::array<std::byte, kTagBytes> tag;
  std::memcpy(tag.data(), header_at + kFrameHeaderBytes, tag.size());
  std::array<std::byte, kFrameHeaderBytes> header;
  EVP_CIPHER_CTX* cipher = cipher_.get();
  int done = 0;
  unsigned char none[16];
  bool good =
      EVP_DecryptInit_ex(cipher, nullptr, nullptr, nullptr, nonce.data()) == 1 &&
      EVP_DecryptUpdate(cipher, Out(header.data()), &done, In(header_at), Length(header)) == 1;
  if (good && !payload.empty()) {
    good = EVP_DecryptUpdate(cipher, Out(payload.data()), &done, In(payload.data()),
                             Length(payload)) == 1;
  }
  good = good && EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_AEAD_SET_TAG, kTagBytes, tag.data()) == 1 &&
         EVP_DecryptFinal_ex(cipher, none, &done) == 1;
  if (!good) return std::nullopt;
  newest_ = counter;
  return header;
}

}  // namespace prd
