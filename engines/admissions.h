// What all workers of a run must have in common to be admitted, and the newest that were not.
//
// Pure; not thread safe.
#ifndef PRD_ENGINES_ADMISSIONS_H_
#define PRD_ENGINES_ADMISSIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/archive.h"
#include "common/base/history.h"
#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/time.h"
#include "engines/job_spec.h"

namespace prd {

// A worker that was not admitted.
struct RefusedHello {
  HelloRefused hello;
  Instant at;
  void Archive(StateArchive& ar) {
    ar(hello.rank, hello.host_name, hello.pid, hello.code, hello.reason, at);
  }
};

class Admissions {
 public:
  // Continues what the workers of the run before had in common.
  void TakeOver(const FormerRun& former);
  // This worker is admitted under the rank. Refusals of the rank, and of its process, are
  // forgotten.
  void Admit(Rank rank, const Hello& hello);
  void Refuse(Instant now, const HelloRefused& hello);

  // What is wrong with a Hello whatever the state of the run; nullopt: nothing.
  static std::optional<Refused> CheckForm(const JobSpec& spec, const WorkerEnvelope& envelope,
                                          const Hello& hello);
  // Workers of two launches of the training program are never in one run. `holder`: a worker that
  // is there, in words; may be empty.
  std::optional<Refused> CheckLaunch(const JobSpec& spec, const Hello& hello,
                                     const std::string& holder) const;
  std::optional<Refused> CheckModel(const Hello& hello) const;

  const std::string& launch() const { return launch_; }     // empty: no worker has told one
  std::uint64_t model_hash() const { return model_hash_; }  // 0: not known yet
  const std::vector<RefusedHello>& refusals() const { return refusals_; }  // the newest last
  // "; refused: rank 2 (pid 42 on host): REASON; and 3 more". Empty: none was refused.
  std::string RefusalWords() const;

  void Archive(StateArchive& ar) { ar(launch_, refusals_, model_hash_); }

 private:
  std::string launch_;  // the first worker's that told one
  std::vector<RefusedHello> refusals_;
  std::uint64_t model_hash_ = 0;  // the first worker's
};

}  // namespace prd

#endif  // PRD_ENGINES_ADMISSIONS_H_
