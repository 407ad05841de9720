/* Compiles as C with the installed header alone, and calls into the installed library. */
#include <prd/prd.h>
#include <stdio.h>

int main(void) {
  prd_options options = {.size = sizeof options};
  if (prd_options_from_environment(&options) < 0) return 1;
  options.job = "consumer";
  options.controller = "nonsense";
  options.timeout_ms = 10;
  prd_session* session = NULL;
  const int32_t refused = prd_open(&options, &session);
  printf("%s: %s\n", prd_code_name(refused), prd_message(NULL));
  if (refused != PRD_INVALID_ARGUMENT || session != NULL) return 1;

  options.controller = "ipc://@prd-consumer-nobody-listens-here";
  if (prd_open(&options, &session) != 0) return 1;
  float weights[4] = {0};
  const prd_tensor parameters = {.data = weights, .count = 4, .dtype = PRD_F32};
  const prd_replica replica = {
      .size = sizeof replica, .parameters = &parameters, .parameter_count = 1};
  if (prd_attach(session, &replica) != 0) return 1;
  int32_t next = PRD_PENDING;
  while (next == PRD_PENDING) next = prd_next(session, 5);
  printf("%s: %s\n", prd_code_name(next), prd_message(session));
  prd_close(session);
  return next == PRD_UNAVAILABLE && prd_abi() >> 16 == PRD_ABI_MAJOR ? 0 : 1;
}
