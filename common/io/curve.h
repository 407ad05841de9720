// Keys of ZeroMQ's CURVE encryption, as Z85 texts of 40 characters, and the files they are kept in.
//
// A key file has one key per line, the line's first word; the rest of the line is a comment. Empty
// lines and lines that begin with "# " do not count (the space matters: keys may begin with '#').
// A secret key file holds one secret key, from which the public one is computed; its owner alone
// may read it. A file of authorized keys holds public keys; its owner alone may write it.
// file_access.h has the rules.
#ifndef PRD_COMMON_IO_CURVE_H_
#define PRD_COMMON_IO_CURVE_H_

#include <string>
#include <vector>

#include "common/io/secret.h"
#include "prd/status.h"

namespace prd {

struct CurveKeys {
  std::string public_key;
  std::string secret_key;
  ~CurveKeys() { Cleanse(&secret_key); }
};

// 40 characters of Z85.
bool IsCurveKey(const std::string& text);

// Takes the blanks off both ends of what was given under this name. kInvalidArgument, which names
// it, unless a key is left.
Status TakeKey(const std::string& name, std::string* key);

// A fresh pair, without '%', which a unit of systemd would expand. kFailedPrecondition when libzmq
// was built without CURVE.
Result<CurveKeys> NewCurveKeys();

// The pair that a secret key belongs to.
Result<CurveKeys> CurveKeysOf(const std::string& secret_key);

Result<CurveKeys> ReadSecretKeyFile(const std::string& path);
Result<std::vector<std::string>> ReadPublicKeyFile(const std::string& path);

}  // namespace prd

#endif  // PRD_COMMON_IO_CURVE_H_
