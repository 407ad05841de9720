#include "tests/engines/transcript.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include "engines/registry.h"
#include "engines/words.h"
#include "tests/transcript/text.h"

namespace prd {

namespace {

using transcript::Choose;
using transcript::Command;
using transcript::ParseTime;

// Takes an engine's options from a command: overlap=1, weights=uniform, graph=ring or 0-1,1-2.
class OptionTaker final : public Fields {
 public:
  explicit OptionTaker(Command* command) : command_(command) {}

  void Table(std::string_view, bool, std::string_view,
             const std::function<void(Fields&)>& describe) override {
    describe(*this);
  }
  void Check(const Status&) override {}

  void operator()(const Field::Text& of) { *of.value = word_; }
  void operator()(const Field::Flag& of) { *of.value = word_ == "1"; }
  void operator()(const Field::Real& of) { *of.value = std::stod(word_); }
  void operator()(const Field::Whole& of) {
    for (const Field::NamedNumber& named : of.names) {
      if (word_ == named.name) {
        *of.value = named.value;
        return;
      }
    }
    *of.value = std::stoll(word_);
  }
  void operator()(const Field::Name& of) {
    if (!TakeName(of.names, of.value)) throw std::invalid_argument("no such value: " + word_);
  }
  void operator()(const Field::NameOrPairs& of) {
    if (TakeName(of.names, of.value)) return;
    *of.value = of.names.size();
    for (const std::string& pair : transcript::Split(word_)) {
      of.pairs->emplace_back(std::stoi(pair), std::stoi(pair.substr(pair.find('-') + 1)));
    }
  }

 protected:
  void Add(const Field& field) override {
    word_ = command_->Take(std::string(field.key), "");
    if (!word_.empty()) std::visit(*this, field.kind);
  }

 private:
  bool TakeName(Field::Names names, std::size_t* index) const {
    const auto found = std::find(names.begin(), names.end(), word_);
    if (found == names.end()) return false;
    *index = static_cast<std::size_t>(found - names.begin());
    return true;
  }

  Command* command_;
  std::string word_;
};

class Play {
 public:
  std::vector<std::string> Line(Command* command) {
    said_.clear();
    if (command->name() == "engine") {
      const EngineOptions options = MakeOptions(command);
      if (const Status valid = Validate(options, 0); !valid.ok()) {
        throw std::invalid_argument(valid.ToString());
      }
      *this = Play();
      engine_ = MakeEngine(options);
    } else if (engine_ == nullptr) {
      throw std::invalid_argument("the first command must be engine");
    } else {
      Apply(command);
    }
    return said_;
  }

 private:
  void Apply(Command* command) {
    static const std::map<std::string, void (Play::*)(Command*)> kCommands = {
        {"join", &Play::Join},       {"ready", &Play::BeReady},
        {"finish", &Play::Finish},   {"leave", &Play::Leave},
        {"copy", &Play::Copy},       {"placed", &Play::Placed},
        {"at", &Play::At},           {"drawn", &Play::Drawn},
        {"explain", &Play::Explain}, {"deadline", &Play::Deadline},
    };
    (this->*Choose(command->name(), kCommands))(command);
  }

  void Placed(Command* command) {
    for (const Rank rank : command->Ranks()) Step(PlacedEvent{.rank = rank, .epoch = epoch_});
  }

  void At(Command* command) { now_ = {ParseTime(command->Word(0))}; }

  void Deadline(Command*) {
    const std::optional<Instant> deadline = engine_->NextDeadline();
    Say(deadline ? "at " + words::Duration(deadline->ns) : "none");
    if (!deadline) return;
    now_ = *deadline;
    Step(DeadlineEvent{});
  }

  void Drawn(Command*) {
    for (const Engine::Drawn& drawn : engine_->DrawnGroups()) SayDrawn(drawn);
  }

  void Explain(Command* command) {
    for (const Rank rank : command->Ranks()) {
      const std::string why = engine_->Explain(now_, rank);
      Say("rank " + std::to_string(rank) + ": " + (why.empty() ? "(not waiting)" : why));
    }
  }

