#include "tools/prdbench/interrupts.h"

#include <csignal>
#include <cstdio>

namespace prd::bench {
namespace {

volatile std::sig_atomic_t g_signal = 0;
bool g_caught = false;
struct sigaction g_int_before {};
struct sigaction g_term_before {};

}  // namespace

void CatchInterrupts() {
  if (g_caught) return;
  g_caught = true;
  struct sigaction action {};
  action.sa_handler = [](int signal) { g_signal = signal; };  // no SA_RESTART: poll returns
  sigaction(SIGINT, &action, &g_int_before);
  sigaction(SIGTERM, &action, &g_term_before);
}

void LeaveInterrupts() {
  if (!g_caught) return;
  sigaction(SIGINT, &g_int_before, nullptr);
  sigaction(SIGTERM, &g_term_before, nullptr);
}

int InterruptedBy() { return g_signal; }

int EndInterrupted() {
  std::fprintf(stderr, "\nprdbench: interrupted\n");
  return 128 + InterruptedBy();
}

}  // namespace prd::bench
