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

namespace prd {

namespace {

// One line, split into words and key=value pairs.
struct Command {
  std::string name;
  std::vector<std::string> words;
  std::map<std::string, std::string> keys;

  explicit Command(const std::string& line) {
    std::istringstream in(line);
    in >> name;
    for (std::string word; in >> word;) {
      const std::size_t equals = word.find('=');
      if (equals == std::string::npos) {
        words.push_back(word);
      } else {
        keys[word.substr(0, equals)] = word.substr(equals + 1);
      }
    }
  }

  std::string Take(const std::string& key, const std::string& otherwise) {
    const auto found = keys.find(key);
    if (found == keys.end()) return otherwise;
    std::string value = found->second;
    keys.erase(found);
    return value;
  }

  std::vector<Rank> Ranks() const {
    std::vector<Rank> ranks;
    for (const std::string& word : words) ranks.push_back(std::stoi(word));
    return ranks;
  }
};

template <typename Enum>
Enum Choose(const std::string& word, const std::map<std::string, Enum>& names) {
  const auto found = names.find(word);
  if (found == names.end()) throw std::invalid_argument("no such value: " + word);
  return found->second;
}

EagerOptions MakeEager(Command* command) {
  using Missed = EagerOptions::Missed;
  EagerOptions options;
  const std::string quorum = command->Take("quorum", "majority");
  options.quorum = quorum == "majority" ? EagerOptions::kMajority
                   : quorum == "solo"   ? EagerOptions::kSolo
                                        : std::stoll(quorum);
  options.seed = std::stoll(command->Take("seed", "1"));
  options.max_stale_rounds = std::stoll(command->Take("max_stale_rounds", "16"));
  options.sync_every = std::stoll(command->Take("sync_every", "500"));
  options.missed = Choose<Missed>(command->Take("missed", "sum"),
                                  {{"sum", Missed::kSum}, {"latest", Missed::kLatest}});
  return options;
}

EsyncOptions MakeEsync(Command* command) {
  using Mode = EsyncOptions::Mode;
  EsyncOptions options;
  options.mode = Choose<Mode>(command->Take("mode", "blocking"),
                              {{"blocking", Mode::kBlocking}, {"delayed-ack", Mode::kDelayedAck}});
  options.margin_ms = std::stoll(command->Take("margin_ms", "1"));
  options.global_lr = std::stod(command->Take("global_lr", "1"));
  options.stall_factor = std::stoll(command->Take("stall_factor", "8"));
  return options;
}

// By its name, or a list: 0-1,1-2.
Graph MakeGraph(const std::string& text) {
  using Kind = Graph::Kind;
  for (const Kind kind :
       {Kind::kRing, Kind::kComplete, Kind::kRingBased, Kind::kDoubleRing, Kind::kHierarchical}) {
    if (text == ToText(Graph{.kind = kind, .edges = {}})) return {.kind = kind, .edges = {}};
  }
  Graph graph{.kind = Kind::kEdges, .edges = {}};
  std::istringstream edges(text);
  for (std::string edge; getline(edges, edge, ',');) {
    const std::size_t dash = edge.find('-');
    graph.edges.emplace_back(std::stoi(edge), std::stoi(edge.substr(dash + 1)));
  }
  return graph;
}

HopOptions MakeHop(Command* command) {
  HopOptions options;
  options.graph = MakeGraph(command->Take("graph", "ring-based"));
  options.directed = command->Take("directed", "0") == "1";
  options.max_iteration_gap = std::stoi(command->Take("max_iteration_gap", "5"));
  options.backups = std::stoi(command->Take("backups", "0"));
  options.staleness = std::stoi(command->Take("staleness", "0"));
  options.max_jump = std::stoi(command->Take("max_jump", "0"));
  options.skip_behind = std::stoi(command->Take("skip_behind", "2"));
  return options;
}

SspOptions MakeSsp(Command* command) {
  SspOptions options;
  options.staleness = std::stoi(command->Take("staleness", "3"));
  options.replicas = std::stoi(command->Take("replicas", "1"));
  options.shards = std::stoi(command->Take("shards", "0"));
  return options;
}

AdPsgdOptions MakeAdPsgd(Command* command) {
  AdPsgdOptions options;
  options.graph = MakeGraph(command->Take("graph", "complete"));
  options.seed = std::stoll(command->Take("seed", "1"));
  return options;
}

PragueOptions MakePrague(Command* command) {
  using Generator = PragueOptions::Generator;
  PragueOptions options;
  options.generator =
      Choose<Generator>(command->Take("generator", "smart"), {{"random", Generator::kRandom},
                                                              {"static", Generator::kStatic},
                                                              {"smart", Generator::kSmart}});
  options.group_size = std::stoi(command->Take("group_size", "3"));
  options.slowdown_threshold = std::stoll(command->Take("slowdown_threshold", "8"));
  options.inter_intra = command->Take("inter_intra", "1") == "1";
  options.request_ahead = command->Take("request_ahead", "1") == "1";
  options.workers_per_host = std::stoi(command->Take("workers_per_host", "0"));
  options.overlap = command->Take("overlap", "0") == "1";
  options.seed = std::stoll(command->Take("seed", "1"));
  return options;
}

EngineOptions MakeOptions(Command* command) {
  if (command->words.at(0) == "prague") return MakePrague(command);
  if (command->words.at(0) == "ad-psgd") return MakeAdPsgd(command);
  if (command->words.at(0) == "hop") return MakeHop(command);
  if (command->words.at(0) == "ssp") return MakeSsp(command);
  if (command->words.at(0) == "eager") return MakeEager(command);
  if (command->words.at(0) == "esync") return MakeEsync(command);
  if (command->words.at(0) == "backup") {
    return BackupOptions{.backups = std::stoi(command->Take("backups", "1"))};
  }
  if (command->words.at(0) == "all-reduce") {
    using Weights = AllReduceOptions::Weights;
    return AllReduceOptions{.weights = Choose<Weights>(
                                command->Take("weights", "samples"),
                                {{"samples", Weights::kSamples}, {"uniform", Weights::kUniform}})};
  }
  using Weights = PReduceOptions::Weights;
  using Missing = PReduceOptions::Missing;
  PReduceOptions options;
  options.group_size = std::stoi(command->Take("group_size", "3"));
  options.weights =
      Choose<Weights>(command->Take("weights", "dynamic"),
                      {{"dynamic", Weights::kDynamic}, {"constant", Weights::kConstant}});
  options.alpha = std::stod(command->Take("alpha", "0.5"));
  options.missing = Choose<Missing>(command->Take("missing", "nearest"),
                                    {{"nearest", Missing::kNearest},
                                     {"initial", Missing::kInitial},
                                     {"renormalize", Missing::kRenormalize}});
  options.history_window = std::stoi(command->Take("history_window", "0"));
  options.max_wait_ms = std::stoi(command->Take("max_wait_ms", "0"));
  options.overlap = command->Take("overlap", "0") == "1";
  return options;
}

Instant ParseTime(const std::string& text) {
  std::size_t used = 0;
  const double value = std::stod(text, &used);
  const std::string unit = text.substr(used);
  const auto ns = Choose<DurationNs>(unit, {{"ms", kMillisecond}, {"s", kSecond}});
  return {static_cast<std::int64_t>(value * static_cast<double>(ns))};
}

class Play {
 public:
  std::string Line(const std::string& line) {
    Command command(line);
    said_.clear();
    if (command.name == "engine") {
      const EngineOptions options = MakeOptions(&command);
      if (const Status valid = Validate(options, 0); !valid.ok()) {
        throw std::invalid_argument(valid.ToString());
      }
      *this = Play();
      engine_ = MakeEngine(options);
    } else if (engine_ == nullptr) {
      throw std::invalid_argument("the first command must be engine: " + line);
    } else {
      Apply(&command);
    }
    if (!command.keys.empty()) throw std::invalid_argument("unknown key in: " + line);
    return said_;
  }