  void Join(Command* command) {
    const std::string host = command->Take("host", "h");
    const Iteration iteration = command->TakeNumber("iteration");
    for (const Rank rank : command->Ranks()) {
      iterations_[rank] = iteration;
      rounds_[rank] = {.received = iteration};
      Step(JoinedEvent{.rank = rank, .iteration = iteration, .host = host});
    }
  }

  void BeReady(Command* command) {
    const std::string iteration = command->Take("iteration");
    const std::int64_t samples = command->TakeNumber("samples");
    const bool cut = !command->TakeFlag("gradients", true);
    if (AsksBeforeGroups(engine_->plan())) return Query(command);
    for (const Rank rank : command->Ranks()) {
      if (Rounds()) {
        BeReadyForRound(rank, cut ? 0 : 1);
        continue;
      }
      const Iteration next = iteration.empty() ? iterations_[rank] + 1 : std::stoll(iteration);
      if (Exchanges()) {
        Step(ReadyEvent{.rank = rank, .ready = {.iteration = next}});
        continue;
      }
      iterations_[rank] = next;
      Step(ReadyEvent{.rank = rank,
                      .ready = {.iteration = iterations_[rank], .step_ns = 0, .samples = samples}});
    }
  }

  void Query(Command* command) {
    const std::string k = command->Take("k");
    const bool waiting = command->TakeFlag("waiting", true);
    const DurationNs rtt = command->TakeTime("rtt");
    for (const Rank rank : command->Ranks()) {
      std::uint32_t& steps = local_steps_[rank];
      steps = k.empty() ? steps + 1 : static_cast<std::uint32_t>(std::stoul(k));
      Step(ReadyEvent{.rank = rank,
                      .ready = {.iteration = iterations_[rank] + 1,
                                .waiting = waiting,
                                .local_steps = steps,
                                .rtt_ns = rtt}});
    }
  }

  void Copy(Command* command) {
    const std::string iteration = command->Take("iteration");
    for (const Rank rank : command->Ranks()) {
      iterations_[rank] = iteration.empty() ? newest_ : std::stoll(iteration);
      local_steps_[rank] = 0;
    }
  }

  // It waits, unless results are there that it has not applied.
  void BeReadyForRound(Rank rank, std::uint32_t gradients) {
    InRounds& worker = rounds_.at(rank);
    Ready ready{.iteration = iterations_[rank] + 1, .gradients = gradients};
    worker.owed += gradients;
    worker.waiting = ready.waiting = worker.received == iterations_[rank];
    iterations_[rank] = worker.received;
    Step(ReadyEvent{.rank = rank, .ready = ready, .owed = worker.owed});
  }

  // Members that failed get the result from those that have it, if any has.
  void FinishRound(const GroupFormed& group, const std::set<Rank>& failed) {
    std::vector<Rank> present;
    for (const GroupShare& member : group.members) {
      if (rounds_.contains(member.rank)) present.push_back(member.rank);
    }
    const bool ok = std::any_of(present.begin(), present.end(),
                                [&](Rank rank) { return !failed.contains(rank); });
    for (const Rank rank : present) {
      InRounds& worker = rounds_.at(rank);
      const std::uint32_t given = std::exchange(worker.given, 0);
      if (!ok) worker.owed += given;
      if (ok) worker.received = group.iteration;
      if (worker.waiting && iterations_[rank] < worker.received) {
        worker.waiting = false;
        iterations_[rank] = worker.received;
      }
      Step(FinishedEvent{.rank = rank, .group = group.id, .ok = ok, .owed = worker.owed});
    }
    Step(EndedEvent{.group = group.id, .ok = ok});
  }

