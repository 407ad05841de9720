// The keys of [daemon], [[identity]] and [[job]]: name, unit, what is allowed, what for. The one
// list there is of them; defaults are the values of a fresh struct. Engines describe theirs
// (engines/options.h).
#ifndef PRD_CONFIG_KEYS_H_
#define PRD_CONFIG_KEYS_H_

#include <string>
#include <vector>

#include "common/base/fields.h"
#include "config/config.h"
#include "config/fields.h"

namespace prd {

void DescribeDaemon(Fields& fields, DaemonConfig* config);
void DescribeIdentity(ListFields& fields, Identity* identity);

// Whether those who may do something can be told apart from those who may not. About keys of
// [daemon].
Status CheckAccess(const DaemonConfig& config, const std::vector<Identity>& identities);

// `name` is the pattern of a rule or the name of a job; `rule` says which texts it may be.
// `of`: what a config may say besides, and the spec of a run does not (null): whether mesh_security
// is left to whether the daemon has keys, and whether a reload counts for jobs that run.
void DescribeJob(Fields& fields, std::string* name, Field::TextRule rule, JobSpec* spec,
                 JobRule* of);

std::string PatternRule(const std::string& text);
std::string JobNameRule(const std::string& text);

}  // namespace prd

#endif  // PRD_CONFIG_KEYS_H_
