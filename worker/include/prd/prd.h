/* clang-format off: the first comment has a program. */
/* The C interface of prd's worker library (C11), for programs in C and for other languages.
 *
 * A prd_session is one worker of a job, as prd::Session is (prd/session.h, whose comments say what
 * each call means; this header says what differs). It takes no function pointers. A call begins,
 * and prd_next says what it wants:
 *
 *   prd_options options = {.size = sizeof options};
 *   if (prd_options_from_environment(&options) < 0) return fail(prd_message(NULL));
 *   prd_session* session;
 *   if (prd_open(&options, &session) < 0) return fail(prd_message(NULL));
 *   const prd_tensor parameters = {.data = weights, .count = n, .dtype = PRD_F32};
 *   const prd_tensor gradients = {.data = slopes, .count = n, .dtype = PRD_F32};
 *   const prd_replica replica = {.size = sizeof replica,
 *                                .parameters = &parameters,
 *                                .parameter_count = 1,
 *                                .gradients = &gradients,
 *                                .gradient_count = 1};
 *   if (to_the_end(session, prd_attach(session, &replica)) < 0) return fail(prd_message(session));
 *   for (int i = 0; i < steps; ++i) {
 *     compute_gradients();
 *     const prd_step_input input = {.size = sizeof input, .samples = batch};
 *     if (to_the_end(session, prd_step(session, &input)) < 0) return fail(prd_message(session));
 *   }
 *   if (to_the_end(session, prd_finish(session, 1)) < 0) return fail(prd_message(session));
 *   prd_close(session);
 *
 * where the call is brought to its end so:
 *
 *   int32_t to_the_end(prd_session* session, int32_t next) {
 *     if (next < 0) return next;
 *     while ((next = prd_next(session, -1)) == PRD_APPLY) {
 *       optimizer_step();
 *       if ((next = prd_applied(session, NULL)) < 0) return next;
 *     }
 *     return next;
 *   }
 *
 * A program that is to react while a call waits, to a signal say, gives prd_next a time, and does
 * between two of its calls what it likes. It may leave a call in progress, and bring that to its
 * end later: until then parameters and gradients belong to the call.
 *
 * Errors are negative: PRD_INVALID_ARGUMENT to PRD_INTERNAL, as prd::Code in prd/status.h.
 * prd_message has the text.
 *
 * Structs begin with their size, which the caller sets to sizeof the struct. Later versions of this
 * interface add fields at the end alone; a field that was added so and is 0 means what it means
 * where it is missing. A library refuses a struct that is longer than it knows, unless the rest is
 * 0.
 *
 * Pointers that the library gives are the session's, and good until its next call begins, or it is
 * closed. What the caller gives is copied, but for the tensors' memory: that stays in place until
 * prd_close.
 *
 * Threads: one at a time, and the same one from a call's begin to its end, except where "any
 * thread" is said. In a process that was forked from the session's, all functions return
 * PRD_FAILED_PRECONDITION, NULL or nothing, and change nothing. */
/* clang-format on */
#ifndef PRD_PRD_H_
#define PRD_PRD_H_

#include <stdint.h>

#if defined(__GNUC__)
#define PRD_API __attribute__((visibility("default")))
#else
#define PRD_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Of this header. Libraries of one major version keep what its minor versions have. */
#define PRD_ABI_MAJOR 1
#define PRD_ABI_MINOR 7

enum {
  PRD_DONE = 0,
  PRD_APPLY = 1,   /* run the optimizer on the gradients as they are now, then prd_applied */
  PRD_PENDING = 2, /* nothing yet */

  PRD_INVALID_ARGUMENT = -1,
  PRD_NOT_FOUND = -2,
  PRD_ALREADY_EXISTS = -3,
  PRD_FAILED_PRECONDITION = -4,
  PRD_UNAVAILABLE = -5,
  PRD_DEADLINE_EXCEEDED = -6,
  PRD_ABORTED = -7,
  PRD_DATA_LOSS = -8,
  PRD_RESOURCE_EXHAUSTED = -9,
  PRD_CANCELLED = -10,
  PRD_INTERNAL = -11
};

enum { PRD_F32 = 0, PRD_F64 = 1, PRD_F16 = 2, PRD_BF16 = 3 };

typedef struct prd_session prd_session;

/* As prd::SessionOptions. Strings: NULL is as empty. Begin with prd_options_from_environment, which
 * sets all of them: in a struct of zeros the rank is 0 and no call has a time limit. */
