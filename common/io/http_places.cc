#include "common/io/http_places.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace prd {

std::optional<int> HttpPlaces::Enter(int fd, std::string peer, Instant now) {
  PRD_CHECK(std::none_of(places_.begin(), places_.end(),
                         [fd](const Place& place) { return place.fd == fd; }));
  std::optional<int> ends;
  if (CountOf(peer) >= options_.per_peer) {
    ends = Take(&peer, Does::kTakes);
  } else if (places_.size() >= options_.in_all) {
    ends = Take(nullptr, Does::kTakes);
  }
  places_.push_back({.fd = fd, .peer = std::move(peer), .until = now + options_.head});
  return ends;
}

void HttpPlaces::Asked(int fd, Instant now) { Set(fd, Does::kTakes, now + options_.answer); }

void HttpPlaces::Answered(int fd, Instant now) { Set(fd, Does::kRests, now + options_.head); }

void HttpPlaces::Set(int fd, Does does, Instant until) {
  for (Place& place : places_) {
    if (place.fd != fd) continue;
    place.does = does;
    place.until = until;
  }
}

void HttpPlaces::Leave(int fd) {
  std::erase_if(places_, [fd](const Place& place) { return place.fd == fd; });
}

std::vector<int> HttpPlaces::TakeLate(Instant now) {
  std::vector<int> late;
  for (const Place& place : places_) {
    if (place.until <= now) late.push_back(place.fd);
  }
  std::erase_if(places_, [now](const Place& place) { return place.until <= now; });
  return late;
}

std::optional<int> HttpPlaces::TakeSilent() { return Take(nullptr, Does::kComes); }

std::optional<Instant> HttpPlaces::next_deadline() const {
  if (places_.empty()) return std::nullopt;
  return std::min_element(places_.begin(), places_.end(),
                          [](const Place& a, const Place& b) { return a.until < b.until; })
      ->until;
}

std::size_t HttpPlaces::CountOf(const std::string& peer) const {
  return static_cast<std::size_t>(std::count_if(
      places_.begin(), places_.end(), [&](const Place& place) { return place.peer == peer; }));
}

std::optional<int> HttpPlaces::Take(const std::string* peer, Does at_most) {
  auto goes = places_.end();
  std::size_t most = 0;
  for (auto place = places_.begin(); place != places_.end(); ++place) {
    if ((peer != nullptr && place->peer != *peer) || place->does > at_most) continue;
    const std::size_t count = CountOf(place->peer);
    if (count > most || (count == most && place->does < goes->does)) {
      goes = place;
      most = count;
    }
  }
  if (goes == places_.end()) return std::nullopt;
  const int fd = goes->fd;
  places_.erase(goes);
  return fd;
}

}  // namespace prd
