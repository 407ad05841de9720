// The sync-graph of P-Reduce (section 4 of the paper): workers are its nodes, and a group links its
// members. It is looked at window by window, a window being T groups in a row.
//
// The paper asks whether the graph of the last T groups is connected. A sliding window would answer
// after every group, but a union-find cannot forget links, so each answer would cost O(T). Here T
// groups are collected, the question is answered once for all of them, and the next T groups are
// collected while the answer is acted on: O(1) amortised per signal, and a split is seen at most T
// groups later than by a sliding window.
//
// A worker that was in no group of a window has no component there: it is slow or absent, not
// frozen, and whichever group it gets into links it. A window whose groups fall into two components
// or more is `split`; the groups that follow then try to join its components (group_filter.h) and
// each group's links count for it too, until it is joined or another window is split. (A full
// window that is connected does not end it: with T small it may hold groups of one component only.)
#ifndef PRD_ENGINES_P_REDUCE_SYNC_GRAPH_H_
#define PRD_ENGINES_P_REDUCE_SYNC_GRAPH_H_

#include <array>
#include <cstdint>
#include <vector>

#include "common/base/archive.h"
#include "common/base/history.h"
#include "common/base/ids.h"
#include "common/base/time.h"

namespace prd {

class SyncGraph {
 public:
  // Makes room for ranks below `size`.
  void Grow(std::size_t size) {
    if (size > nodes_.size()) nodes_.resize(size);
  }

  // Brings a rank's node near: Add will need it soon.
  void Prefetch(Rank rank) const { __builtin_prefetch(&nodes_[static_cast<std::size_t>(rank)], 1); }

  // Links the members of a new group. `window` is T; the window closes when it has as many groups.
  // REQUIRES: members not empty, ranks below the size grown to, window >= 1.
  void Add(Instant now, const std::vector<GroupShare>& members, std::int64_t window);

  // Forgets all links: a worker has left, and what only it linked, or what only it belongs to, must
  // not count.
  void Restart(Instant now);

  // True while the components of the last split window have not been joined.
  bool split() const { return split_; }

  // The component of this worker in the split window, as the rank of one of its workers; kNoRank if
  // it was in no group there. REQUIRES: split().
  Rank Component(Rank rank) const;

  int components() const { return bridge_.components; }     // left to join, >= 2
  std::int64_t groups() const { return bridge_.groups; }    // in the split window
  std::int64_t signals() const { return bridge_.signals; }  // in these groups, of all components
  std::int64_t Signals(Rank component) const;               // of this one
  DurationNs duration() const { return bridge_.duration; }  // from the window's begin to its end

  std::size_t size() const { return nodes_.size(); }

  void Archive(StateArchive& ar);

 private:
  // A node of a union-find forest. It belongs to the window of that epoch and counts as absent in
  // any other, so that starting a window costs nothing. link >= 0: the rank of the parent;
  // link < 0: a root, of a component with -link signals.
  struct Node {
    std::uint32_t epoch = 0;
    std::int32_t link = 0;
    void Archive(StateArchive& ar) { ar(epoch, link); }
  };
  // The nodes of one worker in the window being collected and in the split one, side by side: one
  // cache line serves both. `slot` says which is whose.
  struct Nodes {
    std::array<Node, 2> slot;
    void Archive(StateArchive& ar) { ar(slot[0], slot[1]); }
  };
  struct Window {
    std::uint32_t epoch = 1;
    std::uint32_t slot = 0;
    std::int64_t groups = 0;
    std::int64_t signals = 0;
    std::int32_t components = 0;
    Instant begin;
    DurationNs duration = 0;
    void Archive(StateArchive& ar) {
      ar(epoch, slot, groups, signals, components, begin, duration);
    }
  };

  Node& At(const Window& window, Rank rank) {
    return nodes_[static_cast<std::size_t>(rank)].slot[window.slot];
  }
  Rank Root(const Window& window, Rank rank);  // halves the path
  Rank Union(Window* window, Rank a, Rank b);
  void Collect(const std::vector<GroupShare>& members);
  void Bridge(const std::vector<GroupShare>& members);
  void Close(Instant now);
  bool Consistent(const Window& window) const;

  std::vector<Nodes> nodes_;  // by rank
  Window current_;
  Window bridge_;  // the split window
  bool split_ = false;
  bool begun_ = false;
};

}  // namespace prd

#endif  // PRD_ENGINES_P_REDUCE_SYNC_GRAPH_H_
