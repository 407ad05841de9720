// What this worker has trained, what it has told the controller of that, and the job's progress as
// the controller tells it. Pure; a part of SessionCore.
#ifndef PRD_WORKER_CORE_TRAINED_REPORT_H_
#define PRD_WORKER_CORE_TRAINED_REPORT_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "common/base/messages.h"
#include "common/base/time.h"

namespace prd {

class TrainedReport {
 public:
  // A session begins, with what its worker and the job have trained before.
  void Begin(const Trained& own, const Trained& job) {
    own_ = own;
    progress_ = {.trained = job};
    nonfinite_ = 0;
    losses_ = {};
  }

  // A local step has ended, and counts.
  void AddStep(std::int64_t samples) {
    ++own_.steps;
    own_.samples += samples;
  }
  // More samples are in the step before.
  void AddSamples(std::int64_t samples) { own_.samples += samples; }
  void NoteNonfinite() { ++nonfinite_; }
  void NoteLosses(const Losses& losses) { losses_.Add(losses); }
  void NoteMemory(const HeldMemory& memory) { memory_ = memory; }

  // ---- to the controller ----

  // Complete a message: a Hello with the counts, a Ready with all that has not been told.
  void TellIn(Instant now, Hello* hello) {
    hello->own = told_ = own_;
    hello->job_trained = progress_.trained;
    told_at_ = now;
    told_memory_ = {};  // the controller may be another one
  }
  void TellIn(Instant now, Ready* ready) {
    ready->own = told_ = own_;
    ready->nonfinite = std::exchange(nonfinite_, 0);
    ready->losses = std::exchange(losses_, {});
    told_at_ = now;
  }
  // A message with all that has not been told; nullopt if that is nothing.
  std::optional<Progressed> Tell(Instant now) {
    if (own_ == told_ && nonfinite_ == 0 && losses_.count == 0 && !memory_is_news(now)) {
      return std::nullopt;
    }
    told_ = own_;
    told_at_ = now;
    told_memory_ = memory_;
    memory_told_at_ = now;
    return Progressed{.own = own_,
                      .nonfinite = std::exchange(nonfinite_, 0),
                      .losses = std::exchange(losses_, {}),
                      .memory = memory_};
  }
  Instant told_at() const { return told_at_; }
  // What it holds is not what was told, a second ago or earlier.
  bool memory_is_news(Instant now) const {
    return memory_ != told_memory_ && now - memory_told_at_ >= kSecond;
  }

  // ---- from the controller ----

  // `told`: what it knows of this worker. A process that takes another one's place goes on with its
  // count. Less than own() if a step has ended since the Hello.
  void OnWelcome(const Trained& told) {
    own_.steps = std::max(own_.steps, told.steps);
    own_.samples = std::max(own_.samples, told.samples);
    told_ = told;
  }
  void BeginRun() { progress_.done = false; }
  // Messages outside the link's order may come late, so counts never fall.
  void OnProgress(const JobProgress& progress) {
    Trained& trained = progress_.trained;
    trained.steps = std::max(trained.steps, progress.trained.steps);
    trained.samples = std::max(trained.samples, progress.trained.samples);
    if (progress.workers > 0) progress_.workers = progress.workers;  // else it was not told
    progress_.done = progress_.done || progress.done;
  }

  const Trained& own() const { return own_; }  // over all incarnations
  const JobProgress& progress() const { return progress_; }

 private:
  Trained own_;
  JobProgress progress_;
  // What the controller has been told of own_ in this incarnation, and when.
  Trained told_;
  Instant told_at_;
  // Since then: steps that were not all finite, and losses.
  std::uint32_t nonfinite_ = 0;
  Losses losses_;
  HeldMemory memory_, told_memory_;
  Instant memory_told_at_;
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_TRAINED_REPORT_H_
