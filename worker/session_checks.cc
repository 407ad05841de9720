#include "worker/session_checks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/io/curve.h"
#include "worker/memory/layout.h"

namespace prd {
namespace {

constexpr std::size_t kMaxNameBytes = 256;
constexpr std::size_t kMaxJobBytes = 200;  // as the daemon allows

bool Printable(char c) { return c >= 0x20 && c < 0x7f; }

bool IsTimeout(std::chrono::milliseconds time) {
  return time.count() >= 0 && time <= kLongestTimeout;
}
std::string Allowed(const char* zero) {
  return std::string(", allowed is 0 (") + zero + ") to " + std::to_string(kLongestTimeout.count());
}

Status Wrong(const std::string& what) { return Status(Code::kInvalidArgument, what); }

// REQUIRES: its dtype is one of DType.
std::string Shape(const Tensor& tensor) {
  constexpr const char* kNames[] = {"f32", "f64", "f16", "bf16"};
  return std::to_string(tensor.count) + " of " + kNames[static_cast<std::size_t>(tensor.dtype)];
}

// Empty: not given.
Status SettleKey(const char* name, std::string* key) {
  return key->empty() ? Status::Ok() : TakeKey(name, key);
}

template <typename T>  // Tensor, StateTensor
Status CheckEach(const std::vector<T>& tensors, const char* which) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const T& tensor = tensors[i];
    const std::size_t size = DTypeSize(tensor.dtype);
    const std::string name = std::string(which) + "[" + std::to_string(i) + "]";
    if (size == 0) return Wrong(name + ": its dtype is none of DType");
    if (tensor.count > (std::size_t{1} << 48) / size) return Wrong(name + ": over 2^48 bytes");
    if (tensor.count != 0 && tensor.data == nullptr)
      return Wrong(name + ": data is null, but count is not 0");
    if (reinterpret_cast<std::uintptr_t>(tensor.data) % size != 0) {
      return Wrong(name + ": data is not aligned to the element size");
    }
  }
  return Status::Ok();
}

// What a replica has twice in memory would be averaged twice.
class Places {
 public:
  template <typename T>  // Tensor, StateTensor
  void Add(const std::vector<T>& tensors, const char* which) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto begin = reinterpret_cast<std::uintptr_t>(tensors[i].data);
      const std::uintptr_t end = begin + tensors[i].count * DTypeSize(tensors[i].dtype);
      if (begin != end) places_.push_back({begin, end, which, i});
    }
  }
  Status Check() {
    std::sort(places_.begin(), places_.end(),
              [](const Place& a, const Place& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < places_.size(); ++i) {
      if (places_[i].begin >= places_[i - 1].end) continue;
      return Wrong(Name(places_[i]) + ": found memory of " + Name(places_[i - 1]) +
                   " in it, needed is memory of its own");
    }
    return Status::Ok();
  }

 private:
  struct Place {
    std::uintptr_t begin, end;
    const char* which;
    std::size_t index;
  };
  static std::string Name(const Place& place) {
    return std::string(place.which) + "[" + std::to_string(place.index) + "]";
  }

  std::vector<Place> places_;
};

}  // namespace

Status CheckOptions(const SessionOptions& options) {
  const std::string& job = options.job;
  if (job.empty() || job.size() > kMaxJobBytes || !std::all_of(job.begin(), job.end(), Printable)) {
    return Wrong("job: found a name of " + std::to_string(job.size()) +
                 " bytes, allowed are 1 to 200 printable ASCII characters (PRD_JOB)");
  }
  if (options.controller.rfind("tcp://", 0) != 0 && options.controller.rfind("ipc://", 0) != 0) {
    return Wrong("controller: found \"" + options.controller +
                 "\", needed is tcp://HOST:PORT or ipc://PATH (PRD_CONTROLLER)");
  }
  if (options.rank < -1) {
    return Wrong("rank: found " + std::to_string(options.rank) +
                 ", allowed is -1 (the controller gives one) or more (PRD_RANK)");
  }
  if (options.world_size < 0) {
    return Wrong("world_size: found " + std::to_string(options.world_size) +
                 ", allowed is 0 (the job's config says) or more (PRD_WORLD_SIZE)");
  }
  if (!IsTimeout(options.timeout)) {
    return Wrong("timeout: found " + std::to_string(options.timeout.count()) + " ms" +
                 Allowed("for ever") + " (PRD_TIMEOUT_MS)");
  }
  if (!IsTimeout(options.start_timeout)) {
    return Wrong("start_timeout: found " + std::to_string(options.start_timeout.count()) + " ms" +
                 Allowed("as timeout") + " (PRD_START_TIMEOUT_MS)");
  }
  if (options.launch.size() > kMaxNameBytes) {
    return Wrong("launch: found " + std::to_string(options.launch.size()) +
                 " bytes, allowed is 0 to 256 (PRD_LAUNCH)");
  }
  if (options.goal_steps < 0 || options.goal_samples < 0) {
    return Wrong("goal_steps, goal_samples: found " + std::to_string(options.goal_steps) + " and " +
                 std::to_string(options.goal_samples) +
                 ", allowed is 0 (no goal) or more (PRD_GOAL_STEPS, PRD_GOAL_SAMPLES)");
  }
  const std::int64_t samples = std::max(options.batch, options.max_share);
  if (options.batch < 0 || options.max_share < 0 || samples > kMaxBatch) {
    return Wrong("batch, max_share: found " + std::to_string(options.batch) + " and " +
                 std::to_string(options.max_share) + ", allowed are 0 (none) to " +
                 std::to_string(kMaxBatch) + " samples (PRD_BATCH, PRD_MAX_SHARE)");
  }
  if (!IsTimeout(options.reduce_timeout)) {
    return Wrong("reduce_timeout: found " + std::to_string(options.reduce_timeout.count()) + " ms" +
                 Allowed("the job's lease") + " (PRD_REDUCE_TIMEOUT_MS)");
  }
  if (options.max_communicators < 1) {
    return Wrong("max_communicators: found " + std::to_string(options.max_communicators) +
                 ", allowed is 1 or more (PRD_MAX_COMMUNICATORS)");
  }
  return Status::Ok();
}

