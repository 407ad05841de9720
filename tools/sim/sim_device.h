// The memory of a device in virtual time: a Memory whose work is done later, in the order of the
// calls, as DeviceMemory's is on its streams.
//
// What the device allows itself is drawn: host operands are copied in when they are given, or when
// their turn comes; what goes to host memory comes in parts, and later than what follows on the
// device. Rows come full of values that are no numbers, and are so again once they are gone. One of
// three devices has rows_on_host.
//
// A place that is in no row that is there is a Violation.
#ifndef PRD_TOOLS_SIM_SIM_DEVICE_H_
#define PRD_TOOLS_SIM_SIM_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "common/base/time.h"
#include "worker/mesh/mesh.h"

namespace prd::sim {

class SimDevice : public Memory {
 public:
  struct Clock {
    std::function<void(DurationNs, std::function<void()>)> after;
    std::function<void()> wake;  // something has come to host memory
  };
  SimDevice(std::uint64_t seed, Clock clock);
  ~SimDevice() override;

  bool device() const override { return true; }
  bool rows_on_host() const override { return rows_on_host_; }
  using Memory::Combine;
  std::shared_ptr<Transfer> Combine(const Layout& layout, std::size_t offset, std::size_t length,
                                    std::span<const Place> to, std::span<const Input> from,
                                    Weight factor) override;
  void Zero(std::byte* data, std::size_t bytes) override;
  void Sweep() override;

  // All work so far is done: what waits for it on the device may go on.
  void Settle();
  // It fails at its n-th next operation, from 1 on (0: it does not): one that is done as time goes
  // on, or asked for while MayFail.
  void FailAt(std::size_t n);
  void MayFail(bool may);
  Status failure() const override;

 private:
  class Core;
  class Copying;
  Row Make(MemoryUse use, std::size_t bytes) override;
  Row MakeHost(MemoryUse use, std::size_t bytes) override;

  std::shared_ptr<Core> core_;  // rows and Transfers have it, too
  const bool rows_on_host_;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_SIM_DEVICE_H_
