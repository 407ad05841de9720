// The names of things: plain integers, the same words everywhere.
#ifndef PRD_COMMON_BASE_IDS_H_
#define PRD_COMMON_BASE_IDS_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

namespace prd {

// A worker's place in its job, from 0. One worker at a time holds a rank; a worker that comes back
// after a death holds it again under a new incarnation.
using Rank = std::int32_t;
inline constexpr Rank kNoRank = -1;

// A worker's count of local optimiser steps. What a worker trains next; it starts at 0.
using Iteration = std::int64_t;

// One reduction. Unique within a run, from 1, in the order of announcement.
using GroupId = std::uint64_t;
inline constexpr GroupId kNoGroup = 0;

// "rank 3", "group 7": the same spelling in every reason.
inline std::string RankName(Rank rank) { return "rank " + std::to_string(rank); }
inline std::string GroupName(GroupId group) { return "group " + std::to_string(group); }

// The rank's place in a vector by rank. REQUIRES: not kNoRank.
inline constexpr std::size_t RankIndex(Rank rank) { return static_cast<std::size_t>(rank); }

// One life of one worker, drawn at random by the worker, never 0. Tells a worker from its
// predecessor with the same rank, also across restarts of the controller.
using Incarnation = std::uint64_t;

// Position of a message in one direction of one incarnation's link, from 1; 0 marks messages that
// are outside the order and may be lost (heartbeats, refusals).
using Seq = std::uint64_t;

// One execution of a job, from its first worker to its last. Unique within a state directory,
// from 1.
using RunId = std::uint64_t;
inline constexpr RunId kNoRun = 0;

// Which execution of a job that is, and in which life of its controller. Both are random: a RunId
// alone may come again, when a controller has lost its history. All zero: none.
struct RunIdentity {
  std::uint64_t high = 0;  // drawn when the run starts, never 0
  std::uint64_t low = 0;   // drawn when the controller's process starts, never 0
  bool known() const { return high != 0 || low != 0; }
  void Archive(auto& ar) { ar(high, low); }
  friend bool operator==(const RunIdentity&, const RunIdentity&) = default;
};

// What shows the controller that a message comes from the incarnation that it names: drawn at
// random by the worker with the incarnation. Other workers learn incarnations, and never tokens.
// The daemon replaces it by a hash when a message comes in, so that no record holds it.
struct LinkToken {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  void Archive(auto& ar) { ar(high, low); }
  friend bool operator==(const LinkToken&, const LinkToken&) = default;
};

// 32 hexadecimal digits.
inline std::string ToText(const RunIdentity& identity) {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(identity.high),
                static_cast<unsigned long long>(identity.low));
  return text;
}

}  // namespace prd

#endif  // PRD_COMMON_BASE_IDS_H_
