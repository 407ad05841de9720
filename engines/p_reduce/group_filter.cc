#include "engines/p_reduce/group_filter.h"

#include <algorithm>
#include <limits>

#include "common/base/check.h"
#include "engines/words.h"

namespace prd {

namespace {

DurationNs MeanStep(const std::vector<Signal>& queue, std::size_t p) {
  DurationNs mean = 0;
  for (std::size_t i = 0; i < p; ++i) mean += queue[i].step / static_cast<DurationNs>(p);
  return mean;
}

std::string LastGroups(std::int64_t groups) {
  return "the last " + std::to_string(groups) + " groups";
}

}  // namespace

// The first signal, from that place on, whose worker has a component, and not this one.
std::size_t GroupFilter::NextInComponent(const std::vector<Signal>& queue, std::size_t from,
                                         Rank other_than) const {
  for (; from < queue.size(); ++from) {
    const Rank component = graph_.Component(queue[from].rank);
    if (component != kNoRank && component != other_than) break;
  }
  return from;
}

GroupFilter::Choice GroupFilter::Choose(Instant now, const std::vector<Signal>& queue,
                                        std::size_t p) {
  PRD_CHECK(p >= 2 && p <= queue.size());
  if (!graph_.split()) return {};
  if (hold_.active) return Continue(now, queue, p);
  const std::size_t inside = NextInComponent(queue, 0, kNoRank);
  if (inside >= p) return {};
  const Rank component = graph_.Component(queue[inside].rank);
  const std::size_t outsider = NextInComponent(queue, inside + 1, component);
  if (outsider < p) {
    Choice choice;
    choice.note = "; joins components of " + LastGroups(graph_.groups());
    return choice;
  }
  if (outsider < queue.size()) return Bridge(queue, p, inside, outsider, 0);
  return Isolated(now, queue, p, component);
}

GroupFilter::Choice GroupFilter::Continue(Instant now, const std::vector<Signal>& queue,
                                          std::size_t p) {
  const DurationNs held = now - hold_.since;
  const std::size_t outsider =
      NextInComponent(queue, static_cast<std::size_t>(hold_.seen), hold_.component);
  hold_.seen = queue.size();
  Choice choice;
  if (outsider < queue.size()) {
    EndHold(now);
    return Bridge(queue, p, NextInComponent(queue, 0, kNoRank), outsider, held);
  }
  if (now < hold_.until && queue.size() < 2 * p) {
    choice.hold = true;
    return choice;
  }
  EndHold(now);
  choice.note = "; held " + words::Duration(held) + ", no worker of another component of " +
                LastGroups(graph_.groups()) + " came";
  return choice;
}

GroupFilter::Choice GroupFilter::Isolated(Instant now, const std::vector<Signal>& queue,
                                          std::size_t p, Rank component) {
  Choice choice;
  const std::int64_t others = graph_.signals() - graph_.Signals(component);
  const DurationNs step = MeanStep(queue, p);
  const DurationNs expected = others > 0 ? graph_.duration() / others : step + 1;
  if (expected > step) {
    choice.note =
        "; other components of " + LastGroups(graph_.groups()) + " are too slow to wait for";
    return choice;
  }
  const auto size = static_cast<std::int64_t>(p);
  const DurationNs longest = std::min(2 * expected, step);
  if (longest <= 0 || saved_ + size * step < size * longest) {
    choice.note = "; waiting for another component of " + LastGroups(graph_.groups()) +
                  " is not in the budget now";
    return choice;
  }
  hold_ = {.active = true,
           .component = component,
           .seen = queue.size(),
           .size = size,
           .since = now,
           .until = now + longest};
  choice.hold = true;
  return choice;
}

GroupFilter::Choice GroupFilter::Bridge(const std::vector<Signal>& queue, std::size_t p,
                                        std::size_t inside, std::size_t outsider,
                                        DurationNs held) const {
  Choice choice;
  choice.kept = std::max(p - 2, inside);
  choice.outsider = outsider;
  std::vector<Rank> others;
  for (std::size_t i = 0; i + 2 < p; ++i) others.push_back(queue[i].rank);
  others.push_back(queue[choice.kept].rank);
  choice.note = "bridged components of " + LastGroups(graph_.groups()) + ": rank " +
                std::to_string(queue[outsider].rank) + " joins " + words::Ranks(others);
  if (held > 0) choice.note += " after " + words::Duration(held);
  return choice;
}

void GroupFilter::EndHold(Instant now) {
  if (!hold_.active) return;
  saved_ -= hold_.size * (now - hold_.since);
  hold_ = {};
}

void GroupFilter::Left(Instant now) {
  EndHold(now);
  graph_.Restart(now);
}

void GroupFilter::Formed(Instant now, const std::vector<GroupShare>& members, DurationNs step_sum,
                         std::int64_t window) {
  saved_ = std::min(saved_ + step_sum / kHoldShareInverse, kSavedSteps * step_sum);
  graph_.Add(now, members, window);
}

std::optional<Instant> GroupFilter::Deadline() const {
  return hold_.active ? std::optional<Instant>(hold_.until) : std::nullopt;
}

std::string GroupFilter::Explain(Instant now) const {
  if (!hold_.active) return "";
  return "held " + words::Duration(now - hold_.since) + " of at most " +
         words::Duration(hold_.until - hold_.since) + " for a worker of another of the " +
         std::to_string(graph_.components()) + " components of " + LastGroups(graph_.groups());
}

void GroupFilter::Archive(StateArchive& ar) {
  ar(graph_, hold_, saved_);
  if (ar.saving()) return;
  if (!Plausible({saved_}) || !Plausible(hold_.since) || !Plausible(hold_.until)) ar.Fail();
  if (hold_.active &&
      (!graph_.split() || hold_.size < 2 || hold_.size > static_cast<std::int64_t>(graph_.size()) ||
       hold_.since > hold_.until)) {
    ar.Fail();
  }
}

}  // namespace prd
