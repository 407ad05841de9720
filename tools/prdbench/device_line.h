// What every JSON line about a device begins with.
#ifndef PRD_TOOLS_PRDBENCH_DEVICE_LINE_H_
#define PRD_TOOLS_PRDBENCH_DEVICE_LINE_H_

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "worker/device/gpu.h"

namespace prd::bench {

struct DeviceAbout {
  std::string name;  // of the device
  std::string cuda;
  std::string nccl;  // empty: it is not there
  bool stand_in() const { return name.find("stand-in") != std::string::npos; }
};

DeviceAbout About(const Gpu& gpu);

// What one process tells another of its device: a line without a newline.
std::string Encode(const DeviceAbout& about);
DeviceAbout DecodeAbout(const std::string& line);

// {"bench" or "check": what, "device":.., "cuda":.., "nccl":.., "stand_in":..}, in this order.
nlohmann::ordered_json DeviceLine(const char* kind, const std::string& what,
                                  const DeviceAbout& about);
void PrintLine(const nlohmann::ordered_json& line);

double Median(std::vector<double> values);  // 0 of none

}  // namespace prd::bench

#endif  // PRD_TOOLS_PRDBENCH_DEVICE_LINE_H_
