// Compiles with the installed headers alone, and calls into the installed library.
#include <prd/session.h>

#include <cstdio>

int main() {
  prd::SessionOptions options;
  options.job = "consumer";
  options.controller = "nonsense";
  const prd::Result<prd::Session> session = prd::Session::Create(options);
  std::printf("%s\n", session.status().ToString().c_str());
  return session.status().code() == prd::Code::kInvalidArgument ? 0 : 1;
}
