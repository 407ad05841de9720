// Compiles with the installed headers alone, and calls into the installed library.
#include <prd/session.h>

#include <chrono>
#include <cstdio>
#include <utility>
#include <vector>

int main() {
  prd::SessionOptions options;
  options.job = "consumer";
  options.controller = "nonsense";
  options.timeout = std::chrono::milliseconds(10);
  const prd::Result<prd::Session> refused = prd::Session::Create(options);
  std::printf("%s\n", refused.status().ToString().c_str());
  if (refused.status().code() != prd::Code::kInvalidArgument) return 1;

  options.controller = "ipc://@prd-consumer-nobody-listens-here";
  prd::Result<prd::Session> session = prd::Session::Create(options);
  if (!session.ok()) return 1;
  std::vector<float> weights(4);
  prd::Replica replica;
  replica.parameters = {{weights.data(), weights.size(), prd::DType::kF32}};
  replica.apply = [] {};
  const prd::Status status = session->Attach(std::move(replica));
  std::printf("%s\n", status.ToString().c_str());
  if (session->Step({.samples = 1}).ok()) return 1;  // it has not attached
  const prd::GroupTransports groups = session->group_transports();
  const bool none = groups.collective + groups.exchange + groups.staged == 0;
  return status.code() == prd::Code::kUnavailable && none ? 0 : 1;
}
