// The C face of a session's calls (prd/prd.h). Nothing is thrown out of here.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "prd/prd.h"
#include "worker/session_calls.h"

namespace {

// Lines of the log, between the session's threads and the caller.
class LogQueue {
 public:
  static constexpr std::size_t kKept = 256;
  void Put(const std::string& line) {
    const std::lock_guard lock(mutex_);
    if (lines_.size() == kKept) lines_.pop_front();
    lines_.push_back(line);
  }
  const char* Take() {
    const std::lock_guard lock(mutex_);
    if (lines_.empty()) return nullptr;
    taken_ = std::move(lines_.front());
    lines_.pop_front();
    return taken_.c_str();
  }

 private:
  std::mutex mutex_;
  std::deque<std::string> lines_;
  std::string taken_;
};

}  // namespace

struct prd_session {
  std::shared_ptr<LogQueue> log;  // null: lines go to stderr
  std::unique_ptr<prd::SessionCalls> calls;
  std::string message;
  std::string engine;
  prd::StepResult result;  // what pointers of prd_step_result point into
  std::vector<std::int32_t> members;
};

namespace prd {
namespace {

constexpr std::size_t kMaxStructBytes = 1 << 16;

thread_local std::string thread_message;
thread_local SessionOptions thread_options;

static_assert(PRD_F32 == static_cast<int>(DType::kF32) && PRD_F64 == static_cast<int>(DType::kF64));
static_assert(PRD_F16 == static_cast<int>(DType::kF16));
static_assert(PRD_BF16 == static_cast<int>(DType::kBF16));
static_assert(PRD_INVALID_ARGUMENT == -static_cast<int>(Code::kInvalidArgument));
static_assert(PRD_CANCELLED == -static_cast<int>(Code::kCancelled));
static_assert(PRD_INTERNAL == -static_cast<int>(Code::kInternal));

Status Wrong(const std::string& what) { return Status(Code::kInvalidArgument, what); }

std::int32_t Say(const Status& status, std::string* message) {
  if (status.ok()) return PRD_DONE;
  *message = status.message();
  return -static_cast<std::int32_t>(status.code());
}

// Short enough to need no memory.
Status NoMemory() { return Status(Code::kResourceExhausted, "no memory"); }

// Runs f(), which gives a Status, and keeps its text there.
template <typename F>
std::int32_t Guarded(std::string* message, F&& f) {
  try {
    return Say(f(), message);
  } catch (const std::bad_alloc&) {
    return Say(NoMemory(), message);
  } catch (const std::exception& error) {
    return Say(Status(Code::kInternal, error.what()), message);
  }
}

// The same inside the session.
template <typename F>
std::int32_t Enter(prd_session* session, const char* name, F&& f) {
  if (session == nullptr) return Say(Wrong("session: found NULL"), &thread_message);
  // A child writes to its own copy.
  return Guarded(&session->message, [&] { return session->calls->entrance().Enter(name, f); });
}

// Begins the call that make() gives.
template <typename F>
std::int32_t Begin(prd_session* session, const char* name, F&& make) {
  return Enter(session, name,
               [&] { return session->calls->call().Begin(name, make(session->calls.get())); });
}

// A struct of the caller's, whatever version of it that is.
template <typename T>
Status CheckSize(const T* what, const char* name) {
  if (what == nullptr) return Wrong(std::string(name) + ": found NULL");
  if (what->size >= sizeof what->size && what->size <= kMaxStructBytes) return Status::Ok();
  return Wrong(std::string(name) + ".size: found " + std::to_string(what->size) +
               ", needed is the size of the struct");
}

// What it lacks is 0.
template <typename T>
Status Read(const T* from, const char* name, T* to) {
  std::memset(to, 0, sizeof *to);
  PRD_RETURN_IF_ERROR(CheckSize(from, name));
  const std::size_t size = from->size;
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  for (std::size_t at = sizeof *to; at < size; ++at) {
    if (bytes[at] == 0) continue;
    return Wrong(std::string(name) + ": has fields that this version of libprd does not know");
  }
  std::memcpy(to, from, std::min(size, sizeof *to));
  return Status::Ok();
}

// As much of it as the caller knows.
template <typename T>
Status Write(T what, const char* name, T* to) {
  PRD_RETURN_IF_ERROR(CheckSize(to, name));
  what.size = to->size;
  std::memcpy(to, &what, std::min<std::size_t>(to->size, sizeof what));
  return Status::Ok();
}

std::string Text(const char* text) { return text == nullptr ? std::string() : std::string(text); }

Status ReadTensors(const prd_tensor* from, std::uint64_t count, const char* name,
                   std::vector<prd_tensor>* to) {
  if (count > (std::uint64_t{1} << 32)) return Wrong(std::string(name) + ": found too many");
  if (count != 0 && from == nullptr) return Wrong(std::string(name) + ": found NULL");
  to->assign(from, from + count);
  for (const prd_tensor& tensor : *to) {
    if (tensor.dtype > PRD_BF16) {
      return Wrong(std::string(name) + "[" + std::to_string(&tensor - to->data()) +
                   "].dtype: found " + std::to_string(tensor.dtype) +
                   ", allowed is PRD_F32, PRD_F64, PRD_F16 or PRD_BF16");
    }
  }
  return Status::Ok();
}

Status ReadTensors(const prd_tensor* from, std::uint64_t count, const char* name,
                   std::vector<Tensor>* to) {
  std::vector<prd_tensor> read;
  PRD_RETURN_IF_ERROR(ReadTensors(from, count, name, &read));
  for (const prd_tensor& tensor : read) {
    to->push_back({tensor.data, tensor.count, static_cast<DType>(tensor.dtype)});
  }
  return Status::Ok();
}

Status ReadReplica(const prd_replica* from, Replica* to) {
  prd_replica read;
  PRD_RETURN_IF_ERROR(Read(from, "prd_replica", &read));
  PRD_RETURN_IF_ERROR(
      ReadTensors(read.parameters, read.parameter_count, "parameters", &to->parameters));
  PRD_RETURN_IF_ERROR(
      ReadTensors(read.gradients, read.gradient_count, "gradients", &to->gradients));
  std::vector<prd_tensor> state;
  PRD_RETURN_IF_ERROR(ReadTensors(read.state, read.state_count, "state", &state));
  for (const prd_tensor& tensor : state) {
    to->state.push_back({.data = tensor.data,
                         .count = tensor.count,
                         .dtype = static_cast<DType>(tensor.dtype),
                         .average = tensor.average != 0});
  }
  to->device = Text(read.device);
  to->stream = read.stream;
  to->trained = {.steps = read.trained_steps, .samples = read.trained_samples};
  to->job_trained = {.steps = read.job_trained_steps, .samples = read.job_trained_samples};
  to->model_tag = Text(read.model_tag);
  to->gradients_later = read.gradients_later != 0;
  to->state_in_apply = read.state_in_apply != 0;
  return Status::Ok();
}

Status ReadOptions(const prd_options* from, SessionOptions* to, bool* queue_log) {
  prd_options read;
  PRD_RETURN_IF_ERROR(Read(from, "prd_options", &read));
  to->controller = Text(read.controller);
  to->job = Text(read.job);
  to->rank = read.rank;
  to->world_size = read.world_size;
  to->address = Text(read.address);
  to->mesh_ports = Text(read.mesh_ports);
  to->announce_address = Text(read.announce_address);
  to->timeout = std::chrono::milliseconds(read.timeout_ms);
  to->start_timeout = std::chrono::milliseconds(read.start_timeout_ms);
  to->reduce_timeout = std::chrono::milliseconds(read.reduce_timeout_ms);
  to->max_communicators = read.max_communicators;
  to->launch = Text(read.launch);
  to->goal_steps = read.goal_steps;
  to->goal_samples = read.goal_samples;
  to->check_tensors = read.check_tensors != 0;
  to->batch = read.batch;
  to->max_share = read.max_share;
  to->accumulates = read.accumulates != 0;
  to->rows_on_host = read.rows_on_host != 0;
  to->curve_server_key = Text(read.curve_server_key);
  to->curve_public_key = Text(read.curve_public_key);
  to->curve_secret_key = Text(read.curve_secret_key);
  *queue_log = read.queue_log != 0;
  return Status::Ok();
}

Status Open(const prd_options* options, prd_session** session) {
  SessionOptions read;
  bool queue_log = false;
  PRD_RETURN_IF_ERROR(ReadOptions(options, &read, &queue_log));
  auto opened = std::make_unique<prd_session>();
  if (queue_log) {
    opened->log = std::make_shared<LogQueue>();
    read.log = [log = opened->log](const std::string& line) { log->Put(line); };
  }
  Result<std::unique_ptr<SessionCalls>> calls = SessionCalls::Create(std::move(read));
  if (!calls.ok()) return calls.status();
  opened->calls = std::move(calls).value();
  *session = opened.release();
  return Status::Ok();
}

Status NotHere() {
  return Status(Code::kFailedPrecondition,
                "session: found NULL, or the session of another process");
}

// Whether the session is there, and this process's.
bool Here(const prd_session* session) { return session != nullptr && !session->calls->forked(); }

}  // namespace
}  // namespace prd

