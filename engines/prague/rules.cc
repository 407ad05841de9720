// The invariants of engine prague (Luo et al., ASPLOS 2020), beside a reference of its group
// buffers that is too simple to be wrong: all groups that are not through in one list, by id.
//
// group-size: random. A group has group_size members, or all joined workers when they are fewer,
// one of which asked and is not passive. A worker has one such group at a time.
//
// broken-link: as in engines/rules.h. While there are such links, a random group may be smaller if
// nobody else reaches all of its members. A division of idle workers that do not all reach each
// other need not be even: it has its caller and nobody who is slow, and whoever it leaves out does
// not reach one of the others.
//
// division: smart. A request of a worker that is in a group that is not through, or has been
// served, draws nothing. Any other divides the idle workers, those in no such group, but for the
// slow ones: into floor(n / group_size) groups whose sizes differ by one at most. Where they are on
// several hosts and inter_intra is on, into two phases (section 5.2): first groups of one head per
// host and groups within a host of the others, then all of each host together. Nobody else is
// drawn.
//
// slow-worker: smart. A worker that has requested slowdown_threshold groups fewer than the worker
// that requests is in none of the groups of its division.
//
// weights: they are equal.
//
// served: a request is answered without a group if and only if a group of its worker was through
// before it.
//
// atomic: a group forms as soon as no group drawn earlier has a member of it that is not through,
// and not before. Until then it stays as it was drawn. It says `pending` if a member has asked and
// it is the first that answers that member.
//
// waits: a worker whose request stands has a group to come, or one that failed and has not ended;
// and a reason to wait, which no other worker has.
//
// no-groups: static. The engine forms none.
//
// In jobs of more workers than kMaxWatched, once there have been so many, only no-groups is
// checked.
#include "engines/rules.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engines/prague/options.h"

namespace prd {
namespace {

// Sizes of a division of n into groups of `size`: floor(n / size) groups that differ by at most
// one.
bool EvenSizes(const std::vector<std::size_t>& sizes, std::size_t n, std::size_t size) {
  if (sizes.size() != std::max<std::size_t>(1, n / size)) return false;
  const auto [least, most] = std::minmax_element(sizes.begin(), sizes.end());
  return *most - *least <= 1;
}

class PragueRules final : public EngineRules {
 public:
  explicit PragueRules(const PragueOptions& options) : options_(options) {}
  void Check(const Decision& of) override;
  void Archive(StateArchive& ar) override { ar(workers_, groups_, most_requests_); }

 private:
  struct Group {
    std::vector<Rank> members;
    std::set<Rank> undone;
    Rank caller = kNoRank;  // random
    bool formed = false;
    bool conflict = false;
    void Archive(StateArchive& ar) { ar(members, undone, caller, formed, conflict); }
  };
  using Groups = std::map<GroupId, Group>;
  struct Worker {
    std::string host;
    std::int64_t requests = 0;
    int served = 0;
    bool waiting = false;
    std::set<GroupId> failing;
    void Archive(StateArchive& ar) { ar(host, requests, served, waiting, failing); }
  };

  bool Smart() const { return options_.generator == PragueOptions::Generator::kSmart; }
  // What a wrong draw breaks.
  const char* Draws() const { return Smart() ? "division" : "group-size"; }
  bool Answers(const Group& group, Rank rank) const { return Smart() || group.caller == rank; }
  std::set<Rank> Idle() const;

  void Follow(const Decision& of);
  void OnFinished(const FinishedEvent& finished);
  void OnLeft(const LeftEvent& left);
  void OnBroken(const LinkEvent& link);
  bool CanGrow(const Group& group) const;
  void CheckParted(Rank caller, const std::vector<Rank>& idle, const std::map<Rank, int>& count);
  // The groups drawn by this event. None has changed, none is gone.
  Groups Collect(const Decision& of) const;
  Group See(GroupId id, const std::vector<GroupShare>& shares) const;
  void CheckRandom(const Groups& fresh);
  void CheckDivision(const Event& event, const Groups& fresh, const std::set<Rank>& idle);
  void CheckPhases(const Groups& fresh, const std::map<std::string, std::set<Rank>>& hosts);
  void CheckFormed(const Decision& of);
  void CheckFormedInLarge(const Decision& of) const;
  void CheckPending(const Engine& engine) const;
  void CheckWaits(const Decision& of) const;

