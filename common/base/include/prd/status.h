// Status and Result<T>: how a call of prd reports an error.
//
// Both types are plain values. They may be copied, and each copy may be used on another thread.
// This header is installed with the worker library and includes the standard library only.
#ifndef PRD_STATUS_H_
#define PRD_STATUS_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

namespace prd {

enum class Code : std::uint8_t {
  kOk = 0,
  kInvalidArgument,     // the caller's input is wrong; the same call fails again
  kNotFound,            // there is no job, run or file of this name
  kAlreadyExists,       // there is one of this name already
  kFailedPrecondition,  // the call is not allowed in the present state
  kUnavailable,         // a peer, the controller or a device is away; the call may succeed later
  kDeadlineExceeded,    // it took longer than its time limit
  kAborted,             // a peer or the controller called it off
  kDataLoss,            // bytes on disk, or from a peer or the controller, are damaged or wrong
  kResourceExhausted,   // no memory, file descriptors or room for a worker is left
  kCancelled,           // the caller cancelled it
  kInternal,            // a bug in prd, or an error of CUDA or NCCL
};

// The name of a code as it appears in messages and logs, e.g. "invalid argument".
inline const char* CodeName(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kNotFound:
      return "not found";
    case Code::kAlreadyExists:
      return "already exists";
    case Code::kFailedPrecondition:
      return "failed precondition";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kDeadlineExceeded:
      return "deadline exceeded";
    case Code::kAborted:
      return "aborted";
    case Code::kDataLoss:
      return "data loss";
    case Code::kResourceExhausted:
      return "resource exhausted";
    case Code::kCancelled:
      return "cancelled";
    case Code::kInternal:
      return "internal error";
  }
  return "unknown";
}

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return {}; }

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  // "invalid argument: group_size: found 1, allowed is 2 or more", or "ok".
  std::string ToString() const {
    return ok() ? "ok" : std::string(CodeName(code_)) + ": " + message_;
  }

  friend bool operator==(const Status&, const Status&) = default;

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// A T, or the Status that says why there is none. value(), * and -> on an error print that Status
// and abort the program: use them after ok(), or where an error is a bug (tests, examples).
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit on purpose
    if (status_.ok()) status_ = Status(Code::kInternal, "a Result was made of an ok Status");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & { return Checked(), *value_; }
  const T& value() const& { return Checked(), *value_; }
  T&& value() && { return Checked(), std::move(*value_); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void Checked() const {
    if (value_.has_value()) return;
    std::fprintf(stderr, "prd: value() of a failed Result: %s\n", status_.ToString().c_str());
    std::abort();
  }

  std::optional<T> value_;
  Status status_;
};

}  // namespace prd

// Evaluates an expression that gives a Status. If the Status is not ok, the function returns it.
#define PRD_RETURN_IF_ERROR(expr)              \
  do {                                         \
    ::prd::Status prd_status_ = (expr);        \
    if (!prd_status_.ok()) return prd_status_; \
  } while (false)

#endif  // PRD_STATUS_H_
