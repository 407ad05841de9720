// A program written against the header before `timeout`, GroupTransports and group_transports():
// the old names are kept for one version.
#include <prd/session.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

namespace {

bool Equal(const prd::GroupWays& ways, std::uint64_t count) {
  return ways.collective == count && ways.exchange == count && ways.staged == count;
}

// What a training loop of that time used.
prd::Status Train(prd::Session* session, std::vector<float>* weights, std::vector<float>* grads) {
  prd::Replica replica;
  replica.device = "cpu";
  replica.stream = nullptr;
  replica.parameters = {{weights->data(), weights->size(), prd::DType::kF32}};
  replica.gradients = {{grads->data(), grads->size(), prd::DType::kF32}};
  replica.apply = [=] { (*weights)[0] -= (*grads)[0]; };
  PRD_RETURN_IF_ERROR(session->Attach(std::move(replica)));
  prd::StepInput input{.samples = 1, .discard = session->Interrupted(), .stream = std::nullopt};
  const prd::Result<prd::StepResult> step = session->Step(input);
  if (!step.ok()) return session->Leave("a step failed: " + step.status().message());
  const std::chrono::nanoseconds spent = step->computed + step->waited + step->reduced;
  std::printf("%lld %llu %zu %zu %d %d %d %lld %u %llu %llu %s %lld\n",
              static_cast<long long>(step->iteration), static_cast<unsigned long long>(step->group),
              step->members.size(), step->weights.size(), step->attempts, step->adopted,
              step->included, static_cast<long long>(step->rounds), step->local_steps,
              static_cast<unsigned long long>(step->reduced_bytes),
              static_cast<unsigned long long>(step->sent_bytes), step->reason.c_str(),
              static_cast<long long>(spent.count()));
  return session->Finish();
}

}  // namespace

int main() {
  static_assert(prd::DTypeSize(prd::DType::kBF16) == 2);
  setenv("PRD_JOB", "consumer", 1);
  setenv("PRD_PATIENCE_MS", "70", 1);
  prd::Result<prd::SessionOptions> from = prd::Session::OptionsFromEnvironment();
  if (!from.ok() || from->patience != std::chrono::milliseconds(70)) return 1;

  prd::SessionOptions options;
  if (options.patience != std::chrono::seconds(60)) return 1;
  options.job = "consumer";
  options.controller = "ipc://@prd-consumer-nobody-listens-here";
  options.patience = std::chrono::milliseconds(10);
  options.reduce_timeout = std::chrono::seconds(1);
  prd::Result<prd::Session> session = prd::Session::Create(options);
  if (!session.ok()) return 1;
  std::vector<float> weights(4), grads(4);
  const prd::Status status = Train(&*session, &weights, &grads);
  std::printf("%s\n", status.ToString().c_str());
  // The old name of the time limit ended Attach.
  if (status.code() != prd::Code::kUnavailable || session->rank() != -1) return 1;
  return Equal(session->group_ways(), 0) ? 0 : 1;
}
