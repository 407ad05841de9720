#include "tests/worker/c_training.h"

#include <prd/prd.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static _Thread_local char failure[500];

static const char* failed(int line, const char* what, const prd_session* session) {
  snprintf(failure, sizeof failure, "c_training.c:%d: %s; prd says \"%s\"", line, what,
           prd_message(session));
  return failure;
}
#define CHECK(expression) \
  if (!(expression)) return failed(__LINE__, #expression, session)

static void apply(struct model* model) {
  for (int i = 0; i < kValues; ++i) model->values[i] += model->gradients[i];
  model->state[0] += 1.f;
  ++model->applied;
}

/* Brings the call to its end that has begun with `begun`. */
static int32_t end_call(prd_session* session, int32_t begun, struct model* model) {
  int32_t next = begun;
  if (next < 0) return next;
  while ((next = prd_next(session, -1)) == PRD_APPLY) {
    apply(model);
    if ((next = prd_applied(session, NULL)) < 0) return next;
  }
  return next;
}

static int32_t open_session(const char* endpoint, int rank, prd_session** session) {
  prd_options options = {.size = sizeof options};
  const int32_t found = prd_options_from_environment(&options);
  if (found < 0) return found;
  options.controller = endpoint;
  options.job = "job";
  options.rank = rank;
  options.timeout_ms = 30000;
  options.queue_log = 1;
  return prd_open(&options, session);
}

static int32_t attach(prd_session* session, struct model* model, int with_gradients,
                      const char* tag) {
  const prd_tensor parameters[] = {{.data = model->values, .count = kValues - 3},
                                   {.data = model->values + kValues - 3, .count = 3}};
  const prd_tensor gradients[] = {{.data = model->gradients, .count = kValues - 3},
                                  {.data = model->gradients + kValues - 3, .count = 3}};
  const prd_tensor state[] = {{.data = model->state, .count = 1},
                              {.data = model->state + 1, .count = 2, .average = 1}};
  const prd_replica replica = {.size = sizeof replica,
                               .gradients_later = !with_gradients,
                               .parameters = parameters,
                               .parameter_count = 2,
                               .gradients = gradients,
                               .gradient_count = with_gradients ? 2 : 0,
                               .state = state,
                               .state_count = 2,
                               .model_tag = tag};
  return prd_attach(session, &replica);
}

static int32_t set_gradients(prd_session* session, struct model* model) {
  const prd_tensor gradients[] = {{.data = model->gradients, .count = kValues - 3},
                                  {.data = model->gradients + kValues - 3, .count = 3}};
  return prd_set_gradients(session, gradients, 2);
}

static int has(const char* text, const char* part) { return strstr(text, part) != NULL; }

const char* c_train(const char* endpoint, int rank, int steps, int later, struct model* model) {
  prd_session* session = NULL;
  CHECK(open_session(endpoint, rank, &session) == 0);
  CHECK(prd_rank(session) == -1 && prd_workers(session) == 0 && !prd_needs_gradients(session));
  CHECK(prd_engine(session)[0] == '\0');
  CHECK(end_call(session, attach(session, model, !later, NULL), model) == 0);
  CHECK(prd_rank(session) == rank && prd_workers(session) > 0);
  CHECK(prd_engine(session)[0] != '\0');
  if (later && prd_needs_gradients(session)) {
    CHECK(end_call(session, prd_step(session, NULL), model) == PRD_FAILED_PRECONDITION);
    CHECK(has(prd_message(session), "reduces gradients"));
    CHECK(end_call(session, prd_finish(session, 1), model) == PRD_FAILED_PRECONDITION);
    CHECK(end_call(session, set_gradients(session, model), model) == 0);
  }
  prd_step_result result = {.size = sizeof result};
  for (int step = 1; step <= steps; ++step) {
    for (int i = 0; i < kValues; ++i) model->gradients[i] = 1.f;
    const prd_step_input input = {.size = sizeof input, .samples = 8};
    CHECK(end_call(session, prd_step(session, &input), model) == 0);
    CHECK(prd_get_step_result(session, &result) == 0);
    CHECK(result.steps == step && !result.done && result.reason != NULL);
    for (uint32_t i = 0; i < result.member_count; ++i) {
      CHECK(result.members[i] >= 0 && result.weights[i] >= 0);
    }
  }
  prd_progress progress = {.size = sizeof progress};
  CHECK(prd_get_progress(session, &progress) == 0);
  CHECK(progress.own_steps == steps && progress.own_samples == 8 * steps);
  CHECK(prd_interrupted(session) == 0 || prd_interrupted(session) == 1);
  CHECK(prd_clock(session) > 0 && prd_clock(NULL) == 0);
  CHECK(end_call(session, prd_finish(session, 1), model) == 0);
  CHECK(end_call(session, prd_step(session, NULL), model) == PRD_FAILED_PRECONDITION);
  CHECK(has(prd_message(session), "has left the job"));
  prd_close(session);
  return NULL;
}

const char* c_structs_of_other_versions(const char* endpoint) {
  prd_session* session = NULL;
  /* Shorter: what is missing is 0. */
  struct {
    _Alignas(prd_options) uint32_t size;
    int32_t rank;
  } oldest = {.size = sizeof oldest, .rank = 5};
  CHECK(prd_options_from_environment((prd_options*)(void*)&oldest) == 0);
  CHECK(oldest.size == sizeof oldest && oldest.rank == -1);
  CHECK(prd_open((const prd_options*)(const void*)&oldest, &session) == PRD_INVALID_ARGUMENT);
  CHECK(session == NULL && has(prd_message(NULL), "job: found a name of 0 bytes"));
  /* Longer: only what is 0 may be unknown. */
  struct {
    prd_options known;
    uint64_t unknown;
  } newer = {.known = {.size = sizeof newer}, .unknown = 1};
  CHECK(prd_options_from_environment(&newer.known) == 0);
  CHECK(newer.unknown == 1);
  newer.known.controller = endpoint;
  newer.known.job = "job";
  CHECK(prd_open(&newer.known, &session) == PRD_INVALID_ARGUMENT);
  CHECK(has(prd_message(NULL), "does not know"));
  newer.unknown = 0;
  CHECK(prd_open(&newer.known, &session) == 0);
  prd_progress progress = {.size = 3};
  CHECK(prd_get_progress(session, &progress) == PRD_INVALID_ARGUMENT);
  CHECK(has(prd_message(NULL), "prd_progress.size: found 3"));
  prd_close(session);
  CHECK(prd_abi() >> 16 == PRD_ABI_MAJOR);
  CHECK(strcmp(prd_code_name(PRD_UNAVAILABLE), "unavailable") == 0);
  CHECK(strcmp(prd_code_name(PRD_DONE), "ok") == 0);
  CHECK(strcmp(prd_code_name(-99), "unknown") == 0);
  return NULL;
}

const char* c_wrong_arguments(const char* endpoint) {
  prd_session* session = NULL;
  struct model model = {.applied = 0};
  CHECK(prd_open(NULL, &session) == PRD_INVALID_ARGUMENT);
  CHECK(prd_step(NULL, NULL) == PRD_INVALID_ARGUMENT);
  CHECK(has(prd_message(NULL), "session: found NULL"));
  prd_close(NULL);
  CHECK(open_session(endpoint, 0, &session) == 0);
  CHECK(prd_next(session, 0) == PRD_DONE);
  CHECK(prd_applied(session, NULL) == PRD_FAILED_PRECONDITION);
  CHECK(has(prd_message(session), "has not asked"));
  CHECK(prd_attach(session, NULL) == PRD_INVALID_ARGUMENT);
  prd_tensor tensor = {.data = model.values, .count = kValues, .dtype = 9};
  prd_replica replica = {.size = sizeof replica, .parameters = &tensor, .parameter_count = 1};
  CHECK(prd_attach(session, &replica) == PRD_INVALID_ARGUMENT);
  CHECK(has(prd_message(session), "parameters[0].dtype: found 9"));
  tensor.dtype = PRD_F32;
  tensor.data = NULL;
  CHECK(end_call(session, prd_attach(session, &replica), &model) == PRD_INVALID_ARGUMENT);
  CHECK(has(prd_message(session), "parameters[0]: data is null"));
  replica.parameters = NULL;
  CHECK(prd_attach(session, &replica) == PRD_INVALID_ARGUMENT);
  CHECK(end_call(session, prd_step(session, NULL), &model) == PRD_FAILED_PRECONDITION);
  CHECK(has(prd_message(session), "Attach failed: invalid argument: parameters[0]"));
  CHECK(end_call(session, attach(session, &model, 1, NULL), &model) == 0);
  const prd_step_input input = {.size = sizeof input, .samples = -1};
  CHECK(end_call(session, prd_step(session, &input), &model) == PRD_INVALID_ARGUMENT);
  const prd_tensor short_one = {.data = model.gradients, .count = 5};
  CHECK(end_call(session, prd_set_gradients(session, &short_one, 1), &model) ==
        PRD_INVALID_ARGUMENT);
  CHECK(has(prd_message(session), "needed are as many as the parameters"));
  CHECK(end_call(session, prd_step(session, NULL), &model) == 0 && model.applied == 1);
  prd_close(session);
  return NULL;
}

const char* c_apply_fails(const char* endpoint) {
  prd_session* session = NULL;
  struct model model = {.applied = 0};
  CHECK(open_session(endpoint, 0, &session) == 0);
  CHECK(end_call(session, attach(session, &model, 1, NULL), &model) == 0);
  CHECK(prd_step(session, NULL) == 0);
  CHECK(prd_next(session, -1) == PRD_APPLY && prd_next(session, -1) == PRD_APPLY);
  CHECK(prd_step(session, NULL) == PRD_FAILED_PRECONDITION);
  CHECK(has(prd_message(session), "prd_step is in progress"));
  CHECK(prd_applied(session, "raised Exception: out of luck") == 0);
  CHECK(prd_next(session, -1) == PRD_ABORTED);
  CHECK(has(prd_message(session), "apply raised Exception: out of luck"));
  CHECK(!prd_in_call(session) && prd_next(session, -1) == PRD_DONE);
  CHECK(end_call(session, prd_step(session, NULL), &model) == PRD_FAILED_PRECONDITION);
  prd_close(session);
  return NULL;
}

const char* c_resumes(const char* endpoint) {
  prd_session* session = NULL;
  struct model model = {.applied = 0};
  CHECK(open_session(endpoint, 0, &session) == 0);
  const prd_tensor parameters = {.data = model.values, .count = kValues};
  const prd_tensor gradients = {.data = model.gradients, .count = kValues};
  const prd_replica replica = {.size = sizeof replica,
                               .device = "cpu",
                               .parameters = &parameters,
                               .parameter_count = 1,
                               .gradients = &gradients,
                               .gradient_count = 1,
                               .trained_steps = 100,
                               .trained_samples = 1000,
                               .job_trained_steps = 400,
                               .job_trained_samples = 4000};
  CHECK(end_call(session, prd_attach(session, &replica), &model) == 0);
  prd_progress progress = {.size = sizeof progress};
  CHECK(prd_get_progress(session, &progress) == 0);
  CHECK(progress.own_steps == 100 && progress.steps >= 400);
  const prd_step_input discarded = {.size = sizeof discarded, .discard = 1};
  CHECK(end_call(session, prd_step(session, &discarded), &model) == 0);
  CHECK(end_call(session, prd_step(session, NULL), &model) == 0);
  prd_step_result result = {.size = sizeof result};
  CHECK(prd_get_step_result(session, &result) == 0 && result.steps == 101);
  CHECK(model.applied == 1);
  CHECK(end_call(session, prd_pause(session), &model) == 0);
  CHECK(end_call(session, prd_step(session, NULL), &model) == PRD_FAILED_PRECONDITION);
  CHECK(has(prd_message(session), "Resume comes first"));
  CHECK(end_call(session, prd_resume(session), &model) == 0);
  const double values[2] = {2, 3};
  double mean[2] = {0};
  CHECK(prd_mean(session, NULL, 2) == PRD_INVALID_ARGUMENT);
  CHECK(prd_mean(session, values, 65) == PRD_INVALID_ARGUMENT);
  CHECK(end_call(session, prd_mean(session, values, 2), &model) == 0);
  CHECK(prd_get_mean(session, mean, 1) == PRD_INVALID_ARGUMENT);
  CHECK(prd_get_mean(session, mean, 2) == 0 && mean[0] == 2 && mean[1] == 3);
  CHECK(prd_stop(session, "enough") == 0 && prd_stop(session, NULL) == 0);
  for (int step = 0; step < 1000 && !result.done; ++step) {
    CHECK(end_call(session, prd_step(session, NULL), &model) == 0);
    CHECK(prd_get_step_result(session, &result) == 0);
  }
  CHECK(result.done);
  CHECK(end_call(session, prd_finish(session, 0), &model) == 0);
  prd_close(session);
  return NULL;
}

const char* c_forked(const char* endpoint) {
  prd_session* session = NULL;
  struct model model = {.applied = 0};
  CHECK(open_session(endpoint, 0, &session) == 0);
  CHECK(end_call(session, attach(session, &model, 1, NULL), &model) == 0);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    prd_progress progress = {.size = sizeof progress};
    const int refused = prd_step(session, NULL) == PRD_FAILED_PRECONDITION &&
                        has(prd_message(session), "was forked from pid") &&
                        prd_next(session, 0) == PRD_FAILED_PRECONDITION &&
                        prd_applied(session, NULL) == PRD_FAILED_PRECONDITION &&
                        prd_leave(session, "x") == PRD_FAILED_PRECONDITION &&
                        prd_get_progress(session, &progress) == PRD_FAILED_PRECONDITION &&
                        prd_in_call(session) == 0 && prd_rank(session) == -1 &&
                        prd_log_line(session) == NULL;
    prd_cancel(session);
    prd_close(session); /* neither waits nor says anything */
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(end_call(session, prd_step(session, NULL), &model) == 0);
  CHECK(end_call(session, prd_finish(session, 1), &model) == 0);
  prd_close(session);
  return NULL;
}

const char* c_closed_before_applied(const char* endpoint) {
  prd_session* session = NULL;
  struct model model = {.applied = 0};
  CHECK(open_session(endpoint, 0, &session) == 0);
  CHECK(end_call(session, attach(session, &model, 1, NULL), &model) == 0);
  CHECK(prd_step(session, NULL) == 0 && prd_next(session, -1) == PRD_APPLY);
  prd_close(session);
  return NULL;
}

struct attempt {
  prd_session* session;
  int32_t next, applied;
};

static void try_to_go_on(void* context) {
  struct attempt* attempt = context;
  attempt->next = prd_next(attempt->session, -1);
  attempt->applied = prd_applied(attempt->session, NULL);
}

const char* c_applied_elsewhere(const char* endpoint,
                                void (*elsewhere)(void (*run)(void*), void* context)) {
  prd_session* session = NULL;
  struct model model = {.applied = 0};
  CHECK(open_session(endpoint, 0, &session) == 0);
  CHECK(end_call(session, attach(session, &model, 1, NULL), &model) == 0);
  CHECK(prd_step(session, NULL) == 0 && prd_next(session, -1) == PRD_APPLY);
  struct attempt attempt = {.session = session};
  elsewhere(try_to_go_on, &attempt);
  CHECK(attempt.next == PRD_APPLY && attempt.applied == PRD_FAILED_PRECONDITION);
  CHECK(has(prd_message(session), "on another thread, which has the replica"));
  CHECK(end_call(session, 0, &model) == 0 && model.applied == 1);
  CHECK(end_call(session, prd_finish(session, 1), &model) == 0);
  prd_close(session);
  return NULL;
}

/* To where the session waits for the other worker. */
static int waits_in_attach(prd_session* session, struct model* model) {
  return attach(session, model, 1, NULL) == 0 && prd_next(session, 0) == PRD_PENDING &&
         prd_next(session, 30) == PRD_PENDING && prd_in_call(session);
}

const char* c_leaves_while_it_waits(const char* endpoint) {
  prd_session* session = NULL;
  struct model model = {.applied = 0};
  CHECK(open_session(endpoint, 0, &session) == 0);
  CHECK(prd_leave(session, "not yet") == PRD_FAILED_PRECONDITION && !prd_in_call(session));
  CHECK(waits_in_attach(session, &model));
  CHECK(end_call(session, prd_leave(session, "tired"), &model) == 0);
  CHECK(end_call(session, attach(session, &model, 1, NULL), &model) == PRD_FAILED_PRECONDITION);
  prd_close(session);
  return NULL;
}

const char* c_closes_while_it_waits(const char* endpoint) {
  prd_session* session = NULL;
  struct model model = {.applied = 0};
  CHECK(open_session(endpoint, 0, &session) == 0);
  CHECK(waits_in_attach(session, &model));
  prd_close(session);
  return NULL;
}

const char* c_cancels(const char* endpoint) {
  prd_session* session = NULL;
  struct model model = {.applied = 0};
  CHECK(open_session(endpoint, 0, &session) == 0);
  CHECK(waits_in_attach(session, &model));
  prd_cancel(session);
  CHECK(prd_next(session, -1) == PRD_CANCELLED);
  prd_close(session);
  return NULL;
}

const char* c_leaves_soon(const char* endpoint) {
  prd_session* session = NULL;
  struct model model = {.applied = 0};
  CHECK(open_session(endpoint, 0, &session) == 0);
  CHECK(waits_in_attach(session, &model));
  CHECK(prd_stop(session, "early") == PRD_FAILED_PRECONDITION);
  CHECK(has(prd_message(NULL), "Stop: call Attach first"));
  CHECK(prd_stop(NULL, NULL) == PRD_FAILED_PRECONDITION);
  prd_leave_soon(session, "spot notice", 0);
  prd_leave_soon(session, NULL, 1);
  prd_leave_soon(NULL, "nobody", 0);
  prd_tell_loss(session, 1.);
  prd_tell_loss(NULL, 1.);
  CHECK(prd_next(session, -1) == PRD_ABORTED);
  CHECK(has(prd_message(session), "left: spot notice"));
  prd_close(session);
  return NULL;
}

const char* c_goes_on_later(const char* endpoint, void (*waits)(void*), void* context) {
  prd_session* session = NULL;
  struct model model = {.applied = 0};
  CHECK(open_session(endpoint, 0, &session) == 0);
  CHECK(waits_in_attach(session, &model));
  CHECK(prd_step(session, NULL) == PRD_FAILED_PRECONDITION);
  CHECK(has(prd_message(session), "prd_step: prd_attach is in progress"));
  waits(context);
  CHECK(end_call(session, 0, &model) == 0);
  CHECK(end_call(session, prd_step(session, NULL), &model) == 0 && model.applied == 1);
  CHECK(end_call(session, prd_finish(session, 1), &model) == 0);
  prd_close(session);
  return NULL;
}

const char* c_asks_and_averages(const char* endpoint, int rank) {
  prd_session* session = NULL;
  struct model model = {.applied = 0};
  static const float both = 0.5f;
  float mean[kValues] = {0};
  CHECK(open_session(endpoint, rank, &session) == 0);
  CHECK(end_call(session, attach(session, &model, 1, "tag"), &model) == 0);
  for (int i = 0; i < kValues; ++i) model.gradients[i] = (float)rank;
  const prd_step_input input = {.size = sizeof input, .samples = 8};
  CHECK(end_call(session, prd_step(session, &input), &model) == 0);
  CHECK(prd_log_line(session) == NULL);
  for (int i = 0; i < kValues; ++i) model.gradients[i] = 0;
  const prd_step_input smaller = {.size = sizeof smaller, .samples = 4};
  CHECK(end_call(session, prd_step(session, &smaller), &model) == 0);
  const char* line = prd_log_line(session);
  if (rank == 0) {
    CHECK(line != NULL && has(line, "does not weigh by them, unless its weights = \"samples\""));
    line = prd_log_line(session);
  }
  CHECK(line == NULL);
  const prd_tensor into[] = {{.data = mean, .count = kValues - 3},
                             {.data = mean + kValues - 3, .count = 3}};
  CHECK(end_call(session, prd_average(session, into, 2), &model) == 0);
  CHECK(mean[0] == both && mean[kValues - 1] == both);
  prd_group_transports transports = {.size = sizeof transports};
  CHECK(prd_get_group_transports(session, &transports) == 0 && transports.collective == 0);
  prd_memory memory = {.size = sizeof memory};
  CHECK(prd_get_memory(session, 0, &memory) == 0 && strcmp(memory.use, "all") == 0);
  CHECK(memory.host_peak >= memory.host && memory.host_peak > 0 && memory.device_peak == 0);
  CHECK(prd_get_memory(session, 1000, &memory) == PRD_NOT_FOUND);
  CHECK(end_call(session, prd_finish(session, 1), &model) == 0);
  CHECK(model.values[7] == both);
  prd_close(session);
  return NULL;
}

const char* c_tags_differ(const char* endpoint, int rank) {
  prd_session* session = NULL;
  struct model model = {.applied = 0};
  CHECK(open_session(endpoint, rank, &session) == 0);
  if (rank == 1) {
    CHECK(end_call(session, attach(session, &model, 1, "NHWC"), &model) == PRD_INVALID_ARGUMENT);
    CHECK(has(prd_message(session), "the model differs"));
    CHECK(has(prd_message(session), "model_tag"));
  }
  CHECK(end_call(session, attach(session, &model, 1, "NCHW"), &model) == 0);
  CHECK(end_call(session, prd_finish(session, 1), &model) == 0);
  prd_close(session);
  return NULL;
}
