/* A training program in C: fits a linear model to points that each worker draws for itself.
 *
 *   PRD_JOB=linear PRD_RANK=0 prd-train-linear [STEPS]
 *
 * It shows what a program does that waits for itself: between two slices of a wait it looks for
 * SIGINT, and leaves. */
#include <prd/prd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kInputs = 64, kBatch = 32 };

static float weights[kInputs];
static float gradients[kInputs];
static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number) {
  (void)signal_number;
  interrupted = 1;
}

static void apply_gradients(void) {
  for (int i = 0; i < kInputs; ++i) weights[i] -= 0.01f * gradients[i];
}

/* Of a generator that is the same everywhere: from -1 to 1. */
static float draw(uint64_t* random) {
  *random = *random * 6364136223846793005u + 1442695040888963407u;
  return (float)(*random >> 40) / (float)(1 << 23) - 1.f;
}

/* The model to be found. */
static float truth(int input) { return (float)(input % 7) - 3.f; }

/* Of one batch, whose mean square error it returns. */
static float compute_gradients(uint64_t* random) {
  float loss = 0.f;
  for (int i = 0; i < kInputs; ++i) gradients[i] = 0.f;
  for (int point = 0; point < kBatch; ++point) {
    float inputs[kInputs];
    float error = 0.f;
    for (int i = 0; i < kInputs; ++i) {
      inputs[i] = draw(random);
      error += (weights[i] - truth(i)) * inputs[i];
    }
    for (int i = 0; i < kInputs; ++i) gradients[i] += 2.f * error * inputs[i] / kBatch;
    loss += error * error / kBatch;
  }
  return loss;
}

/* Brings a call to its end that has begun with `begun`. */
static int32_t end_call(prd_session* session, int32_t begun) {
  int32_t next = begun < 0 ? begun : PRD_PENDING;
  while (next == PRD_PENDING || next == PRD_APPLY) {
    next = prd_next(session, 100);
    if (next == PRD_APPLY) {
      apply_gradients();
      const int32_t applied = prd_applied(session, NULL);
      if (applied < 0) return applied;
    }
    if (next == PRD_PENDING && interrupted == 1) {
      interrupted = 2;
      prd_leave(session, "interrupted"); /* gives the call up */
    }
  }
  return next;
}

static int fail(const char* what, int32_t code, const char* message) {
  fprintf(stderr, "%s: %s: %s\n", what, prd_code_name(code), message);
  return 1;
}

static int train(prd_session* session, int64_t steps) {
  const prd_tensor parameters = {.data = weights, .count = kInputs, .dtype = PRD_F32};
  const prd_tensor slopes = {.data = gradients, .count = kInputs, .dtype = PRD_F32};
  const prd_replica replica = {.size = sizeof replica,
                               .parameters = &parameters,
                               .parameter_count = 1,
                               .gradients = &slopes,
                               .gradient_count = 1,
                               .model_tag = "linear"};
  int32_t code = end_call(session, prd_attach(session, &replica));
  if (code < 0) return fail("attach", code, prd_message(session));

  uint64_t random = 1000003u * (uint64_t)(prd_rank(session) + 1);
  prd_step_result result = {.size = sizeof result};
  float first = 0.f;
  float loss = 0.f;
  while (!interrupted && !result.done && result.steps < steps) {
    loss = compute_gradients(&random);
    if (result.steps == 0) first = loss;
    prd_tell_loss(session, loss);
    const prd_step_input input = {.size = sizeof input, .samples = kBatch};
    code = end_call(session, prd_step(session, &input));
    if (code < 0) return fail("step", code, prd_message(session));
    if (!interrupted) prd_get_step_result(session, &result);
  }
  if (interrupted) {
    if (interrupted == 1) end_call(session, prd_leave(session, "interrupted"));
    printf("rank %d left after %lld steps\n", prd_rank(session), (long long)result.steps);
    return 0;
  }
  code = end_call(session, prd_finish(session, 1));
  if (code < 0) return fail("finish", code, prd_message(session));
  float sum = 0.f;
  for (int i = 0; i < kInputs; ++i) sum += weights[i] * (float)(i + 1);
  printf("rank %d of %d, %s: %lld steps, loss from %g to %g, model %.9g\n", prd_rank(session),
         prd_workers(session), prd_engine(session), (long long)result.steps, (double)first,
         (double)loss, (double)sum);
  return 0;
}

static const char usage[] =
    "usage: PRD_JOB=linear prd-train-linear [STEPS]\n"
    "STEPS: 1 or more; 1000 by default. PRD_CONTROLLER, PRD_RANK, ...: as for any worker.\n";

/* 0 or less: it is no number. */
static int64_t number_of_steps(const char* text) {
  char* end = NULL;
  const int64_t steps = strtoll(text, &end, 10);
  return *text != 0 && *end == 0 ? steps : 0;
}

int main(int argc, char** argv) {
  if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
    return fputs(usage, stdout) < 0 || fflush(stdout) != 0;
  }
  const int64_t steps = argc > 1 ? number_of_steps(argv[1]) : 1000;
  if (argc > 2 || steps < 1) {
    fputs(usage, stderr);
    return 2;
  }
  prd_options options = {.size = sizeof options};
  int32_t code = prd_options_from_environment(&options);
  if (code < 0) return fail("environment", code, prd_message(NULL));
  prd_session* session = NULL;
  code = prd_open(&options, &session);
  if (code < 0) return fail("open", code, prd_message(NULL));
  signal(SIGINT, on_interrupt);
  const int failed = train(session, steps);
  prd_close(session);
  return failed;
}
