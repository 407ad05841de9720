// Which runs of a history are kept, and which goes next. Pure: it knows runs, their owners and
// their bytes, and touches no file.
//
// The owner of a run is the identity whose worker began it; "" is the user that prd runs as, and
// whoever came over tcp without keys. Bounds hold per job name, per owner, and in all. Over a bound
// in all, the owner that has most gives up its oldest ended run. So nobody can push out the runs of
// somebody else who has less.
#ifndef PRD_SERVER_HISTORY_RETENTION_H_
#define PRD_SERVER_HISTORY_RETENTION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/ids.h"

namespace prd::history {

struct Bounds {
  std::uint64_t runs_per_job = 1000;  // ended, of one name; >= 1
  std::uint64_t runs = 100'000;       // ended, in all
  // Bytes of all runs, also those that go on. As recorded: compression makes less of it on the
  // disk.
  std::uint64_t bytes = std::uint64_t{8} << 30;
  struct Share {  // of one owner; 0: no bound of its own
    std::uint64_t runs = 0;
    std::uint64_t bytes = 0;
    friend bool operator==(const Share&, const Share&) = default;
  };
  std::map<std::string, Share, std::less<>> owners;
};

class Retention {
 public:
  explicit Retention(Bounds bounds) : bounds_(std::move(bounds)) {}
  void SetBounds(Bounds bounds) { bounds_ = std::move(bounds); }

  // A run that goes on, and has so many bytes. REQUIRES: it is not there.
  void Begin(RunId run, const std::string& job, const std::string& owner, std::uint64_t bytes);
  // These six do nothing if the run is not there.
  void Grow(RunId run, std::uint64_t bytes);
  void Shrink(RunId run, std::uint64_t bytes);
  // So many of its bytes can go while it goes on: what is behind its last snapshot but one.
  void MayTrim(RunId run, std::uint64_t bytes);
  void Own(RunId run, const std::string& owner);
  void End(RunId run);
  void Remove(RunId run);

  struct Verdict {
    RunId run = kNoRun;
    bool whole = true;  // else what can go of a run that goes on
    std::string reason;
    friend bool operator==(const Verdict&, const Verdict&) = default;
  };
  // What goes next; nullopt: all that is there may stay. Of an owner that is over a bound of bytes
  // that is its oldest ended run; or of a run that goes on what can go, if that is more than half
  // of what the owner has, or no run of its has ended.
  std::optional<Verdict> Next() const;

  struct Use {  // of an owner
    std::uint64_t ended = 0;
    std::uint64_t bytes = 0;  // of all its runs
  };
  std::vector<std::pair<std::string, Use>> Owners() const;  // by name
  Use total() const { return total_; }
  bool Has(RunId run) const { return runs_.contains(run); }
  std::uint64_t BytesOf(RunId run) const;  // 0: it is not there

 private:
  struct Owner {
    std::size_t runs = 0;
    std::uint64_t bytes = 0;
    std::set<RunId> ended;
    std::set<std::pair<std::uint64_t, RunId>> trimmable;  // by MayTrim's bytes; none with 0
  };
  struct JobRuns {
    std::size_t runs = 0;
    std::set<RunId> ended;
  };
  // These keep their places.
  using OwnerMap = std::map<std::string, Owner, std::less<>>;
  using JobMap = std::map<std::string, JobRuns, std::less<>>;
  struct Run {
    OwnerMap::iterator owner;
    JobMap::iterator job;
    std::uint64_t bytes = 0;
    std::uint64_t trimmable = 0;
    bool ended = false;
  };
  static std::optional<Verdict> BytesFrom(const Owner& owner);
  void Count(JobMap::iterator job, RunId run, bool ended);
  std::uint64_t FairBytes() const;

  Bounds bounds_;
  std::map<RunId, Run> runs_;
  OwnerMap owners_;
  JobMap jobs_;
  std::set<std::pair<std::size_t, std::string_view>> by_count_;  // jobs, by ended runs; none with 0
  Use total_;
};

}  // namespace prd::history

#endif  // PRD_SERVER_HISTORY_RETENTION_H_
