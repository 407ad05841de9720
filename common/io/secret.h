// Secrets in memory, and random bits that nobody guesses.
#ifndef PRD_COMMON_IO_SECRET_H_
#define PRD_COMMON_IO_SECRET_H_

#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/check.h"

namespace prd {

// Makes the text empty, and its memory zero. No optimiser leaves that out.
inline void Cleanse(std::string* text) {
  text->resize(text->capacity());
  ::explicit_bzero(text->data(), text->size());
  text->clear();
}

// Bytes of a key, which are zero once it is gone.
template <std::size_t kBytes>
struct SecretBytes : std::array<std::uint8_t, kBytes> {
  ~SecretBytes() { ::explicit_bzero(this->data(), kBytes); }
};

// From the kernel (getrandom), for tokens, incarnations and names that others must not guess.
inline std::uint64_t RandomBits() {
  std::uint64_t bits = 0;
  ssize_t got = 0;
  do {
    got = ::getrandom(&bits, sizeof bits, 0);
  } while (got < 0 && errno == EINTR);
  PRD_CHECK(got == sizeof bits);  // the kernel has had it since 2014, and gives 8 bytes whole
  return bits;
}

// From now on this process leaves no core, and other processes of the user cannot read its memory;
// root can. For programs of prd, not for a user's own.
inline void HideMemory() { (void)::prctl(PR_SET_DUMPABLE, 0); }

}  // namespace prd

#endif  // PRD_COMMON_IO_SECRET_H_
