// The engines and their options for programs that are not written in C++.
#ifndef PRD_CONFIG_ENGINES_JSON_H_
#define PRD_CONFIG_ENGINES_JSON_H_

#include <string>

namespace prd {

// A JSON object, indented:
//
//   {"engines": [{"name": "NAME", "paper": "Chen et al., 2016", "help": "...",
//                 "plan": {"trains_in_groups": true, "reduces": "gradients", ...},
//                 "keys": [{"key": "backups", "type": "whole", "default": 1, "least": 0,
//                           "most": 100000, "unit": "workers", "names": [], "help": "..."}, ...]},
//                ...]}
//
// A type is "flag", "whole" (least, most, unit, names), "real" (least, below), "name" (names) or
// "name or pairs" (names, least, most). The plan is that of the default options.
std::string EnginesJson();

}  // namespace prd

#endif  // PRD_CONFIG_ENGINES_JSON_H_
