// The keys of every table: name, unit, what is allowed. The one list there is of them; defaults are
// the values of a fresh struct. A new engine's options get their overload in keys.cc.
#ifndef PRD_CONFIG_KEYS_H_
#define PRD_CONFIG_KEYS_H_

#include <string>

#include "config/config.h"
#include "config/fields.h"

namespace prd {

void DescribeDaemon(Fields& fields, DaemonConfig* config);

// `name` is the pattern of a rule or the name of a job; `rule` says which texts it may be.
void DescribeJob(Fields& fields, std::string* name, Fields::TextRule rule, JobSpec* spec);

std::string PatternRule(const std::string& text);
std::string JobNameRule(const std::string& text);

}  // namespace prd

#endif  // PRD_CONFIG_KEYS_H_