typedef struct prd_options {
  uint32_t size;
  int32_t rank; /* -1: the controller gives one */
  int32_t world_size;
  int32_t max_communicators;
  const char* controller;
  const char* job;
  const char* address;
  const char* launch;
  const char* curve_server_key;
  const char* curve_public_key;
  const char* curve_secret_key;
  int64_t timeout_ms;
  int64_t start_timeout_ms;
  int64_t reduce_timeout_ms;
  int64_t goal_steps;
  int64_t goal_samples;
  uint32_t check_tensors;
  uint32_t queue_log; /* not 0: lines of the log are for prd_log_line, and do not go to stderr */
  const char* mesh_ports;
  const char* announce_address;
  int64_t batch; /* since 1.5, as the next */
  int64_t max_share;
  uint32_t accumulates;
  uint32_t rows_on_host; /* since 1.7; before, reserved and 0 */
} prd_options;

typedef struct prd_tensor {
  void* data;
  uint64_t count;
  uint32_t dtype;
  uint32_t average; /* of state alone: StateTensor::average */
} prd_tensor;

/* As prd::Replica. NULL as device: host memory. */
typedef struct prd_replica {
  uint32_t size;
  uint32_t gradients_later; /* not 0: prd_set_gradients gives them, if prd_needs_gradients */
  const char* device;
  void* stream;
  const prd_tensor* parameters;
  uint64_t parameter_count;
  const prd_tensor* gradients;
  uint64_t gradient_count;
  const prd_tensor* state;
  uint64_t state_count;
  int64_t trained_steps;
  int64_t trained_samples;
  int64_t job_trained_steps;
  int64_t job_trained_samples;
  const char* model_tag;
  uint32_t state_in_apply; /* since 1.1 */
  uint32_t reserved;       /* 0 */
} prd_replica;

typedef struct prd_step_input {
  uint32_t size;
  uint32_t discard;
  int64_t samples;
  void* stream;
  uint32_t stream_given; /* not 0: this step's work is on `stream`, and not on the replica's */
  uint32_t reserved;     /* 0 */
} prd_step_input;

/* As prd::StepResult; times in nanoseconds. */
typedef struct prd_step_result {
  uint32_t size;
  uint32_t done;
  int64_t steps;
  int64_t iteration;
  uint64_t group;
  const int32_t* members; /* member_count of them, and of the weights */
  const double* weights;
  uint32_t member_count;
  int32_t attempts;
  uint32_t adopted;
  uint32_t included;
  int64_t rounds;
  uint64_t local_steps;
  uint64_t reduced_bytes;
  uint64_t sent_bytes;
  int64_t computed_ns;
  int64_t waited_ns;
  int64_t reduced_ns;
  const char* reason;
  uint32_t partial;  /* since 1.5 */
  uint32_t reserved; /* 0 */
} prd_step_result;

/* As prd::Progress. */
typedef struct prd_progress {
  uint32_t size;
  int32_t workers;
  int64_t steps;
  int64_t samples;
  int64_t goal_steps;
  int64_t goal_samples;
  int64_t own_steps;
  int64_t own_samples;
  uint32_t done;
  uint32_t reserved;
} prd_progress;

/* As prd::BatchShare. Since 1.5. */
typedef struct prd_batch_share {
  uint32_t size;
  uint32_t reserved;
  int64_t step;
  int64_t first;
  int64_t samples;
  int64_t batch;
} prd_batch_share;

/* As prd::GroupTransports. */
typedef struct prd_group_transports {
  uint32_t size;
  uint32_t reserved;
  uint64_t collective;
  uint64_t exchange;
  uint64_t staged;
} prd_group_transports;

/* As prd::MemoryHeld; `use` is never freed. */
typedef struct prd_memory {
  uint32_t size;
  uint32_t reserved;
  const char* use;
  int64_t host;
  int64_t host_peak;
  int64_t device;
  int64_t device_peak;
} prd_memory;

/* PRD_ABI_MAJOR << 16 | PRD_ABI_MINOR, of the library. */
PRD_API uint32_t prd_abi(void);
/* "unavailable" of PRD_UNAVAILABLE, "ok" of 0 and more. */
PRD_API const char* prd_code_name(int32_t code);

/* Sets all options, by the environment. The strings are the thread's, good until it calls this
 * again. */
PRD_API int32_t prd_options_from_environment(prd_options* options);
/* On an error *session is NULL. */
PRD_API int32_t prd_open(const prd_options* options, prd_session** session);
/* Leaves the job, unless that is over: then it takes up to a second. A call in progress is given
 * up. NULL is allowed. In a forked child it does nothing. */