  const PragueOptions options_;
  std::map<Rank, Worker> workers_;  // joined
  Groups groups_;                   // not through
  std::int64_t most_requests_ = 0;  // of anybody so far
};

std::set<Rank> PragueRules::Idle() const {
  std::set<Rank> idle;
  for (const auto& [rank, worker] : workers_) idle.insert(rank);
  for (const auto& [id, group] : groups_) {
    for (const Rank rank : group.undone) idle.erase(rank);
  }
  return idle;
}

void PragueRules::OnFinished(const FinishedEvent& finished) {
  const auto found = groups_.find(finished.group);
  if (found == groups_.end() || found->second.undone.erase(finished.rank) == 0) {
    throw Violation("atomic", RankName(finished.rank) + " has reported on " +
                                  GroupName(finished.group) + ", in which it is not");
  }
  Worker& worker = workers_.at(finished.rank);
  const bool passive = !Answers(found->second, finished.rank);
  if (found->second.undone.empty()) groups_.erase(found);
  if (passive) return;
  if (!finished.ok) {
    worker.failing.insert(finished.group);
  } else if (worker.waiting) {
    worker.waiting = false;
  } else {
    ++worker.served;
  }
}

void PragueRules::OnLeft(const LeftEvent& left) {
  workers_.erase(left.rank);
  for (auto it = groups_.begin(); it != groups_.end();) {
    const bool with = it->second.undone.erase(left.rank) > 0;
    const bool gone = (with && !it->second.formed) || it->second.undone.empty();
    it = gone ? groups_.erase(it) : std::next(it);
  }
}

void PragueRules::OnBroken(const LinkEvent& link) {
  const auto parted = [&](const Group& group) {
    return !group.formed && group.undone.contains(link.a) && group.undone.contains(link.b);
  };
  Count("parted", std::erase_if(groups_, [&](const auto& entry) { return parted(entry.second); }));
}

bool PragueRules::CanGrow(const Group& group) const {
  return std::any_of(workers_.begin(), workers_.end(), [&](const auto& entry) {
    return !group.undone.contains(entry.first) && broken().Reaches(entry.first, group.members);
  });
}

void PragueRules::Follow(const Decision& of) {
  bool due = false;
  if (const auto* joined = std::get_if<JoinedEvent>(&of.event)) {
    const int size = options_.workers_per_host;
    workers_[joined->rank] = {.host = size > 0 ? std::to_string(joined->rank / size) : joined->host,
                              .requests = most_requests_,
                              .failing = {}};
  } else if (const auto* ready = std::get_if<ReadyEvent>(&of.event)) {
    Worker& worker = workers_.at(ready->rank);
    most_requests_ = std::max(most_requests_, ++worker.requests);
    due = worker.served > 0;
    worker.served -= due ? 1 : 0;
    worker.waiting = !due;
    Count("served", due ? 1 : 0);
  } else if (const auto* finished = std::get_if<FinishedEvent>(&of.event)) {
    OnFinished(*finished);
  } else if (const auto* ended = std::get_if<EndedEvent>(&of.event)) {
    for (auto& [rank, worker] : workers_) worker.failing.erase(ended->group);
  } else if (const auto* left = std::get_if<LeftEvent>(&of.event)) {
    OnLeft(*left);
  } else if (const auto* link = std::get_if<LinkEvent>(&of.event); link && !link->works) {
    OnBroken(*link);
  }
  const bool answered = std::any_of(of.effects.begin(), of.effects.end(), [](const Effect& of_it) {
    return std::holds_alternative<QueryAnswered>(of_it);
  });
  if (answered == due) return;
  throw Violation("served", due ? "a request that is served has no answer"
                                : "a request is answered that is not served");
}

PragueRules::Group PragueRules::See(GroupId id, const std::vector<GroupShare>& shares) const {
  Group group;
  for (const GroupShare& share : shares) {
    group.members.push_back(share.rank);
    group.undone.insert(share.rank);
    if (std::abs(share.weight * static_cast<double>(shares.size()) - 1) > 1e-12) {
      throw Violation("weights", RankName(share.rank) + " has " + std::to_string(share.weight) +
                                     " in " + GroupName(id));
    }
    if (share.passive) {
      if (Smart()) throw Violation("division", GroupName(id) + " has a passive member");
    } else if (!Smart()) {
      if (group.caller != kNoRank) throw Violation("group-size", GroupName(id) + " answers two");
      group.caller = share.rank;
    }
  }
  if (group.undone.size() == shares.size()) return group;
  throw Violation(Draws(), GroupName(id) + " has a member twice");
}

PragueRules::Groups PragueRules::Collect(const Decision& of) const {
  Groups fresh;
  std::set<GroupId> seen;
  const auto see = [&](GroupId id, const std::vector<GroupShare>& shares) {
    Group group = See(id, shares);
    const auto known = groups_.find(id);
    seen.insert(id);
    if (known == groups_.end()) {
      fresh[id] = std::move(group);
    } else if (known->second.undone != group.undone) {
      throw Violation("atomic", GroupName(id) + " has other members than when it was drawn");
    }
  };
  for (const GroupFormed& form : GroupsOf(of.effects)) see(form.id, form.members);
  for (const Engine::Drawn& drawn : of.engine.DrawnGroups()) {
    see(drawn.id, drawn.members);
    if (drawn.reason.empty()) throw Violation(Draws(), GroupName(drawn.id) + " has no reason");
  }
  for (const auto& [id, group] : groups_) {
    if (group.formed || seen.contains(id)) continue;
    throw Violation("atomic", GroupName(id) + " was drawn, and has vanished");
  }
  return fresh;
}

void PragueRules::CheckRandom(const Groups& fresh) {
  const std::size_t size = std::min(static_cast<std::size_t>(options_.group_size), workers_.size());
  for (const auto& [id, group] : fresh) {
    if (broken().Among(group.members)) {
      throw Violation("broken-link",
                      GroupName(id) + " is drawn of two that do not reach each other");
    }
    if (group.members.size() > size || (group.members.size() < size && CanGrow(group))) {
      throw Violation("group-size", GroupName(id) + " has " + std::to_string(group.members.size()) +
                                        " members, due are " + std::to_string(size));
    }
    bool conflict = false;
    for (const Rank rank : group.members) {
      if (workers_.contains(rank)) continue;
      throw Violation("group-size", RankName(rank) + " is drawn, and is not there");
    }
    for (const auto& [earlier, other] : groups_) {
      if (other.undone.contains(group.caller) && other.caller == group.caller) {
        throw Violation("group-size", RankName(group.caller) + " has two groups that answer it");
      }
      for (const Rank rank : group.members) {
        conflict = conflict || (other.undone.contains(rank) && other.caller != group.caller);
      }
    }
    Count("conflicts", conflict ? 1 : 0);
    groups_[id] = group;
    groups_[id].conflict = conflict;
  }
}

void PragueRules::CheckDivision(const Event& event, const Groups& fresh,
                                const std::set<Rank>& idle) {
  std::map<Rank, int> count;
  std::vector<std::size_t> sizes;
  for (const auto& [id, group] : fresh) {
    sizes.push_back(group.members.size());
    for (const Rank rank : group.members) {
      ++count[rank];
      if (idle.contains(rank)) continue;
      throw Violation("division",
                      RankName(rank) + " is divided, and in a group that is not through");
    }
    groups_[id] = group;
  }
  // What is drawn anew because somebody left or failed is not a request.
  const auto* ready = std::get_if<ReadyEvent>(&event);
  if (ready == nullptr) return;
  const Worker& caller = workers_.at(ready->rank);
  if (!caller.waiting || !idle.contains(ready->rank)) {
    if (fresh.empty()) return;
    throw Violation("division", RankName(ready->rank) +
                                    (caller.waiting ? " has a group" : " is served") +
                                    ", and its request draws one");
  }
  Count("divisions");
  std::vector<Rank> quick;
  for (const Rank rank : idle) {
    if (caller.requests - workers_.at(rank).requests < options_.slowdown_threshold) {
      quick.push_back(rank);
    }
  }
  const bool apart = broken().Among(quick).has_value();
  std::map<std::string, std::set<Rank>> hosts;
  std::size_t n = 0;
  for (const Rank rank : idle) {
    const std::int64_t requests = workers_.at(rank).requests;
    const bool slow = caller.requests - requests >= options_.slowdown_threshold;
    if (slow && count.contains(rank)) {
      throw Violation("slow-worker", RankName(ready->rank) + " has requested " +
                                         std::to_string(caller.requests) +
                                         " groups, and is divided with " + RankName(rank) +
                                         ", which has " + std::to_string(requests));
    }
    if (slow) continue;
    if (!count.contains(rank) && !apart) {
      throw Violation("division", RankName(rank) + " is idle and not slow, and is not divided");
    }
    ++n;
    hosts[workers_.at(rank).host].insert(rank);
  }
  Count("excluded", n < idle.size() ? 1 : 0);
  if (apart) return CheckParted(ready->rank, quick, count);
  if (options_.inter_intra && hosts.size() > 1) return CheckPhases(fresh, hosts);
  const auto once = [](const auto& entry) { return entry.second == 1; };
  if (std::all_of(count.begin(), count.end(), once) &&
      EvenSizes(sizes, n, static_cast<std::size_t>(options_.group_size))) {
    return;
  }
  throw Violation("division", std::to_string(n) + " idle workers are divided into " +
                                  std::to_string(fresh.size()) + " groups, unevenly or not once");
}

void PragueRules::CheckParted(Rank caller, const std::vector<Rank>& idle,
                              const std::map<Rank, int>& count) {
  Count("divisions_apart");
  if (!count.contains(caller)) throw Violation("division", RankName(caller) + " divides others");
  for (const Rank rank : idle) {
    const auto found = count.find(rank);
    if (found != count.end() && found->second > 2) {
      throw Violation("division", RankName(rank) + " is in three groups of a division");
    }
    if (found != count.end() || !broken().Reaches(rank, idle)) continue;
    throw Violation("division", RankName(rank) + " is idle, reaches all, and is not divided");
  }
}

// Section 5.2.
void PragueRules::CheckPhases(const Groups& fresh,
                              const std::map<std::string, std::set<Rank>>& hosts) {
  const auto must = [](bool holds, const std::string& what) {
    if (!holds) throw Violation("division", what);
  };
  const auto size = static_cast<std::size_t>(options_.group_size);
  Count("in_two_phases");
  std::map<Rank, int> count;
  std::map<std::string, std::vector<std::size_t>> locals;  // groups of phase one within a host
  std::vector<std::size_t> heads;
  std::set<Rank> are_heads;
  std::set<std::string> have_intra;
  for (const auto& [id, group] : fresh) {
    const std::string& host = workers_.at(group.members.front()).host;
    std::set<std::string> spans;
    for (const Rank rank : group.members) {
      spans.insert(workers_.at(rank).host);
      must(++count[rank] <= 2, RankName(rank) + " is in three groups of a division");
    }
    must(group.members.size() >= 2, GroupName(id) + " has one member");
    if (spans.size() > 1) {
      must(spans.size() == group.members.size(), GroupName(id) + " has two heads of one host");
      are_heads.insert(group.members.begin(), group.members.end());
      heads.push_back(group.members.size());
    } else if (group.undone == hosts.at(host)) {
      must(have_intra.insert(host).second, "host " + host + " has two groups of all");
    } else {
      must(!have_intra.contains(host), GroupName(id) + " comes after the group of all of its host");
      locals[host].push_back(group.members.size());
    }
  }
  must(are_heads.size() == hosts.size() && EvenSizes(heads, hosts.size(), size),
       "not every host has a head, or heads are unevenly divided");
  for (const auto& [host, ranks] : hosts) {
    const bool others = ranks.size() > 2;
    must(have_intra.contains(host) == (ranks.size() > 1), "host " + host + " has no group of all");
    must(locals.contains(host) == others &&
             (!others || EvenSizes(locals[host], ranks.size() - 1, size)),
         "the others of host " + host + " are not evenly divided");
  }
}

// A group forms as soon as no earlier one has a member of it that is not through, and not before.
void PragueRules::CheckFormed(const Decision& of) {
  for (const GroupFormed& form : GroupsOf(of.effects)) {
    Group& group = groups_[form.id];
    group.formed = true;
    if (form.conflict != group.conflict) {
      throw Violation("atomic", GroupName(form.id) + " has the wrong conflict");
    }
    Count("redraws", form.reason.find("again") != std::string::npos ? 1 : 0);
  }
  std::set<Rank> held;
  for (const auto& [id, group] : groups_) {
    const bool free = std::none_of(group.undone.begin(), group.undone.end(),
                                   [&](Rank rank) { return held.contains(rank); });
    if (free != group.formed) {
      throw Violation("atomic",
                      GroupName(id) + (free ? " could form and does not" : " forms too early"));
    }
    held.insert(group.undone.begin(), group.undone.end());
  }
  CheckPending(of.engine);
}

void PragueRules::CheckPending(const Engine& engine) const {
  for (const Engine::Drawn& drawn : engine.DrawnGroups()) {
    bool asked = false;
    for (const GroupShare& share : drawn.members) {
      const auto first = std::find_if(groups_.begin(), groups_.end(), [&](const auto& entry) {
        return Answers(entry.second, share.rank) && entry.second.undone.contains(share.rank);
      });
      const bool next = first != groups_.end() && first->first == drawn.id;
      asked = asked || (next && workers_.at(share.rank).waiting);
    }
    if (drawn.pending == asked) continue;
    throw Violation("atomic", GroupName(drawn.id) +
                                  (asked ? " is not said to be" : " is said to be") + " asked for");
  }
}

void PragueRules::CheckWaits(const Decision& of) const {
  for (const auto& [rank, worker] : workers_) {
    const bool own = std::any_of(groups_.begin(), groups_.end(), [&, r = rank](const auto& entry) {
      return entry.second.undone.contains(r) && Answers(entry.second, r);
    });
    if (worker.waiting && !own && worker.failing.empty()) {
      throw Violation("waits", RankName(rank) + " waits for nothing");
    }
    if (worker.waiting == of.engine.Explain(of.now, rank).empty()) {
      throw Violation("waits", RankName(rank) + " waits without a reason, or has one");
    }
  }
}

// What one group alone shows.
void PragueRules::CheckFormedInLarge(const Decision& of) const {
  for (const GroupFormed& group : GroupsOf(of.effects)) {
    const auto active = std::count_if(group.members.begin(), group.members.end(),
                                      [](const GroupShare& share) { return !share.passive; });
    if (Smart() || (std::ssize(group.members) <= options_.group_size && active == 1)) continue;
    throw Violation("group-size", NameOf(group) + " has " + std::to_string(group.members.size()) +
                                      " members, " + std::to_string(active) + " not passive");
  }
}

void PragueRules::Check(const Decision& of) {
  if (options_.generator == PragueOptions::Generator::kStatic) {
    for (const GroupFormed& group : GroupsOf(of.effects)) {
      throw Violation("no-groups", NameOf(group) + " beside the schedule");
    }
    return;
  }
  CheckLinks(of.effects);
  if (crowded()) return CheckFormedInLarge(of);
  Follow(of);
  const std::set<Rank> idle = Idle();
  const Groups fresh = Collect(of);
  if (Smart()) {
    CheckDivision(of.event, fresh, idle);
  } else {
    CheckRandom(fresh);
  }
  CheckFormed(of);
  CheckWaits(of);
}

}  // namespace

// Counts divisions, in_two_phases, excluded (divisions that left somebody idle as slow), served,
// conflicts, redraws.
std::unique_ptr<EngineRules> PragueOptions::Rules() const {
  return std::make_unique<PragueRules>(*this);
}

}  // namespace prd
