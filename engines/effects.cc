#include "engines/effects.h"

namespace prd {

PRD_DEFINE_VARIANT(Effect)

}  // namespace prd
