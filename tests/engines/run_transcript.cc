#include "tests/engines/run_transcript.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "engines/replay.h"
#include "engines/run.h"
#include "engines/words.h"
#include "tests/engines/body_text.h"
#include "tests/engines/scripted_engine.h"
#include "tests/engines/speech.h"
#include "tests/engines/transcript.h"
#include "tests/plans.h"
#include "tests/transcript/text.h"

namespace prd {
namespace {

using body_text::Show;
using body_text::Shower;
using transcript::Choose;
using transcript::Command;
using State = WorkerState;

const std::map<std::string, State> kStateNames = {
    {"absent", State::kAbsent},       {"joining", State::kJoining}, {"starting", State::kStarting},
    {"adopting", State::kAdopting},   {"active", State::kActive},   {"paused", State::kPaused},
    {"finishing", State::kFinishing}, {"final", State::kFinal}};
const std::map<std::string, Plan> kPlans = {
    {"models", plans::kModels},
    {"gradients", plans::kGradients},
    {"rounds", plans::kRounds},
    {"asked", plans::kAsked},
    {"asked_late", plans::kAskedLate},
    {"ahead", plans::kAhead},
    {"background_ahead", plans::Background(2, Membership::kAhead)},
    {"schedule", plans::kSchedule},
    {"neighbours", plans::kNeighbours},
    {"store", plans::kStore}};
const std::map<std::string, Engine::Joining> kJoining = {{"anytime", Engine::Joining::kAnytime},
                                                         {"barrier", Engine::Joining::kBarrier},
                                                         {"pause", Engine::Joining::kPause}};

std::string NameOf(State state) {
  for (const auto& [name, of] : kStateNames) {
    if (of == state) return name;
  }
  return "unknown";
}

// "3s", "999999998ns".
std::string Exactly(DurationNs ns) {
  for (const auto& [unit, name] : {std::pair(kSecond, "s"), std::pair(kMillisecond, "ms")}) {
    if (ns % unit == 0) return std::to_string(ns / unit) + name;
  }
  return std::to_string(ns) + "ns";
}

class RunPlay {
 public:
  explicit RunPlay(bool reloads) : reloads_(reloads) {}

  std::vector<std::string> Line(Command* command) {
    said_.clear();
    using Act = void (RunPlay::*)(Command*);
    static const std::map<std::string, Act> kActs = {{"run", &RunPlay::Begin},
                                                     {"start", &RunPlay::StartAll},
                                                     {"next", &RunPlay::NextEffect},
                                                     {"with", &RunPlay::NextEffect},

                                                     {"lease_expired", &RunPlay::End<LeaseExpired>},
                                                     {"process_ended", &RunPlay::End<ProcessEnded>},
                                                     {"history_lost", &RunPlay::End<HistoryLost>},
                                                     {"hello_refused", &RunPlay::NoteRefusal},
                                                     {"operator", &RunPlay::Operate},
                                                     {"wait", &RunPlay::Wait},
                                                     {"deadline", &RunPlay::GoToDeadline},
                                                     {"explain", &RunPlay::Explain},
                                                     {"waits_for", &RunPlay::WaitsFor},
                                                     {"worker", &RunPlay::ShowWorkers},
                                                     {"status", &RunPlay::ShowStatus}};
    const auto act = kActs.find(command->name());
    if (run_ == nullptr && command->name() != "run") {
      throw std::invalid_argument("the first command must be run");
    }
    if (act != kActs.end()) {
      (this->*act->second)(command);
    } else {
      workers_.Say(command);
    }
    return said_;
  }

  // A replay of the run, and a snapshot of it, end in its state.
  void CheckReplay() {
    if (run_ == nullptr) return;
    Script again{.plan = script_->plan, .joining = script_->joining, .next = script_->done};
    const std::unique_ptr<prd::Run> replayed = Fresh(&again);
    Replay replay(replayed.get());
    for (const Record& record : history_) {
      if (const Status status = replay.Add(record); !status.ok()) {
        throw std::invalid_argument("the replay: " + status.ToString());
      }
    }
    if (!replay.open().empty()) throw std::invalid_argument("the replay decides more");
    if (replayed->StateHash() != run_->StateHash()) {
      throw std::invalid_argument("the replay ends in another state");
    }
    Load(Fresh(&again).get());
  }

