#include "engines/ad_psgd/options.h"

namespace prd {

Status AdPsgdOptions::Check(int workers) const {
  if (graph.kind > Graph::Kind::kEdges) {
    return Wrong("graph", TomlText(ToText(graph)), "\"ring\", \"complete\" or a list");
  }
  return Validate(graph, workers);
}

}  // namespace prd
