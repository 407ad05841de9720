// What happens next, in virtual time. Events at one instant come in the order in which they were
// pushed, so a run is a function of its seed.
#ifndef PRD_TOOLS_SIM_EVENT_QUEUE_H_
#define PRD_TOOLS_SIM_EVENT_QUEUE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/time.h"

namespace prd::sim {

enum class EventKind : std::uint8_t {
  kToController,      // a worker's message arrives; what = its place in the cluster's mail
  kToWorker,          // the controller's message arrives at worker `who`
  kTurn,              // the controller takes its inbox, then Tick and Flush
  kControllerStarts,  // ... after a crash
  kFault,             // the controller may crash now
  kWorkerWakes,       // a deadline of the session core, `what` ns
  kStepDone,          // the local step of `what`'th phase is computed
  kPoll,              // worker `who` looks whether its step `what` is to be cut short
  kReduced,           // the reduction `what` is through
  kReduceFails,       // the reduction `what` fails on worker `who`
  kFetched,           // worker `who` has what it asked for, if its source still lives
  kWorkerStarts,
  kEvaluate,
  kNote,  // a note arrives at worker `who`; this and the next two: `what` = its place in the mail
  kRequest,  // a peer's pull does
  kPulled,   // what it pulled does, or that it failed
  kStops,    // the user of worker `who` cancels the call of step `what`
  kNotice,   // process `what` of worker `who` is told to leave
  kProbe,    // worker `who` asks those again that it probes
  kUnheard,  // worker `who` has not heard of a peer for a lease; `what` = its place in the mail
  kSilent,   // worker `who` has not heard of the others in the reduction `what` for a lease
  kResumes,  // the pause `what` of worker `who` is over
  kConnectionEnds,  // the controller hears of it; `what`: its number
  kConnected,       // worker `who` has the connection `what` to the controller
  kCopied,          // worker `who` has a copy of what it averages, if its source still lives
};

struct SimEvent {
  Instant at;
  std::uint64_t order = 0;
  std::uint64_t what = 0;
  std::uint32_t who = 0;
  EventKind kind = EventKind::kTurn;
};

// A 4-ary heap: half the levels of a binary one, and a node's children lie side by side.
class EventQueue {
 public:
  void Push(Instant at, EventKind kind, std::uint32_t who = 0, std::uint64_t what = 0) {
    heap_.push_back({.at = at, .order = order_++, .what = what, .who = who, .kind = kind});
    std::size_t place = heap_.size() - 1;
    const SimEvent event = heap_[place];
    while (place > 0) {
      const std::size_t parent = (place - 1) / 4;
      if (!Before(event, heap_[parent])) break;
      heap_[place] = heap_[parent];
      place = parent;
    }
    heap_[place] = event;
  }

  // REQUIRES: !empty().
  SimEvent Pop() {
    const SimEvent top = heap_.front();
    const SimEvent last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) Sink(last);
    return top;
  }

  bool empty() const { return heap_.empty(); }
  // When the next event is. REQUIRES: !empty().
  Instant at() const { return heap_.front().at; }
  std::size_t size() const { return heap_.size(); }

 private:
  static bool Before(const SimEvent& a, const SimEvent& b) {
    return a.at.ns != b.at.ns ? a.at.ns < b.at.ns : a.order < b.order;
  }

  void Sink(const SimEvent& event) {
    std::size_t place = 0;
    while (true) {
      const std::size_t first = 4 * place + 1;
      if (first >= heap_.size()) break;
      std::size_t least = first;
      for (std::size_t child = first + 1; child < first + 4 && child < heap_.size(); ++child) {
        if (Before(heap_[child], heap_[least])) least = child;
      }
      if (!Before(heap_[least], event)) break;
      heap_[place] = heap_[least];
      place = least;
    }
    heap_[place] = event;
  }

  std::vector<SimEvent> heap_;
  std::uint64_t order_ = 0;
};

// Values with a number each, which is used again once taken.
template <typename T>
class Mail {
 public:
  std::uint64_t Put(T value) {
    if (free_.empty()) {
      values_.push_back(std::move(value));
      return values_.size() - 1;
    }
    const std::uint64_t place = free_.back();
    free_.pop_back();
    values_[place] = std::move(value);
    return place;
  }
  T Take(std::uint64_t place) {
    free_.push_back(place);
    return std::move(values_[place]);
  }

 private:
  std::vector<T> values_;
  std::vector<std::uint64_t> free_;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_EVENT_QUEUE_H_