 private:
  void Apply(Command* command) {
    if (command->name == "join") return Join(command);
    if (command->name == "ready") return BeReady(command);
    if (command->name == "finish") return Finish(command);
    if (command->name == "leave") return Leave(command);
    if (command->name == "copy") return Copy(command);
    if (command->name == "placed") {
      for (const Rank rank : command->Ranks()) Step(PlacedEvent{.rank = rank, .epoch = epoch_});
      return;
    }
    if (command->name == "at") {
      now_ = ParseTime(command->words.at(0));
    } else if (command->name == "deadline") {
      const std::optional<Instant> deadline = engine_->NextDeadline();
      Say(deadline ? "at " + words::Duration(deadline->ns) : "none");
      if (!deadline) return;
      now_ = *deadline;
      Step(DeadlineEvent{});
    } else if (command->name == "drawn") {
      for (const Engine::Drawn& drawn : engine_->DrawnGroups()) SayDrawn(drawn);
    } else if (command->name == "explain") {
      for (const Rank rank : command->Ranks()) {
        const std::string why = engine_->Explain(now_, rank);
        Say("rank " + std::to_string(rank) + ": " + (why.empty() ? "(not waiting)" : why));
      }
    } else {
      throw std::invalid_argument("no such command: " + command->name);
    }
  }

