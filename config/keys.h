// The keys of [daemon] and [[job]]: name, unit, what is allowed, what for. The one list there is of
// them; defaults are the values of a fresh struct. Engines describe theirs (engines/options.h).
#ifndef PRD_CONFIG_KEYS_H_
#define PRD_CONFIG_KEYS_H_

#include <string>

#include "common/base/fields.h"
#include "config/config.h"

namespace prd {

void DescribeDaemon(Fields& fields, DaemonConfig* config);

// `name` is the pattern of a rule or the name of a job; `rule` says which texts it may be.
void DescribeJob(Fields& fields, std::string* name, Field::TextRule rule, JobSpec* spec);

std::string PatternRule(const std::string& text);
std::string JobNameRule(const std::string& text);

}  // namespace prd

#endif  // PRD_CONFIG_KEYS_H_
