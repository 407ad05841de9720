// Scripts for a worker's mesh, as bytes: what comes to its door, and what comes over a sealed
// connection of a member. Any bytes are a script.
#ifndef PRD_TESTS_FUZZ_MESH_FEED_H_
#define PRD_TESTS_FUZZ_MESH_FEED_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace prd {

// How often it has come to what a script is about; if never, scripts prove little.
struct MeshTally {
  std::uint64_t knocks = 0;
  std::uint64_t admitted = 0;
  std::uint64_t frames = 0;  // that were sealed as they should be
  std::uint64_t counted = 0;
  std::uint64_t forged = 0;  // changed, repeated or in another's name
};

// Questions to the door, announcements and time. Returns what should not have happened, or nothing:
// somebody was let in without the key of an announced worker, or twice with one pass; who has a key
// and a fresh pass was not; a question was not answered once; too many wait.
std::string FeedDoor(std::string_view script, MeshTally* tally);

// A member's frames, sealed and then maybe changed, repeated or cut, while groups, copies and pulls
// go on. Returns what should not have happened, or nothing: a frame counted that was changed,
// repeated or in another's name, or was neither counted nor dropped.
std::string FeedFrames(std::string_view script, MeshTally* tally);

}  // namespace prd

#endif  // PRD_TESTS_FUZZ_MESH_FEED_H_
