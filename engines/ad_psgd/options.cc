#include "engines/ad_psgd/options.h"

#include <string>

namespace prd {

namespace {

Status CheckRange(const char* key, std::int64_t found, std::int64_t least, std::int64_t most) {
  if (found >= least && found <= most) return Status::Ok();
  return Status(Code::kInvalidArgument, std::string(key) + ": found " + std::to_string(found) +
                                            ", allowed is " + std::to_string(least) + " to " +
                                            std::to_string(most));
}

}  // namespace

Status Validate(const AdPsgdOptions& options, int workers) {
  if (options.graph.kind > Graph::Kind::kEdges) {
    return Status(Code::kInvalidArgument, "graph: found \"" + ToText(options.graph) +
                                              "\", allowed is \"ring\", \"complete\" or a list");
  }
  if (Status status = Validate(options.graph, workers); !status.ok()) return status;
  if (Status status = CheckRange("section_length", options.section_length, 1, 100'000);
      !status.ok()) {
    return status;
  }
  if (Status status = CheckRange("overlap_steps", options.overlap_steps, 1, 1000); !status.ok()) {
    return status;
  }
  if (options.seed < 0) {
    return Status(Code::kInvalidArgument,
                  "seed: found " + std::to_string(options.seed) + ", allowed is 0 or more");
  }
  return Status::Ok();
}

}  // namespace prd
