// The copies of all other replicas that SessionCore::Average takes, one after another. Pure; a part
// of SessionCore.
#ifndef PRD_WORKER_CORE_AVERAGE_COPIES_H_
#define PRD_WORKER_CORE_AVERAGE_COPIES_H_

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "prd/status.h"
#include "worker/core/actions.h"

namespace prd {

class AverageCopies {
 public:
  // Copies the replicas of these members, except this worker's own. Next begins the first copy.
  void Begin(const SharedList<GroupMember>& members, Incarnation self) {
    sources_.clear();
    for (const GroupMember& member : members) {
      if (member.incarnation != self) sources_.push_back(member);
    }
    std::reverse(sources_.begin(), sources_.end());
  }
  // False: there is nothing left to copy.
  bool Next(Actions* out) {
    running_ = !sources_.empty();
    if (running_) out->push_back(CopyForAverage{.source = sources_.back()});
    return running_;
  }
  // The copy that runs has ended. An average leaves out a replica that could not be copied.
  // REQUIRES: running().
  void OnCopied(const Status& status, Actions* out) {
    if (!status.ok()) {
      out->push_back(
          LogLine{"Average leaves out rank " + std::to_string(source()) + ": " + status.message()});
    }
    sources_.pop_back();
  }
  void Cancel(Actions* out) {
    if (std::exchange(running_, false)) out->push_back(CancelCopyForAverage{});
    sources_.clear();
  }

  bool running() const { return running_; }
  Rank source() const { return sources_.back().rank; }  // REQUIRES: running()

 private:
  std::vector<GroupMember> sources_;  // not copied yet, the last one first
  bool running_ = false;
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_AVERAGE_COPIES_H_
