// Random options of an engine, for simulations and tests: each key from where its description says
// (WholeRange::Draw, RealRange::Draw).
#ifndef PRD_ENGINES_DRAW_H_
#define PRD_ENGINES_DRAW_H_

#include "common/base/prng.h"
#include "engines/any_engine.h"

namespace prd {

// Options of the same engine as `of`, good for a job of so many workers, `start` of which make its
// common start (0: all). REQUIRES: workers > 0.
EngineOptions Draw(const EngineOptions& of, Prng* prng, int workers, int start = 0);

// Options of this type.
template <typename Options>
Options Draw(Prng* prng, int workers) {
  return Draw(Options{}, prng, workers).template Get<Options>();
}

}  // namespace prd

#endif  // PRD_ENGINES_DRAW_H_