  void Join(Command* command) {
    const std::string host = command->Take("host", "h");
    const Iteration iteration = std::stoll(command->Take("iteration", "0"));
    for (const Rank rank : command->Ranks()) {
      iterations_[rank] = iteration;
      rounds_[rank] = {.received = iteration};
      Step(JoinedEvent{.rank = rank, .iteration = iteration, .host = host});
    }
  }

  void BeReady(Command* command) {
    const std::string iteration = command->Take("iteration", "");
    const std::int64_t samples = std::stoll(command->Take("samples", "0"));
    const bool cut = command->Take("gradients", "1") == "0";
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
    const std::string k = command->Take("k", "");
    const bool waiting = command->Take("waiting", "1") == "1";
    const DurationNs rtt = ParseTime(command->Take("rtt", "0ms")).ns;
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
    const std::string iteration = command->Take("iteration", "");
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

  // Who failed gets the result from those who have it, if anybody has.
  void FinishRound(const FormGroup& group, const std::set<Rank>& failed) {
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
    const GroupId id = std::stoull(command->words.at(0));
    std::set<Rank> failed;
    std::istringstream list(command->Take("failed", ""));
    for (std::string rank; std::getline(list, rank, ',');) failed.insert(std::stoi(rank));
    const FormGroup group = groups_.at(id);
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
      const auto* answer = std::get_if<Answer>(&effect);
      if (answer != nullptr && Exchanges()) {
        iterations_[answer->rank] = answer->next;
        Say("answer " + std::to_string(answer->rank) + ": on to " + std::to_string(answer->next) +
            (answer->workers > 0 ? " of " + std::to_string(answer->workers) + " workers" : "") +
            " (" + answer->reason + ")");
      } else if (answer != nullptr) {
        Say("answer " + std::to_string(answer->rank) + ": " +
            (answer->ready ? "READY (" : "not ready (") + answer->reason + ")");
      } else if (const auto* late = std::get_if<CatchUp>(&effect)) {
        Say("catch up " + std::to_string(late->rank) + "@" + std::to_string(late->iteration) +
            " (" + late->reason + ")");
      } else if (const auto* set = std::get_if<SetSchedule>(&effect)) {
        SaySchedule(*set);
      } else if (const auto* neighbours = std::get_if<NeighboursSet>(&effect)) {
        SayNeighbours(*neighbours);
      } else if (const auto* placement = std::get_if<PlacementSet>(&effect)) {
        SayPlacement(*placement);
      } else if (const auto* opened = std::get_if<PlacementOpened>(&effect)) {
        Say("placement " + std::to_string(opened->epoch) + " is open to " +
            words::Ranks(opened->members));
      } else {
        SayGroup(std::get<FormGroup>(effect));
      }
    }
  }

  void SaySchedule(const SetSchedule& set) {
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

  void SayGroup(const FormGroup& group) {
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

  void Say(const std::string& text) { said_ += "> " + text + "\n"; }

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
  Iteration newest_ = 0;                 // that a group has ended with
  std::map<GroupId, FormGroup> groups_;  // that run
  std::string said_;
};

}  // namespace

std::string RunTranscript(const std::string& text) {
  Play play;
  std::istringstream in(text);
  std::string result;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("> ")) continue;
    result += line + "\n";
    if (!line.empty() && line[0] != '#') result += play.Line(line);
  }
  return result;
}

}  // namespace prd
