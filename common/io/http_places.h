// Which connections an HTTP server keeps: values in, decisions out. A peer is a host, or a user of
// this one.
//
// A newcomer always gets a place. Where there is none, a connection of a peer that has most of them
// ends, so that a peer with few is never in the way of one with many: of these connections the
// oldest that has not brought a whole request, else the oldest that waits for its next request,
// else the oldest whose answer is being sent.
//
// Each has a deadline for what it does: to bring a whole head, counted from its start or from its
// last answer, and to take an answer. Bytes that drip in do not move the deadline.
#ifndef PRD_COMMON_IO_HTTP_PLACES_H_
#define PRD_COMMON_IO_HTTP_PLACES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/time.h"

namespace prd {

class HttpPlaces {
 public:
  struct Options {
    std::size_t in_all = 64;
    std::size_t per_peer = 32;
    DurationNs head = 5 * kSecond;     // for a whole head, from the start or the last answer
    DurationNs answer = 30 * kSecond;  // for an answer, from its request
  };

  explicit HttpPlaces(const Options& options) : options_(options) {}

  // Takes a place. Returns the connection that ends for it, if one does; its place is free.
  // REQUIRES: `fd` has no place.
  std::optional<int> Enter(int fd, std::string peer, Instant now);
  // A whole head has come.
  void Asked(int fd, Instant now);
  void Answered(int fd, Instant now);
  // Its place is free, if it had one.
  void Leave(int fd);

  // Those beyond their deadline; their places are free.
  std::vector<int> TakeLate(Instant now);
  // Frees the place of the oldest connection that has never brought a whole request, of a peer that
  // has most connections.
  std::optional<int> TakeSilent();

  std::optional<Instant> next_deadline() const;
  std::size_t size() const { return places_.size(); }

 private:
  enum class Does : std::uint8_t { kComes, kRests, kTakes };  // who goes first is first
  struct Place {
    int fd = -1;
    std::string peer;
    Does does = Does::kComes;
    Instant until;
  };

  void Set(int fd, Does does, Instant until);
  std::size_t CountOf(const std::string& peer) const;
  // The one that goes first, of those of this peer (null: of all) that do no more than `at_most`.
  std::optional<int> Take(const std::string* peer, Does at_most);

  const Options options_;
  std::vector<Place> places_;  // the oldest first; few
};

}  // namespace prd

#endif  // PRD_COMMON_IO_HTTP_PLACES_H_
