/* What c_interface_test.cc runs, written in C over prd/prd.h alone. Each returns NULL, or what went
 * wrong. */
#ifndef PRD_TESTS_WORKER_C_TRAINING_H_
#define PRD_TESTS_WORKER_C_TRAINING_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { kValues = 1000 };

struct model {
  float values[kValues];
  float gradients[kValues];
  float state[3];
  int applied;
};

/* Trains for some steps as a worker of "job", with gradients of 1, whatever the engine; `later`:
 * gives the gradients once the engine is known. */
const char* c_train(const char* endpoint, int rank, int steps, int later, struct model* model);

/* For one worker of a job for one. */
const char* c_structs_of_other_versions(const char* endpoint);
const char* c_wrong_arguments(const char* endpoint);
const char* c_apply_fails(const char* endpoint);
const char* c_resumes(const char* endpoint);
const char* c_forked(const char* endpoint);
const char* c_closed_before_applied(const char* endpoint);
/* elsewhere(run, context): calls run(context) on another thread, and waits for that. */
const char* c_applied_elsewhere(const char* endpoint,
                                void (*elsewhere)(void (*run)(void*), void* context));
/* For one worker of a job for two: it waits, and gives up or is closed. */
const char* c_leaves_while_it_waits(const char* endpoint);
const char* c_closes_while_it_waits(const char* endpoint);
const char* c_cancels(const char* endpoint);
const char* c_leaves_soon(const char* endpoint);
/* The second worker may join once waits(context) is called. */
const char* c_goes_on_later(const char* endpoint, void (*waits)(void*), void* context);
/* For two workers of a job that averages parameters, and does not weigh by samples. */
const char* c_asks_and_averages(const char* endpoint, int rank);
/* For two workers. The second one is refused with another tag, and let in with the same. */
const char* c_tags_differ(const char* endpoint, int rank);

#ifdef __cplusplus
}
#endif

#endif /* PRD_TESTS_WORKER_C_TRAINING_H_ */
