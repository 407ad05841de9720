// CURVE key pairs as files.
#ifndef PRD_TOOLS_PRDCTL_KEYGEN_H_
#define PRD_TOOLS_PRDCTL_KEYGEN_H_

#include <string>

#include "prd/status.h"

namespace prd::ctl {

struct KeyFiles {
  std::string secret_file;  // NAME.key: one line, the secret key in Z85; only its owner may read it
  std::string public_file;  // NAME.pub: one line, the public key in Z85
  std::string public_key;
};

// Makes a new pair. kAlreadyExists when one of the files is there: keys are never overwritten.
Result<KeyFiles> GenerateKeyFiles(const std::string& name);

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_KEYGEN_H_