 private:
  // ---- the run ----

  void Begin(Command* command) {
    CheckReplay();
    FormerRun former;
    if (command->TakeFlag("follows")) {
      if (run_->next() == nullptr) throw std::invalid_argument("there is no next run");
      former = *run_->next();
      Say(Show("former", former));
    }
    JobSpec spec{.name = "toy", .max_workers = 16};
    script_ = std::make_unique<Script>();
    if (command->Word(0) == "scripted") {
      script_->plan = Choose(command->Take("plan", "models"), kPlans);
      script_->joining = Choose(command->Take("joining", "anytime"), kJoining);
      scripted_ = true;
    } else {
      spec.engine = MakeOptions(command);
      scripted_ = false;
    }
    const auto take = [command]<typename T>(const char* key, T* value) {
      *value = static_cast<T>(command->TakeNumber(key, static_cast<std::int64_t>(*value)));
    };
    take("workers", &spec.workers);
    take("max_workers", &spec.max_workers);
    take("min_workers", &spec.min_workers);
    take("goal_steps", &spec.goal.steps);
    take("goal_samples", &spec.goal.samples);
    take("check_replicas_ms", &spec.check_replicas_ms);
    take("batch", &spec.batch);
    take("batch_multiple", &spec.batch_multiple);
    spec.on_nonfinite =
        Choose(command->Take("on_nonfinite", "pass"), body_text::NamesOf(OnNonfinite()));
    spec.on_divergence = Choose<JobSpec::OnDivergence>(
        command->Take("on_divergence", "warn"),
        {{"warn", JobSpec::OnDivergence::kWarn}, {"repair", JobSpec::OnDivergence::kRepair}});
    spec_ = spec;
    states_.clear();
    run_ = Fresh(script_.get());
    RunOutput out;
    identity_ = former.known() ? identity_ + 1 : 1;
    run_->Start({++now_}, 0, {.high = identity_, .low = 1}, former, &out);
    workers_.Reset(1, run_->identity());
    history_ = out.records;
  }

  std::unique_ptr<prd::Run> Fresh(Script* script) const {
    JobSpec spec = spec_;
    if (scripted_) {
      spec.make_engine = [script](const EngineOptions&) {
        return std::make_unique<ScriptedEngine>(script);
      };
    }
    return std::make_unique<prd::Run>(1, spec);
  }

  void Load(prd::Run* fresh) const {
    const Status status = fresh->Load(SaveState(*run_));
    if (!status.ok()) throw std::invalid_argument("a snapshot: " + status.ToString());
    if (fresh->StateHash() != run_->StateHash()) {
      throw std::invalid_argument("a snapshot has another state");
    }
  }

  void StartAll(Command* command) {
    const std::vector<std::string> hosts = transcript::Split(command->Take("hosts", "host"));
    const bool accumulates = command->TakeFlag("accumulates");
    for (Rank rank = 0; rank < spec_.workers; ++rank) {
      Hello hello = Speakers::HelloOf(rank);
      hello.host_name = hosts[Index(rank) % hosts.size()];
      hello.accumulates = accumulates;
      workers_.SayHello(rank, std::move(hello));
    }
    for (Rank rank = 0; rank < spec_.workers; ++rank) {
      workers_.Say(rank, Finished{.group = WorkerOf(rank).group});
    }
    for (Rank rank = 0; rank < spec_.workers; ++rank) {
      if (WorkerOf(rank).state != State::kActive) throw std::invalid_argument("no start");
    }
    said_.clear();
    script_->heard.clear();
  }

  void Step(const Input& input) {
    RunOutput out;
    run_->Step({++now_}, input, &out);
    history_.insert(history_.end(), out.records.begin(), out.records.end());
    SayStep(out);
    if (!reloads_) return;
    std::unique_ptr<prd::Run> loaded = Fresh(script_.get());
    Load(loaded.get());
    run_ = std::move(loaded);
    CheckReplay();
  }

  // ---- what a scripted engine decides ----

