#include "engines/esync/options.h"

namespace prd {

Status EsyncOptions::Check(int) const {
  if (global_lr <= 0) {
    return Wrong("global_lr", TomlReal(global_lr), "more than 0 and less than 10");
  }
  if (stall_factor == 1) return Wrong("stall_factor", "1", "0 (off) or 2 to 1000");
  return Status::Ok();
}

}  // namespace prd
