// Status and Result<T>: how prd reports what went wrong across its boundaries.
//
// Installed with the worker library, so this header includes the standard library only.
// Both types are plain values: safe to copy, and safe to use from several threads when not shared.
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
  kInvalidArgument,  // the caller's input is wrong, and stays wrong
  kNotFound,
  kAlreadyExists,
  kFailedPrecondition,  // right input at the wrong moment
  kUnavailable,         // try again later: a peer or the controller is away
  kDeadlineExceeded,
  kAborted,   // a reduction was called off; nothing was changed
  kDataLoss,  // bytes on disk or from a peer are damaged
  kResourceExhausted,
  kCancelled,  // the user asked for it
  kInternal,   // a bug in prd
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

// A T or the reason why there is none. value() on an error ends the program with that reason: call
// it only after ok(), or where an error is a bug (tests, examples).
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

// Returns early with the status of an expression that failed.
#define PRD_RETURN_IF_ERROR(expr)              \
  do {                                         \
    ::prd::Status prd_status_ = (expr);        \
    if (!prd_status_.ok()) return prd_status_; \
  } while (false)

#endif  // PRD_STATUS_H_
