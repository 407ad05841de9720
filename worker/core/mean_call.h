// The mean of numbers over the workers of a job, as one worker asks for it (SessionCore::Mean).
// A call that failed may be made again, as the same call: the controller knows it by its number.
// Pure; a part of SessionCore.
#ifndef PRD_WORKER_CORE_MEAN_CALL_H_
#define PRD_WORKER_CORE_MEAN_CALL_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "prd/status.h"

namespace prd {

class MeanCall {
 public:
  // A new call, or the open one again: then `values` count only if it has no answer.
  void Begin(Incarnation self, std::vector<double> values, bool resumes) {
    if (call_ == 0) {
      call_ = std::max<std::uint64_t>(self + begun_++, 1);
      answered_ = false;
      wrong_.clear();
    }
    if (!answered_) values_ = std::move(values);
    resumes_ = resumes;
    given_ = false;
  }
  // A new incarnation gives its numbers again.
  void OnHello() { given_ = false; }

  // What to send to the controller; nullopt if this incarnation has sent it.
  std::optional<GiveNumbers> Give() {
    if (std::exchange(given_, true)) return std::nullopt;
    return GiveNumbers{.call = call_, .values = values_};
  }
  // Answers to earlier calls are disregarded.
  void OnAnswer(const NumbersMean& mean) {
    if (mean.call != call_ || mean.call == 0) return;
    answered_ = true;
    values_ = mean.values;
    wrong_ = mean.wrong;
  }
  bool answered() const { return answered_; }
  bool resumes() const { return resumes_; }

  // The open call ends with its answer; its numbers are there to be taken. REQUIRES: answered().
  Status End() {
    Forget();
    numbers_ = values_;
    return wrong_.empty() ? Status::Ok() : Status(Code::kInvalidArgument, wrong_);
  }
  std::vector<double> TakeNumbers() { return std::exchange(numbers_, {}); }
  // No call is open.
  void Forget() { call_ = 0; }

 private:
  std::uint64_t call_ = 0;  // 0: none is open
  std::uint64_t begun_ = 0;
  std::vector<double> values_;
  bool resumes_ = true;
  bool given_ = false;  // in this incarnation
  bool answered_ = false;
  std::string wrong_;
  std::vector<double> numbers_;
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_MEAN_CALL_H_