PRD_API void prd_close(prd_session* session);
/* Of the newest error of this session; "" if there was none. NULL: of the newest error of this
 * thread in a call without a session. */
PRD_API const char* prd_message(const prd_session* session);

/* Each begins a call, and returns 0, or the call's error if it is over at once:
 * PRD_FAILED_PRECONDITION while another call is in progress. */
PRD_API int32_t prd_attach(prd_session* session, const prd_replica* replica);
PRD_API int32_t prd_set_gradients(prd_session* session, const prd_tensor* gradients,
                                  uint64_t count);
PRD_API int32_t prd_step(prd_session* session, const prd_step_input* input); /* NULL: all 0 */
PRD_API int32_t prd_pause(prd_session* session);
PRD_API int32_t prd_resume(prd_session* session);
PRD_API int32_t prd_average(prd_session* session, const prd_tensor* into, uint64_t count);
/* As prd::Session::Mean, of `count` values. Since 1.4, as prd_get_mean. */
PRD_API int32_t prd_mean(prd_session* session, const double* values, uint64_t count);
PRD_API int32_t prd_finish(prd_session* session, int32_t wait); /* wait: 0 or 1 */
/* Gives up a call in progress. Only prd_close may follow, once it is done. */
PRD_API int32_t prd_leave(prd_session* session, const char* reason);

/* Goes on with the call in progress for about wait_ms, or if negative until it wants something.
 * PRD_DONE: the call is over, or there is none. PRD_APPLY, again and again until prd_applied.
 * PRD_PENDING. Or the call's error. */
PRD_API int32_t prd_next(prd_session* session, int32_t wait_ms);
/* After PRD_APPLY: the optimizer has run. The replica is locked in between, so
 * it has to take a small part of the lease. `failed`: NULL; or why it has not, as "raised
 * ValueError: ...": the call then ends with PRD_ABORTED, once the worker has left the job. */
PRD_API int32_t prd_applied(prd_session* session, const char* failed);
/* Whether a call is in progress: 0 or 1. */
PRD_API int32_t prd_in_call(const prd_session* session);
/* What the newest step did. */
PRD_API int32_t prd_get_step_result(prd_session* session, prd_step_result* result);
/* The newest mean; as many numbers as were given. */
PRD_API int32_t prd_get_mean(prd_session* session, double* mean, uint64_t count);

/* The oldest line of the log that was not given yet; NULL: none (prd_options::queue_log). The
 * newest 256 are kept. */
PRD_API const char* prd_log_line(prd_session* session);

/* From here on: any thread, and an error is the thread's, prd_message(NULL). prd_cancel,
 * prd_leave_soon and prd_interrupted also in signal handlers. */
PRD_API void prd_cancel(prd_session* session);
/* As prd::Session::LeaveSoon. grace_ms: 0 is no limit. */
PRD_API void prd_leave_soon(prd_session* session, const char* reason, int64_t grace_ms);
/* As prd::Session::TellLoss. Since 1.3. */
PRD_API void prd_tell_loss(prd_session* session, double loss);
/* As prd::Session::Stop and clock. Since 1.4. */
PRD_API int32_t prd_stop(prd_session* session, const char* reason);
PRD_API double prd_clock(const prd_session* session);
PRD_API int32_t prd_interrupted(const prd_session* session);
PRD_API int32_t prd_get_progress(const prd_session* session, prd_progress* progress);
/* As prd::Session::share. Since 1.5. */
PRD_API int32_t prd_get_share(const prd_session* session, int32_t ahead, prd_batch_share* share);
PRD_API int32_t prd_get_group_transports(const prd_session* session,
                                         prd_group_transports* transports);
/* The index-th of prd::Session::memory; PRD_NOT_FOUND: there are no more. Since 1.6. */
PRD_API int32_t prd_get_memory(const prd_session* session, uint64_t index, prd_memory* memory);

/* After prd_attach is done. Before: -1, 0, 0, "" and 0. */
PRD_API int32_t prd_rank(const prd_session* session);
PRD_API int32_t prd_workers(const prd_session* session);
PRD_API int64_t prd_iteration(const prd_session* session);
PRD_API const char* prd_engine(prd_session* session);
/* Whether the job reduces gradients, or looks at them: 0 or 1. It may change where the job begins
 * anew; then the next step says that gradients are missing. */
PRD_API int32_t prd_needs_gradients(const prd_session* session);

#ifdef __cplusplus
}
#endif

#endif /* PRD_PRD_H_ */
