// Whom files and folders are open to. What prd trusts is refused while others may change it, and a
// secret is refused while others may read it.
#ifndef PRD_COMMON_IO_FILE_ACCESS_H_
#define PRD_COMMON_IO_FILE_ACCESS_H_

#include <string>

#include "prd/status.h"

namespace prd {

enum class FileKind {
  kSecret,   // its owner alone may read it or write it
  kTrusted,  // its owner alone may write it
};

// The whole file, up to 16 MiB. Its owner must be this user or root. kFailedPrecondition names what
// is wrong and the command that mends it.
//
// A file in $CREDENTIALS_DIRECTORY is taken as systemd hands it over: its group may read it.
Result<std::string> ReadOwnFile(const std::string& path, FileKind kind);

// A folder that is there: this user or root owns it, and nobody else may enter it. `what` is put
// before its path in messages.
Status CheckPrivateFolder(const std::string& what, const std::string& path);
// The same of whoever owns it: for a folder that is another user's to use.
Status CheckClosedFolder(const std::string& what, const std::string& path);

// $CREDENTIALS_DIRECTORY/NAME if there is such a file, else empty.
std::string CredentialFile(const std::string& name);

}  // namespace prd

#endif  // PRD_COMMON_IO_FILE_ACCESS_H_
