// Operations that use the same bytes, one of them writing, in an order that nothing ensures: by
// vector clocks, so whether or not it went well this time (Lamport, CACM 1978; FastTrack, Flanagan
// and Freund, PLDI 2009).
//
// What orders operations: their stream; an event that the later one's stream waited for; and the
// processor, if it saw the earlier one's event done before it asked for the later one. What else
// the processor may know of, a word in pinned memory say, is not seen.
//
// Not thread safe: StandInDevice's mutex keeps calls apart.
#ifndef PRD_TESTS_STANDIN_RACES_H_
#define PRD_TESTS_STANDIN_RACES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace prd::testing {

// Bytes that an operation uses, inside one allocation.
struct Use {
  const void* data = nullptr;
  std::size_t bytes = 0;
  bool writes = false;
};

class Races {
 public:
  using Clock = std::vector<std::uint64_t>;  // by stream: its operations that came before

  // An operation is asked for. Returns what it races with, in words; empty: nothing.
  std::string Enqueued(std::size_t stream, const std::string& what, const std::vector<Use>& uses) {
    Clock& clock = ClockOf(stream);
    Join(&clock, host_);
    ++clock[stream];
    std::string found;
    for (const Use& use : uses) {
      const std::string with = Find(use, clock);
      if (found.empty() && !with.empty()) found = what + " and " + with;
    }
    for (const Use& use : uses) past_.push_back({what, use, stream, clock[stream]});
    while (past_.size() > kPast) past_.pop_front();
    return found;
  }
  Clock Recorded(std::size_t stream) { return ClockOf(stream); }
  void Waited(std::size_t stream, const Clock& clock) { Join(&ClockOf(stream), clock); }
  // The processor saw that it is done.
  void Seen(const Clock& clock) {
    Join(&host_, clock);
    std::erase_if(past_, [this](const Past& past) { return Before(past, host_); });
  }
  // Its bytes may be another allocation's.
  void Freed(const void* data, std::size_t bytes) {
    std::erase_if(past_, [&](const Past& past) { return Overlap(past.use, {data, bytes, true}); });
  }

 private:
  static constexpr std::size_t kPast = 2048;
  struct Past {
    std::string what;
    Use use;
    std::size_t stream = 0;
    std::uint64_t number = 0;
  };

  Clock& ClockOf(std::size_t stream) {
    if (clocks_.size() <= stream) clocks_.resize(stream + 1);
    if (clocks_[stream].size() <= stream) clocks_[stream].resize(stream + 1);
    return clocks_[stream];
  }
  static void Join(Clock* clock, const Clock& other) {
    if (clock->size() < other.size()) clock->resize(other.size());
    for (std::size_t i = 0; i < other.size(); ++i) (*clock)[i] = std::max((*clock)[i], other[i]);
  }
  static bool Before(const Past& past, const Clock& clock) {
    return past.stream < clock.size() && past.number <= clock[past.stream];
  }
  static bool Overlap(const Use& a, const Use& b) {
    const auto* x = static_cast<const std::byte*>(a.data);
    const auto* y = static_cast<const std::byte*>(b.data);
    return x < y + b.bytes && y < x + a.bytes;
  }
  std::string Find(const Use& use, const Clock& clock) const {
    for (const Past& past : past_) {
      const bool matters = past.use.writes || use.writes;
      if (matters && Overlap(past.use, use) && !Before(past, clock)) return past.what;
    }
    return "";
  }

  std::vector<Clock> clocks_;
  Clock host_;
  std::deque<Past> past_;
};

}  // namespace prd::testing

#endif  // PRD_TESTS_STANDIN_RACES_H_
