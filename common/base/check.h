// PRD_CHECK: states what must hold unless prd itself has a bug. Never for a peer's bad input.
#ifndef PRD_COMMON_BASE_CHECK_H_
#define PRD_COMMON_BASE_CHECK_H_

#include <cstdio>
#include <cstdlib>

#define PRD_CHECK(condition)                                                                  \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      std::fprintf(stderr, "%s:%d: PRD_CHECK(%s) failed: a bug in prd\n", __FILE__, __LINE__, \
                   #condition);                                                               \
      std::abort();                                                                           \
    }                                                                                         \
  } while (false)

#endif  // PRD_COMMON_BASE_CHECK_H_