Status SettleKeys(SessionOptions* options) {
  std::string& server_key = options->curve_server_key;
  std::string& public_key = options->curve_public_key;
  std::string& secret_key = options->curve_secret_key;
  PRD_RETURN_IF_ERROR(SettleKey("curve_server_key (PRD_CURVE_SERVER_KEY)", &server_key));
  PRD_RETURN_IF_ERROR(SettleKey("curve_public_key (PRD_CURVE_PUBLIC_KEY)", &public_key));
  PRD_RETURN_IF_ERROR(SettleKey("curve_secret_key (PRD_CURVE_SECRET_KEY)", &secret_key));
  if (server_key.empty() && public_key.empty() && secret_key.empty()) return Status::Ok();
  if (server_key.empty()) {
    return Wrong(
        "curve_server_key: found none beside another key, needed is the controller's public key "
        "(PRD_CURVE_SERVER_KEY)");
  }
  if (secret_key.empty()) {
    return Wrong(
        "curve_secret_key: found none beside curve_server_key, needed is this worker's secret key "
        "(PRD_CURVE_SECRET_KEY_FILE)");
  }
  Result<CurveKeys> keys = CurveKeysOf(secret_key);
  if (!keys.ok()) return keys.status();
  if (!public_key.empty() && public_key != keys->public_key) {
    return Wrong("curve_public_key: found another key than " + keys->public_key +
                 ", which belongs to curve_secret_key; it may be left out (PRD_CURVE_PUBLIC_KEY; "
                 "PRD_CURVE_SECRET_KEY_FILE or PRD_CURVE_SECRET_KEY)");
  }
  public_key = keys->public_key;
  return Status::Ok();
}

Status CheckTensors(const std::vector<Tensor>& tensors, const char* which) {
  return CheckEach(tensors, which);
}

Status CheckApart(const Replica& replica, const std::vector<Tensor>& gradients) {
  Places places;
  places.Add(replica.parameters, "parameters");
  places.Add(gradients, "gradients");
  places.Add(replica.state, "state");
  return places.Check();
}

bool SameShapes(const std::vector<Tensor>& one, const std::vector<Tensor>& other) {
  return std::equal(
      one.begin(), one.end(), other.begin(), other.end(),
      [](const Tensor& a, const Tensor& b) { return a.count == b.count && a.dtype == b.dtype; });
}

Status CheckGradients(const std::vector<Tensor>& parameters, const std::vector<Tensor>& gradients) {
  PRD_RETURN_IF_ERROR(CheckTensors(gradients, "gradients"));
  if (gradients.size() != parameters.size()) {
    return Wrong("gradients: found " + std::to_string(gradients.size()) +
                 " tensors; needed are as many as the parameters (" +
                 std::to_string(parameters.size()) + "), of their sizes and dtypes");
  }
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const Tensor& found = gradients[i];
    const Tensor& needed = parameters[i];
    if (found.count == needed.count && found.dtype == needed.dtype) continue;
    const std::string at = "[" + std::to_string(i) + "]";
    return Wrong("gradients" + at + ": found " + Shape(found) + ", needed are " + Shape(needed) +
                 ", as parameters" + at + " has");
  }
  return Status::Ok();
}

Status CheckReplica(const Replica& replica) {
  PRD_RETURN_IF_ERROR(CheckTensors(replica.parameters, "parameters"));
  PRD_RETURN_IF_ERROR(CheckEach(replica.state, "state"));
  if (!replica.gradients.empty()) {
    PRD_RETURN_IF_ERROR(CheckGradients(replica.parameters, replica.gradients));
  }
  for (const TrainingCount& count : {replica.trained, replica.job_trained}) {
    if (count.steps < 0 || count.samples < 0) {
      return Wrong("trained, job_trained: found " + std::to_string(count.steps) + " steps and " +
                   std::to_string(count.samples) + " samples, allowed is 0 or more");
    }
  }
  if (Layout(replica.parameters).bytes() == 0)
    return Wrong("parameters: found no elements, needed is one at least");
  return CheckApart(replica, replica.gradients);
}

}  // namespace prd