using prd::Begin;
using prd::Enter;
using prd::Here;
using prd::SessionCalls;
using prd::Status;

extern "C" {

uint32_t prd_abi(void) { return std::uint32_t{PRD_ABI_MAJOR} << 16 | PRD_ABI_MINOR; }

const char* prd_code_name(int32_t code) {
  if (code < PRD_INTERNAL) return "unknown";
  return prd::CodeName(static_cast<prd::Code>(code < 0 ? -code : 0));
}

int32_t prd_options_from_environment(prd_options* options) {
  return prd::Guarded(&prd::thread_message, [&] {
    prd::Result<prd::SessionOptions> found = prd::Session::OptionsFromEnvironment();
    if (!found.ok()) return found.status();
    prd::thread_options = std::move(found).value();
    const prd::SessionOptions& from = prd::thread_options;
    prd_options to = {};
    to.rank = from.rank;
    to.world_size = from.world_size;
    to.max_communicators = from.max_communicators;
    to.controller = from.controller.c_str();
    to.job = from.job.c_str();
    to.address = from.address.c_str();
    to.mesh_ports = from.mesh_ports.c_str();
    to.announce_address = from.announce_address.c_str();
    to.launch = from.launch.c_str();
    to.curve_server_key = from.curve_server_key.c_str();
    to.curve_public_key = from.curve_public_key.c_str();
    to.curve_secret_key = from.curve_secret_key.c_str();
    to.timeout_ms = from.timeout.count();
    to.start_timeout_ms = from.start_timeout.count();
    to.reduce_timeout_ms = from.reduce_timeout.count();
    to.goal_steps = from.goal_steps;
    to.goal_samples = from.goal_samples;
    to.check_tensors = from.check_tensors ? 1 : 0;
    to.batch = from.batch;
    to.max_share = from.max_share;
    to.accumulates = from.accumulates ? 1 : 0;
    to.rows_on_host = from.rows_on_host ? 1 : 0;
    return prd::Write(to, "prd_options", options);
  });
}

int32_t prd_open(const prd_options* options, prd_session** session) {
  if (session != nullptr) *session = nullptr;
  return prd::Guarded(&prd::thread_message, [&] {
    return session == nullptr ? prd::Wrong("session: found NULL") : prd::Open(options, session);
  });
}

void prd_close(prd_session* session) {
  if (!Here(session)) return;
  delete session;
}

const char* prd_message(const prd_session* session) {
  return session == nullptr ? prd::thread_message.c_str() : session->message.c_str();
}

int32_t prd_attach(prd_session* session, const prd_replica* replica) {
  return Enter(session, "prd_attach", [&] {
    prd::Replica read;
    PRD_RETURN_IF_ERROR(prd::ReadReplica(replica, &read));
    return session->calls->call().Begin("prd_attach", session->calls->Attach(std::move(read)));
  });
}

int32_t prd_set_gradients(prd_session* session, const prd_tensor* gradients, uint64_t count) {
  return Enter(session, "prd_set_gradients", [&] {
    std::vector<prd::Tensor> read;
    PRD_RETURN_IF_ERROR(prd::ReadTensors(gradients, count, "gradients", &read));
    return session->calls->call().Begin("prd_set_gradients",
                                        session->calls->SetGradients(std::move(read)));
  });
}

int32_t prd_step(prd_session* session, const prd_step_input* input) {
  return Enter(session, "prd_step", [&] {
    prd_step_input read = {};
    if (input != nullptr) PRD_RETURN_IF_ERROR(prd::Read(input, "prd_step_input", &read));
    prd::StepInput step{.samples = read.samples, .discard = read.discard != 0};
    if (read.stream_given != 0) step.stream = read.stream;
    return session->calls->call().Begin("prd_step", session->calls->Step(step));
  });
}

int32_t prd_pause(prd_session* session) {
  return Begin(session, "prd_pause", [](SessionCalls* calls) { return calls->Pause(); });
}

int32_t prd_resume(prd_session* session) {
  return Begin(session, "prd_resume", [](SessionCalls* calls) { return calls->Resume(); });
}

int32_t prd_average(prd_session* session, const prd_tensor* into, uint64_t count) {
  return Enter(session, "prd_average", [&] {
    std::vector<prd::Tensor> read;
    PRD_RETURN_IF_ERROR(prd::ReadTensors(into, count, "into", &read));
    return session->calls->call().Begin("prd_average", session->calls->Average(std::move(read)));
  });
}

int32_t prd_finish(prd_session* session, int32_t wait) {
  return Begin(session, "prd_finish",
               [wait](SessionCalls* calls) { return calls->Finish({.wait = wait != 0}); });
}

int32_t prd_leave(prd_session* session, const char* reason) {
  return Enter(session, "prd_leave",
               [&] { return session->calls->BeginLeave("prd_leave", prd::Text(reason)); });
}

int32_t prd_next(prd_session* session, int32_t wait_ms) {
  using Wants = prd::CallInProgress::Wants;
  Wants wants = Wants::kDone;
  const std::int32_t failed = Enter(session, "prd_next", [&] {
    if (!session->calls->call().runs()) return Status::Ok();
    const auto wait =
        std::min(std::chrono::milliseconds(wait_ms < 0 ? -1 : wait_ms), prd::kLongestTimeout);
    wants = session->calls->call().Next(wait);
    return wants == Wants::kDone ? session->calls->call().status() : Status::Ok();
  });
  if (failed < 0 || wants == Wants::kDone) return failed;
  return wants == Wants::kApply ? PRD_APPLY : PRD_PENDING;
}

int32_t prd_applied(prd_session* session, const char* failed) {
  return Enter(session, "prd_applied", [&] {
    if (failed != nullptr && *failed == '\0') failed = "failed";
    return session->calls->call().Applied(prd::Text(failed));
  });
}

int32_t prd_in_call(const prd_session* session) {
  return Here(session) && session->calls->call().runs() ? 1 : 0;
}

int32_t prd_get_step_result(prd_session* session, prd_step_result* result) {
  return Enter(session, "prd_get_step_result", [&] {
    session->result = session->calls->result();
    const prd::StepResult& from = session->result;
    session->members.assign(from.members.begin(), from.members.end());
    prd_step_result to = {};
    to.done = from.done ? 1 : 0;
    to.steps = from.steps;
    to.iteration = from.iteration;
    to.group = from.group;
    to.members = session->members.data();
    to.weights = from.weights.data();
    to.member_count = static_cast<std::uint32_t>(from.members.size());
    to.attempts = from.attempts;
    to.adopted = from.adopted ? 1 : 0;
    to.included = from.included ? 1 : 0;
    to.rounds = from.rounds;
    to.local_steps = from.local_steps;
    to.reduced_bytes = from.reduced_bytes;
    to.sent_bytes = from.sent_bytes;
    to.computed_ns = from.computed.count();
    to.waited_ns = from.waited.count();
    to.reduced_ns = from.reduced.count();
    to.reason = from.reason.c_str();
    to.partial = from.partial ? 1 : 0;
    return prd::Write(to, "prd_step_result", result);
  });
}

const char* prd_log_line(prd_session* session) {
  return Here(session) && session->log != nullptr ? session->log->Take() : nullptr;
}

void prd_leave_soon(prd_session* session, const char* reason, int64_t grace_ms) {
  if (!Here(session)) return;
  session->calls->any_thread().LeaveSoon(reason == nullptr ? "" : reason,
                                         std::chrono::milliseconds(grace_ms));
}

void prd_tell_loss(prd_session* session, double loss) {
  if (Here(session)) session->calls->any_thread().TellLoss(loss);
}

int32_t prd_mean(prd_session* session, const double* values, uint64_t count) {
  return prd::Enter(session, "prd_mean", [&] {
    if (values == nullptr && count > 0) {
      return prd::Status(prd::Code::kInvalidArgument, "values: found NULL, needed are the numbers");
    }
    if (count > prd::kMaxNumbers) {
      return prd::Status(prd::Code::kInvalidArgument, "values: found " + std::to_string(count) +
                                                          ", allowed are 1 to " +
                                                          std::to_string(prd::kMaxNumbers));
    }
    std::vector<double> read(values, values + count);
    return session->calls->call().Begin("prd_mean", session->calls->Mean(std::move(read)));
  });
}

int32_t prd_get_mean(prd_session* session, double* mean, uint64_t count) {
  return prd::Enter(session, "prd_get_mean", [&] {
    const std::vector<double>& from = session->calls->mean();
    if (mean == nullptr || count != from.size()) {
      return prd::Status(prd::Code::kInvalidArgument,
                         "mean: found room for " + std::to_string(mean == nullptr ? 0 : count) +
                             " numbers, needed is room for " + std::to_string(from.size()));
    }
    std::copy(from.begin(), from.end(), mean);
    return prd::Status::Ok();
  });
}

int32_t prd_stop(prd_session* session, const char* reason) {
  return prd::Guarded(&prd::thread_message, [&] {
    if (!Here(session)) return prd::NotHere();
    return session->calls->any_thread().Stop(reason == nullptr ? "" : reason);
  });
}

double prd_clock(const prd_session* session) {
  return Here(session) ? session->calls->any_thread().clock() : 0;
}

void prd_cancel(prd_session* session) {
  if (Here(session)) session->calls->any_thread().Cancel();
}

int32_t prd_interrupted(const prd_session* session) {
  return Here(session) && session->calls->any_thread().interrupted() ? 1 : 0;
}

int32_t prd_get_progress(const prd_session* session, prd_progress* progress) {
  return prd::Guarded(&prd::thread_message, [&] {
    if (!Here(session)) return prd::NotHere();
    const prd::Progress from = session->calls->any_thread().progress();
    prd_progress to = {};
    to.workers = from.workers;
    to.steps = from.steps;
    to.samples = from.samples;
    to.goal_steps = from.goal_steps;
    to.goal_samples = from.goal_samples;
    to.own_steps = from.own_steps;
    to.own_samples = from.own_samples;
    to.done = from.done ? 1 : 0;
    return prd::Write(to, "prd_progress", progress);
  });
}

int32_t prd_get_share(const prd_session* session, int32_t ahead, prd_batch_share* share) {
  return prd::Guarded(&prd::thread_message, [&] {
    if (!Here(session)) return prd::NotHere();
    const prd::BatchShare from = session->calls->any_thread().share(ahead);
    prd_batch_share to = {};
    to.step = from.step;
    to.first = from.first;
    to.samples = from.samples;
    to.batch = from.batch;
    return prd::Write(to, "prd_batch_share", share);
  });
}

int32_t prd_get_group_transports(const prd_session* session, prd_group_transports* transports) {
  return prd::Guarded(&prd::thread_message, [&] {
    if (!Here(session)) return prd::NotHere();
    const prd::GroupTransports from = session->calls->any_thread().group_transports();
    prd_group_transports to = {};
    to.collective = from.collective;
    to.exchange = from.exchange;
    to.staged = from.staged;
    return prd::Write(to, "prd_group_transports", transports);
  });
}

int32_t prd_get_memory(const prd_session* session, uint64_t index, prd_memory* memory) {
  return prd::Guarded(&prd::thread_message, [&] {
    if (!Here(session)) return prd::NotHere();
    const std::vector<prd::MemoryHeld> uses = session->calls->any_thread().memory();
    if (index >= uses.size()) {
      return prd::Status(prd::Code::kNotFound, "index: found " + std::to_string(index) +
                                                   ", there are " + std::to_string(uses.size()));
    }
    const prd::MemoryHeld& from = uses[index];
    prd_memory to = {};
    to.use = prd::MemoryUseName(from.use);
    to.host = from.host;
    to.host_peak = from.host_peak;
    to.device = from.device;
    to.device_peak = from.device_peak;
    return prd::Write(to, "prd_memory", memory);
  });
}

int32_t prd_rank(const prd_session* session) {
  return Here(session) ? session->calls->any_thread().rank() : -1;
}
int32_t prd_workers(const prd_session* session) {
  return Here(session) ? session->calls->any_thread().workers() : 0;
}
int64_t prd_iteration(const prd_session* session) {
  return Here(session) ? session->calls->any_thread().iteration() : 0;
}
const char* prd_engine(prd_session* session) {
  if (!Here(session)) return "";
  session->engine = session->calls->any_thread().engine();
  return session->engine.c_str();
}
int32_t prd_needs_gradients(const prd_session* session) {
  return Here(session) && session->calls->any_thread().needs_gradients() ? 1 : 0;
}

}  // extern "C"