  void NextEffect(Command* command) {
    if (!scripted_) throw std::invalid_argument("this engine decides by itself");
    const std::string& name = command->Word(0);
    std::optional<Effect> effect = body_text::Take<Effect>(name, command);
    if (!effect) throw std::invalid_argument("no such effect: " + name);
    const std::vector<std::string>& words = command->words();
    const auto members = transcript::ParseRanks({words.begin() + 1, words.end()});
    if (auto* group = std::get_if<GroupFormed>(&*effect)) {
      std::vector<double> weights(members.size(), 1 / static_cast<double>(members.size()));
      if (command->Has("weights")) body_text::Parse(command->Take("weights"), &weights);
      const std::vector<Rank> passive = command->TakeRanks("passive");
      for (std::size_t i = 0; i < members.size(); ++i) {
        const bool is = std::count(passive.begin(), passive.end(), members[i]) > 0;
        group->members.push_back({.rank = members[i], .weight = weights.at(i), .passive = is});
      }
    } else if (!members.empty()) {
      throw std::invalid_argument("only a group has its members as words");
    }
    if (auto* answer = std::get_if<QueryAnswered>(&*effect)) {
      answer->workers = static_cast<std::uint32_t>(command->TakeNumber("workers"));
    }
    if (command->name() == "next") {
      script_->next.resize(script_->next.size() + Index(command->TakeNumber("after")) + 1);
    }
    script_->next.back().push_back(std::move(*effect));
  }

  // ---- what workers say ----

  // False: it is not admitted.
  bool Deliver(const WorkerEnvelope& envelope) {
    using Verdict = Admission::Verdict;
    const Admission admission = run_->Admit(envelope);
    switch (admission.verdict) {
      case Verdict::kDuplicate:
        Say("duplicate");
        return false;
      case Verdict::kGap:
        Say("gap");
        return false;
      case Verdict::kForeign:
        Say("foreign");
        return false;
      case Verdict::kRefuse:
        Say(words_.Of(*admission.refusal));
        return false;
      case Verdict::kStep:
        break;
    }
    Step(FromWorker{envelope});
    return true;
  }

  // ---- what others do ----

  template <typename T>
  void End(Command* command) {
    for (const Rank rank : command->Ranks()) {
      Step(T{.rank = rank, .incarnation = workers_.IncarnationOf(rank)});
    }
  }
  void NoteRefusal(Command* command) {
    HelloRefused refused;
    Visit(refused, body_text::Taker(command));
    Step(refused);
  }
  void Operate(Command* command) {
    OperatorActed act{.verb = Choose(command->Word(0), body_text::NamesOf(OperatorVerb())),
                      .by = "identity alice"};
    Visit(act, body_text::Taker(command));
    if (const Status allowed = run_->CheckAct(act); !allowed.ok()) {
      Say("refused: " + allowed.ToString());
    } else {
      Step(act);
    }
  }
  void Wait(Command* command) { now_ += transcript::ParseTime(command->Word(0)); }
  void GoToDeadline(Command*) {
    const std::optional<Instant> deadline = run_->NextDeadline();
    Say(deadline ? "in " + Exactly(*deadline - Instant{now_}) : "no deadline");
    if (!deadline) return;
    now_ = std::max(now_, deadline->ns - 1);
    Step(DeadlineReached{});
  }

  // ---- what is shown on demand ----