  void Finish(Command* command) {
    const auto id = static_cast<GroupId>(transcript::ParseNumber(command->Word(0)));
    const std::vector<Rank> list = command->TakeRanks("failed");
    const std::set<Rank> failed(list.begin(), list.end());
    const GroupFormed group = groups_.at(id);
    groups_.erase(id);
    if (group.kind == GroupKind::kRound) return FinishRound(group, failed);
    bool any = false;
    for (const GroupShare& member : group.members) {
      if (!iterations_.contains(member.rank)) continue;
      const bool ok = !failed.contains(member.rank);
      any = any || ok;
      if (ok) local_steps_[member.rank] = 0;
      if (group.kind == GroupKind::kTrain && !DrawnAhead(engine_->plan()))
        iterations_[member.rank] = ok ? group.iteration : member.iteration - 1;
      Step(FinishedEvent{.rank = member.rank, .group = id, .ok = ok});
    }
    if (any) newest_ = group.iteration;
    const bool shared = group.kind == GroupKind::kTrain && !CountsLocalSteps(engine_->plan());
    Step(EndedEvent{.group = id, .ok = shared ? any : failed.empty()});
  }

  void Leave(Command* command) {
    const auto why =
        Choose<LeftReason>(command->Take("why", "left"), {{"left", LeftReason::kLeft},
                                                          {"lost", LeftReason::kLost},
                                                          {"finished", LeftReason::kFinished}});
    for (const Rank rank : command->Ranks()) {
      iterations_.erase(rank);
      rounds_.erase(rank);
      Step(LeftEvent{.rank = rank, .why = why});
    }
  }

  void Step(const Event& event) {
    Effects effects;
    engine_->Step(now_, event, &next_group_, &effects);
    for (const Effect& effect : effects) {
      const auto* answer = std::get_if<QueryAnswered>(&effect);
      if (answer != nullptr && Exchanges()) {
        iterations_[answer->rank] = answer->next;
        Say("answer " + std::to_string(answer->rank) + ": on to " + std::to_string(answer->next) +
            (answer->workers > 0 ? " of " + std::to_string(answer->workers) + " workers" : "") +
            " (" + answer->reason + ")");
      } else if (answer != nullptr) {
        Say("answer " + std::to_string(answer->rank) + ": " +
            (answer->ready ? "READY (" : "not ready (") + answer->reason + ")");
      } else if (const auto* late = std::get_if<UpdateDropped>(&effect)) {
        Say("catch up " + std::to_string(late->rank) + "@" + std::to_string(late->iteration) +
            " (" + late->reason + ")");
      } else if (const auto* set = std::get_if<ScheduleSet>(&effect)) {
        SaySchedule(*set);
      } else if (const auto* neighbours = std::get_if<NeighboursSet>(&effect)) {
        SayNeighbours(*neighbours);
      } else if (const auto* placement = std::get_if<PlacementSet>(&effect)) {
        SayPlacement(*placement);
      } else if (const auto* opened = std::get_if<PlacementOpened>(&effect)) {
        Say("placement " + std::to_string(opened->epoch) + " is open to " +
            words::Ranks(opened->members));
      } else {
        SayGroup(std::get<GroupFormed>(effect));
      }
    }
  }

  void SaySchedule(const ScheduleSet& set) {
    std::string text = "schedule from " + std::to_string(set.first) + ":";
    for (std::size_t i = 0; i < set.members.size(); ++i) {
      text += " " + std::to_string(set.members[i]) + "/" + std::to_string(set.hosts[i]);
    }
    Say(text + " (" + set.reason + ")");
  }

  // "2@7*0.25": rank 2's updates from iteration 7 on weigh 0.25.
  void SayNeighbours(const NeighboursSet& set) {
    iterations_[set.rank] = set.at;
    std::string text = "neighbours of " + std::to_string(set.rank) + "@" + std::to_string(set.at);
    char share[64];
    std::snprintf(share, sizeof share, "*%.4f: in", set.own_weight);
    text += share;
    for (const InEdge& edge : set.in) {
      std::snprintf(share, sizeof share, " %d@%lld*%.4f", edge.rank,
                    static_cast<long long>(edge.from), edge.weight);
      text += share;
    }
    text += "; out";
    for (const Rank rank : set.out) text += " " + std::to_string(rank);
    Say(text + "; " + std::to_string(set.slots) + " slots (" + set.reason + ")");
  }

