#include "tools/prdbench/device_line.h"

#include <algorithm>
#include <cstdio>

namespace prd::bench {

DeviceAbout About(const Gpu& gpu) { return {gpu.name(), gpu.cuda_version(), gpu.nccl_version()}; }

std::string Encode(const DeviceAbout& about) {
  return nlohmann::json{about.name, about.cuda, about.nccl}.dump();
}

DeviceAbout DecodeAbout(const std::string& line) {
  const nlohmann::json about = nlohmann::json::parse(line, nullptr, false);
  if (!about.is_array() || about.size() != 3) return {};
  return {about[0].get<std::string>(), about[1].get<std::string>(), about[2].get<std::string>()};
}

nlohmann::ordered_json DeviceLine(const char* kind, const std::string& what,
                                  const DeviceAbout& about) {
  return {{kind, what},
          {"device", about.name},
          {"cuda", about.cuda},
          {"nccl", about.nccl},
          {"stand_in", about.stand_in()}};
}

void PrintLine(const nlohmann::ordered_json& line) {
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace prd::bench