  void Explain(Command* command) {
    const Instant at = Instant{now_} + command->TakeTime("in");
    for (const Rank rank : command->Ranks()) Say(RankName(rank) + ": " + run_->Explain(at, rank));
  }
  void WaitsFor(Command* command) {
    const Instant at = Instant{now_} + command->TakeTime("in");
    const auto say = [this](const std::string& who, const std::string& why) {
      Say(who + (why.empty() ? "does not wait" : why));
    };
    if (command->words().empty()) say("the start: ", StartWaits(*run_, at));
    for (const Rank rank : command->Ranks()) {
      say(RankName(rank) + ": ", run_->WaitsFor(at, rank));
    }
  }
  void ShowWorkers(Command* command) {
    for (const Rank rank : command->Ranks()) {
      const RunWorker& worker = WorkerOf(rank);
      const std::string signal = !worker.signal ? "none" : std::to_string(worker.signal->iteration);
      const auto trained = rank < static_cast<Rank>(run_->tallies().size())
                               ? run_->tallies()[Index(rank)].last
                               : Trained();
      Say(Shower(RankName(rank) + ": " + NameOf(worker.state))("iteration", worker.iteration)(
              "signal", signal)("group", worker.group, kUnlessZero)("owed", worker.owed,
                                                                    kUnlessZero)(
              "copies", worker.source == kNoRank ? "" : RankName(worker.source), kUnlessZero)(
              "outdated", worker.outdated, kUnlessZero)("returns", worker.returns, kUnlessZero)(
              "own_steps", trained.steps, kUnlessZero)("own_samples", trained.samples, kUnlessZero)
              .Text());
    }
  }
  void ShowStatus(Command*) {
    const JobProgress progress = run_->progress();
    std::vector<std::string> groups;
    for (const auto& [id, group] : run_->groups()) {
      groups.push_back(std::to_string(id) + ":" + body_text::AsText(group.kind) +
                       (group.compares ? ":compares" : ""));
    }
    std::vector<std::string> links;
    for (const auto& [pair, link] : run_->broken_links()) {
      links.push_back(std::to_string(pair.first) + "-" + std::to_string(pair.second));
    }
    std::vector<Rank> draining;
    for (const auto& [rank, why] : run_->draining()) draining.push_back(rank);
    std::vector<Rank> given;
    for (const GivenNumbers& of : run_->numbers().given()) given.push_back(of.rank);
    Say(Shower("status:")("workers", progress.workers)("steps", progress.trained.steps,
                                                       kUnlessZero)(
            "samples", progress.trained.samples, kUnlessZero)("done", progress.done, kUnlessZero)(
            "ended", run_->ended(), kUnlessZero)("finished", run_->finished(), kUnlessZero)(
            "stopped_by", run_->stopped_by(), kUnlessZero)("groups", groups, kUnlessZero)(
            "broken_links", links, kUnlessZero)("differ", run_->divergence().ranks, kUnlessZero)(
            "nonfinite", run_->clock().nonfinite(), kUnlessZero)("draining", draining, kUnlessZero)(
            "dismissed", run_->dismissed(), kUnlessZero)(
            "refusals", run_->refusals().size(), kUnlessZero)("numbers_of", given, kUnlessZero)
            .Text());
    if (run_->next() != nullptr) Say(Show("next", *run_->next()));
  }

  // ---- a step in words ----

  void SayStep(const RunOutput& out) {
    std::string heard;
    for (const std::string& event : std::exchange(script_->heard, {})) {
      if (!event.empty()) heard += (heard.empty() ? "" : ", ") + event;
    }
    if (!heard.empty()) Say("engine: " + heard);
    std::vector<StepWords::Send> sends;
    for (const RunOutput::Outgoing& send : out.sends) {
      sends.push_back({.to = std::to_string(send.rank), .body = send.envelope.body});
    }
    for (std::string& said : words_.Of(out.records, sends)) Say(std::move(said));
    SayStates();
  }

  void SayStates() {
    std::map<std::string, std::vector<Rank>> changed;
    for (Rank rank = 0; Index(rank) < run_->workers().size(); ++rank) {
      const State now = WorkerOf(rank).state;
      if (std::exchange(states_[rank], now) != now) changed[NameOf(now)].push_back(rank);
    }
    for (const auto& [state, ranks] : changed) Say(words::Ranks(ranks) + ": " + state);
  }

  static std::size_t Index(std::int64_t rank) { return static_cast<std::size_t>(rank); }
  const RunWorker& WorkerOf(Rank rank) const { return run_->workers().at(Index(rank)); }
  void Say(std::string text) { said_.push_back(std::move(text)); }

  const bool reloads_;
  bool scripted_ = false;
  JobSpec spec_;
  std::unique_ptr<Script> script_;
  std::unique_ptr<prd::Run> run_;
  std::vector<Record> history_;
  std::uint64_t identity_ = 0;  // of the newest run
  std::int64_t now_ = 0;
  Speakers workers_{[this](const WorkerEnvelope& envelope) { return Deliver(envelope); },
                    [this](Rank rank) { return WorkerOf(rank).group; }};
  StepWords words_{&workers_};
  std::map<Rank, State> states_;   // as they were said
  std::vector<std::string> said_;  // by this command
};

}  // namespace

std::string ReplayRun(const std::string& text, bool reloads) {
  RunPlay play(reloads);
  const std::string transcript =
      transcript::Replay(text, [&play](Command* command) { return play.Line(command); });
  play.CheckReplay();
  return transcript;
}

}  // namespace prd
