#include "engines/p_reduce/sync_graph.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace prd {

namespace {

// The link of a root with this many signals. Counts stop at the type's limit: they are for
// comparing components, and no window gets near it.
std::int32_t RootLink(std::int64_t signals) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  return static_cast<std::int32_t>(-std::min(signals, kMax));
}

}  // namespace

Rank SyncGraph::Root(const Window& window, Rank rank) {
  Node* node = &At(window, rank);
  while (node->link >= 0) {
    const Node& parent = At(window, node->link);
    if (parent.link < 0) return node->link;
    node->link = parent.link;
    rank = parent.link;
    node = &At(window, rank);
  }
  return rank;
}

Rank SyncGraph::Component(Rank rank) const {
  const auto node = [this](Rank of) -> const Node& {
    return nodes_[static_cast<std::size_t>(of)].slot[bridge_.slot];
  };
  if (node(rank).epoch != bridge_.epoch) return kNoRank;
  while (node(rank).link >= 0) rank = node(rank).link;
  return rank;
}

std::int64_t SyncGraph::Signals(Rank component) const {
  return -std::int64_t{nodes_[static_cast<std::size_t>(component)].slot[bridge_.slot].link};
}

Rank SyncGraph::Union(Window* window, Rank a, Rank b) {
  if (a == b) return a;
  // The root with fewer signals goes below the other: paths stay logarithmic.
  if (At(*window, a).link > At(*window, b).link) std::swap(a, b);
  Node& root = At(*window, a);
  Node& child = At(*window, b);
  root.link = RootLink(-std::int64_t{root.link} - std::int64_t{child.link});
  child.link = a;
  --window->components;
  return a;
}

void SyncGraph::Collect(const std::vector<GroupShare>& members) {
  Rank root = kNoRank;
  for (const GroupShare& member : members) {
    Node& node = At(current_, member.rank);
    if (node.epoch != current_.epoch) {
      node = {.epoch = current_.epoch, .link = root == kNoRank ? RootLink(1) : root};
      if (root == kNoRank) {
        root = member.rank;
        ++current_.components;
      } else {
        Node& top = At(current_, root);
        top.link = RootLink(1 - std::int64_t{top.link});
      }
      continue;
    }
    const Rank own = Root(current_, member.rank);
    Node& top = At(current_, own);
    top.link = RootLink(1 - std::int64_t{top.link});
    root = root == kNoRank ? own : Union(&current_, root, own);
  }
  ++current_.groups;
  current_.signals += static_cast<std::int64_t>(members.size());
}

void SyncGraph::Bridge(const std::vector<GroupShare>& members) {
  Rank root = kNoRank;
  for (const GroupShare& member : members) {
    if (At(bridge_, member.rank).epoch != bridge_.epoch) continue;
    const Rank own = Root(bridge_, member.rank);
    root = root == kNoRank ? own : Union(&bridge_, root, own);
  }
  if (root == kNoRank) return;  // all new: no part of what was split
  for (const GroupShare& member : members) {
    Node& node = At(bridge_, member.rank);
    if (node.epoch != bridge_.epoch) node = {.epoch = bridge_.epoch, .link = root};
  }
  if (bridge_.components < 2) split_ = false;
}

void SyncGraph::Close(Instant now) {
  current_.duration = now - current_.begin;
  std::uint32_t epoch = current_.epoch + 1;
  std::uint32_t slot = current_.slot;
  if (current_.components > 1) {
    split_ = true;
    bridge_ = current_;
    slot = 1 - slot;
  }
  if (epoch == 0) {  // the counter went round: no old node may pass for one of a window to come
    for (Nodes& nodes : nodes_) nodes = {};
    split_ = false;
    epoch = 1;
  }
  current_ = {.epoch = epoch, .slot = slot, .begin = now};
}

void SyncGraph::Add(Instant now, const std::vector<GroupShare>& members, std::int64_t window) {
  if (!begun_) current_.begin = now;
  begun_ = true;
  if (split_) Bridge(members);
  Collect(members);
  if (current_.groups >= window) Close(now);
}

void SyncGraph::Restart(Instant now) {
  split_ = false;
  current_.components = 0;
  if (current_.groups > 0) Close(now);
}

void SyncGraph::Archive(StateArchive& ar) {
  ar(nodes_, current_, bridge_, split_, begun_);
  if (ar.saving()) return;
  if (!Consistent(current_) || (split_ && !Consistent(bridge_))) ar.Fail();
  if (split_ && current_.slot == bridge_.slot) ar.Fail();
}

bool SyncGraph::Consistent(const Window& window) const {
  constexpr int kDeepest = 64;  // union by weight: a path has at most log2(signals) links
  if (window.slot > 1 || window.epoch == 0) return false;
  if (!Plausible(window.begin) || !Plausible({window.duration}) || window.duration < 0)
    return false;
  if (window.groups < 0 || window.signals < 0 || !Plausible({window.signals})) return false;
  for (const Nodes& nodes : nodes_) {
    Node node = nodes.slot[window.slot];
    if (node.epoch != window.epoch) continue;
    for (int depth = 0; node.link >= 0; ++depth) {
      const auto parent = static_cast<std::size_t>(node.link);
      if (depth == kDeepest || parent >= nodes_.size()) return false;
      node = nodes_[parent].slot[window.slot];
      if (node.epoch != window.epoch) return false;
    }
  }
  return true;
}

}  // namespace prd
