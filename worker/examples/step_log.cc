#include "worker/examples/step_log.h"

#include <cerrno>
#include <cinttypes>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace example {
namespace {

constexpr std::size_t kBufferBytes = 1 << 18;

// As JSON, which has no infinity and no NaN: they are null, as what is not there.
std::string Number(std::optional<double> value) {
  if (!value || !std::isfinite(*value)) return "null";
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", *value);
  return text;
}

}  // namespace

std::string Encode(const prd::GroupTransports& groups) {
  char text[128];
  std::snprintf(text, sizeof(text),
                "{\"collective\":%" PRIu64 ",\"exchange\":%" PRIu64 ",\"staged\":%" PRIu64 "}",
                groups.collective, groups.exchange, groups.staged);
  return text;
}

StepLog::StepLog(const std::string& path) {
  if (path.empty()) return;
  file_.reset(std::fopen(path.c_str(), "w"));
  if (!file_) throw std::runtime_error(path + ": " + std::strerror(errno));
  std::setvbuf(file_.get(), nullptr, _IOFBF, kBufferBytes);
}

void StepLog::Start(const prd::Session& session, std::int64_t start_ns, std::int64_t step_ns) {
  if (!file_) return;
  std::fprintf(file_.get(),
               "{\"rank\":%d,\"workers\":%d,\"engine\":\"%s\",\"start_ns\":%" PRId64
               ",\"step_ns\":%" PRId64 "}\n",
               session.rank(), session.workers(), session.engine().c_str(), start_ns, step_ns);
  Flush();
}

void StepLog::Step(const prd::StepResult& step, const prd::GroupTransports& groups,
                   std::int64_t end_ns, std::int64_t samples, std::optional<double> loss) {
  if (!file_) return;
  std::fprintf(file_.get(),
               "{\"end_ns\":%" PRId64 ",\"iteration\":%" PRId64 ",\"group\":%" PRIu64
               ",\"members\":%zu,\"rounds\":%" PRId64 ",\"included\":%s,\"local_steps\":%" PRIu32,
               end_ns, step.iteration, step.group, step.members.size(), step.rounds,
               step.included ? "true" : "false", step.local_steps);
  std::fprintf(file_.get(),
               ",\"compute_ns\":%" PRId64 ",\"wait_ns\":%" PRId64 ",\"reduce_ns\":%" PRId64
               ",\"sent_bytes\":%" PRIu64 ",\"attempts\":%d,\"groups\":%s,\"samples\":%" PRId64
               ",\"partial\":%s,\"discarded\":%s,\"loss\":%s}\n",
               static_cast<std::int64_t>(step.computed.count()),
               static_cast<std::int64_t>(step.waited.count()),
               static_cast<std::int64_t>(step.reduced.count()), step.sent_bytes, step.attempts,
               Encode(groups).c_str(), samples, step.partial ? "true" : "false",
               loss ? "false" : "true", Number(loss).c_str());
}

void StepLog::Finished(const prd::GroupTransports& groups, std::int64_t end_ns,
                       std::optional<double> validation_loss) {
  if (!file_) return;
  std::fprintf(file_.get(), "{\"finished\":true,\"groups\":%s,\"end_ns\":%" PRId64,
               Encode(groups).c_str(), end_ns);
  if (validation_loss) {
    std::fprintf(file_.get(), ",\"validation_loss\":%s", Number(validation_loss).c_str());
  }
  std::fputs("}\n", file_.get());
  Flush();
}

void StepLog::Flush() {
  if (file_ && std::fflush(file_.get()) != 0) {
    throw std::runtime_error(std::string("step log: ") + std::strerror(errno));
  }
}

}  // namespace example
