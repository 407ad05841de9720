// What a toy worker trains: a vector of floats, in host memory or on a device.
#ifndef PRD_TESTS_INTEGRATION_TOY_MODEL_H_
#define PRD_TESTS_INTEGRATION_TOY_MODEL_H_

#include <prd/session.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

class ToyModel {
 public:
  virtual ~ToyModel() = default;

  // Without `apply`.
  virtual prd::Replica replica() = 0;
  // gradient = parameters - target.
  virtual void ComputeGradient(float target) = 0;
  // parameters -= 0.1 * gradient; on a device, enqueues it. With momentum, of
  // velocity = 0.9 * velocity + gradient.
  virtual void Apply() = 0;
  // As they are after all that was enqueued.
  virtual std::vector<float> Parameters() = 0;
};

enum class Velocity {
  kNone,
  kOwn,    // prd does not know of it
  kState,  // Replica::state
};
std::unique_ptr<ToyModel> MakeHostModel(std::size_t size, float first,
                                        Velocity velocity = Velocity::kNone);
// On `device` ("cuda:N") of the module that PRD_CUDA_MODULE names; null, and why, if there is none.
std::unique_ptr<ToyModel> MakeDeviceModel(const std::string& device, std::size_t size, float first,
                                          std::string* error);

#endif  // PRD_TESTS_INTEGRATION_TOY_MODEL_H_