  // "1<-0+2,3": rank 1 gets the shard from rank 0, and 2 and 3 have copies.
  void SayPlacement(const PlacementSet& set) {
    epoch_ = set.epoch;
    std::string text = "placement " + std::to_string(set.epoch) + " of";
    for (std::size_t i = 0; i < set.members.size(); ++i) {
      iterations_[set.members[i]] = set.at[i];
      text += " " + std::to_string(set.members[i]) + "@" + std::to_string(set.at[i]);
    }
    text += ":";
    for (const ShardPlace& place : set.shards) {
      text += " " + std::to_string(place.owner);
      if (place.source != place.owner) {
        text += "<-" + (place.source == kNoRank ? "none" : std::to_string(place.source));
      }
      for (std::size_t i = 0; i < place.holders.size(); ++i) {
        text += (i == 0 ? "+" : ",") + std::to_string(place.holders[i]);
      }
    }
    Say(text + " (" + set.reason + ")");
  }

  // "*" of those whom the group answers, "+" of passive members.
  static std::string Members(const std::vector<GroupShare>& members) {
    std::string text;
    for (const GroupShare& member : members) {
      char share[64];
      std::snprintf(share, sizeof share, " %d@%lld%c%.4f", member.rank,
                    static_cast<long long>(member.iteration), member.passive ? '+' : '*',
                    member.weight);
      text += share;
    }
    return text;
  }

  void SayGroup(const GroupFormed& group) {
    std::ostringstream text;
    text << "group " << group.id;
    if (group.kind == GroupKind::kRound) text << " (round)";
    if (group.kind == GroupKind::kAverage) text << " (average)";
    text << ":";
    text << Members(group.members);
    for (const GroupShare& member : group.members) {
      if (group.kind == GroupKind::kRound && member.weight > 0) {
        rounds_.at(member.rank).given = std::exchange(rounds_.at(member.rank).owed, 0);
      }
    }
    if (group.initial_weight > 0) text << " initial*" << group.initial_weight;
    if (!DrawnAhead(engine_->plan())) text << " -> " << group.iteration;
    text << " (" << group.reason << ")" << (group.conflict ? " conflict" : "");
    Say(text.str());
    groups_[group.id] = group;
  }

  void SayDrawn(const Engine::Drawn& drawn) {
    Say((drawn.pending ? "pending " : "buffered ") + std::to_string(drawn.id) + ":" +
        Members(drawn.members) + " (" + drawn.reason + ")");
  }

  void Say(const std::string& text) { said_.push_back(text); }

  bool Exchanges() const { return !TrainsInGroups(engine_->plan()); }
  bool Rounds() const { return TrainsInRounds(engine_->plan()); }

  // A worker of a plan that TrainsInRounds.
  struct InRounds {
    Iteration received = 0;  // the newest round of which it has the result
    std::uint32_t owed = 0;
    std::uint32_t given = 0;  // to the round that runs
    bool waiting = false;
  };

  std::unique_ptr<Engine> engine_;
  Instant now_;
  GroupId next_group_ = 1;
  std::uint64_t epoch_ = 0;               // of the newest placement
  std::map<Rank, Iteration> iterations_;  // of workers that are there
  std::map<Rank, InRounds> rounds_;       // the same
  std::map<Rank, std::uint32_t> local_steps_;
  Iteration newest_ = 0;                   // that a group has ended with
  std::map<GroupId, GroupFormed> groups_;  // that run
  std::vector<std::string> said_;
};

}  // namespace

EngineOptions MakeOptions(Command* command) {
  for (EngineOptions options : AllEngines()) {
    if (EngineName(options) != command->Word(0)) continue;
    OptionTaker taker(command);
    options.Describe(taker);
    return options;
  }
  throw std::invalid_argument("no such engine: " + command->Word(0));
}

std::string RunTranscript(const std::string& text) {
  Play play;
  return transcript::Replay(text, [&](Command* command) { return play.Line(command); });
}

}  // namespace prd
