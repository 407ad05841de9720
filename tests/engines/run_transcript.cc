#include "tests/engines/run_transcript.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "engines/job.h"
#include "engines/replay.h"
#include "engines/words.h"
#include "tests/engines/body_text.h"
#include "tests/engines/scripted_engine.h"
#include "tests/engines/transcript.h"
#include "tests/plans.h"
#include "tests/transcript/text.h"

namespace prd {
namespace {

using body_text::Show;
using body_text::Shower;
using transcript::Choose;
using transcript::Command;
using State = Job::State;

constexpr const char* kEndpoint = "tcp://127.0.0.1:1";
constexpr Visible kNotZero = Visible::kUnlessZero;

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
                                                     {"hello", &RunPlay::SayHello},
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
      SayMessage(command);
    }
    return said_;
  }

  // A replay of the run, and a snapshot of it, end in its state.
  void CheckReplay() {
    if (run_ == nullptr) return;
    Script again{.plan = script_->plan, .joining = script_->joining, .next = script_->done};
    const std::unique_ptr<Job> replayed = Fresh(&again);
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
    spec.on_nonfinite =
        Choose(command->Take("on_nonfinite", "pass"), body_text::NamesOf(OnNonfinite()));
    spec.on_divergence = Choose<JobSpec::OnDivergence>(
        command->Take("on_divergence", "warn"),
        {{"warn", JobSpec::OnDivergence::kWarn}, {"repair", JobSpec::OnDivergence::kRepair}});
    spec_ = spec;
    groups_.clear();
    hellos_.clear();
    seq_.clear();
    states_.clear();
    lives_.clear();
    run_ = Fresh(script_.get());
    JobOutput out;
    identity_ = former.known() ? identity_ + 1 : 1;
    run_->Start({++now_}, 0, {.high = identity_, .low = 1}, former, &out);
    history_ = out.records;
  }

  std::unique_ptr<Job> Fresh(Script* script) const {
    JobSpec spec = spec_;
    if (scripted_) {
      spec.make_engine = [script](const EngineOptions&) {
        return std::make_unique<ScriptedEngine>(script);
      };
    }
    return std::make_unique<Job>(1, spec);
  }

  void Load(Job* fresh) const {
    const Status status = fresh->Load(SaveState(*run_));
    if (!status.ok()) throw std::invalid_argument("a snapshot: " + status.ToString());
    if (fresh->StateHash() != run_->StateHash()) {
      throw std::invalid_argument("a snapshot has another state");
    }
  }

  void StartAll(Command* command) {
    const std::vector<std::string> hosts = transcript::Split(command->Take("hosts", "host"));
    for (Rank rank = 0; rank < spec_.workers; ++rank) {
      Hello hello = HelloOf(rank);
      hello.host_name = hosts[Index(rank) % hosts.size()];
      Join(rank, NewHello(rank, std::move(hello)));
    }
    for (Rank rank = 0; rank < spec_.workers; ++rank) {
      Deliver(From(rank, Finished{.group = WorkerOf(rank).group}));
    }
    for (Rank rank = 0; rank < spec_.workers; ++rank) {
      if (WorkerOf(rank).state != State::kActive) throw std::invalid_argument("no start");
    }
    said_.clear();
    script_->heard.clear();
  }

  void Step(const Input& input) {
    JobOutput out;
    run_->Step({++now_}, input, &out);
    history_.insert(history_.end(), out.records.begin(), out.records.end());
    SayStep(out);
    if (!reloads_) return;
    std::unique_ptr<Job> loaded = Fresh(script_.get());
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

  Hello HelloOf(Rank rank) const {
    return {.job = spec_.name,
            .rank = rank,
            .host = "h",
            .host_name = body_text::kHostName,
            .pid = body_text::kPid,
            .endpoints = {kEndpoint},
            .model_bytes = 4,
            .model_hash = 9};
  }
  WorkerEnvelope NewHello(Rank rank, Hello hello) {
    const Rank number = rank < 0 ? 9999 : rank;
    return {.incarnation = static_cast<Incarnation>(number) * 100 + ++lives_[rank],
            .seq = 1,
            .body = std::move(hello)};
  }
  WorkerEnvelope From(Rank rank, WorkerBody body) {
    return {.run = 1,
            .identity = run_->identity(),
            .rank = rank,
            .incarnation = hellos_[rank].incarnation,
            .seq = seq_[rank] + 1,
            .body = std::move(body)};
  }

  void SayHello(Command* command) {
    const std::vector<Rank> ranks = command->Ranks();
    const Command keys = *command;
    for (const Rank rank : ranks) {
      Hello hello = HelloOf(rank);
      Command own = keys;
      Visit(hello, body_text::Taker(&own));
      WorkerEnvelope envelope = NewHello(rank, std::move(hello));
      TakeEnvelope(&own, &envelope);
      Join(rank, envelope);
      *command = own;
    }
  }
  void Join(Rank rank, const WorkerEnvelope& envelope) {
    const auto before = std::pair(hellos_[rank], seq_[rank]);
    hellos_[rank] = envelope;
    seq_[rank] = 1;
    if (!Deliver(envelope)) std::tie(hellos_[rank], seq_[rank]) = before;
  }

  void SayMessage(Command* command) {
    const Command keys = *command;
    for (const Rank rank : keys.Ranks()) {
      Command own = keys;
      std::optional<WorkerBody> body = body_text::Take<WorkerBody>(keys.name(), &own);
      if (!body) throw std::invalid_argument("no such command");
      if (auto* finished = std::get_if<Finished>(&*body)) {
        if (!keys.Has("group")) finished->group = WorkerOf(rank).group;
        if (finished->outcome == Outcome::kFailed && !keys.Has("detail")) {
          finished->detail = "test";
        }
      }
      if (auto* probed = std::get_if<Probed>(&*body)) {
        if (!keys.Has("target_incarnation")) {
          probed->incarnation = hellos_[probed->rank].incarnation;
        }
      }
      WorkerEnvelope envelope = From(rank, std::move(*body));
      TakeEnvelope(&own, &envelope);
      Deliver(envelope);
      *command = own;
    }
  }

  void TakeEnvelope(Command* command, WorkerEnvelope* envelope) const {
    const auto take = [command](const char* key, std::uint64_t* value) {
      *value =
          static_cast<std::uint64_t>(command->TakeNumber(key, static_cast<std::int64_t>(*value)));
    };
    take("incarnation", &envelope->incarnation);
    take("seq", &envelope->seq);
    if (!command->Has("token")) return;
    RunIdentity token;
    body_text::Parse(command->Take("token"), &token);
    envelope->token = {token.high, token.low};
  }

  // False: it is not admitted.
  bool Deliver(const WorkerEnvelope& envelope) {
    using Verdict = Job::Admission::Verdict;
    const Job::Admission admission = run_->Admit(envelope);
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
        Say(Words(*admission.refusal));
        return false;
      case Verdict::kStep:
        break;
    }
    if (envelope.rank != kNoRank) seq_[envelope.rank] = envelope.seq;
    Step(FromWorker{envelope});
    return true;
  }

  // ---- what others do ----

  template <typename T>
  void End(Command* command) {
    for (const Rank rank : command->Ranks()) {
      Step(T{.rank = rank, .incarnation = hellos_[rank].incarnation});
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
    if (command->words().empty()) say("the start: ", run_->StartWaits(at));
    for (const Rank rank : command->Ranks()) {
      say(RankName(rank) + ": ", run_->WaitsFor(at, rank));
    }
  }
  void ShowWorkers(Command* command) {
    for (const Rank rank : command->Ranks()) {
      const Job::Worker& worker = WorkerOf(rank);
      const std::string signal = !worker.signal ? "none" : std::to_string(worker.signal->iteration);
      const auto trained = rank < static_cast<Rank>(run_->tallies().size())
                               ? run_->tallies()[Index(rank)].last
                               : Trained();
      Say(Shower(RankName(rank) + ": " + NameOf(worker.state))("iteration", worker.iteration)(
              "signal", signal)("group", worker.group, kNotZero)("owed", worker.owed, kNotZero)(
              "copies", worker.source == kNoRank ? "" : RankName(worker.source), kNotZero)(
              "outdated", worker.outdated, kNotZero)("returns", worker.returns, kNotZero)(
              "own_steps", trained.steps, kNotZero)("own_samples", trained.samples, kNotZero)
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
    Say(Shower("status:")("workers", progress.workers)("steps", progress.trained.steps, kNotZero)(
            "samples", progress.trained.samples, kNotZero)("done", progress.done, kNotZero)(
            "ended", run_->ended(), kNotZero)("finished", run_->finished(), kNotZero)(
            "stopped_by", run_->stopped_by(), kNotZero)("groups", groups, kNotZero)(
            "broken_links", links, kNotZero)("differ", run_->divergence().ranks, kNotZero)(
            "nonfinite", run_->nonfinite(), kNotZero)("draining", draining, kNotZero)(
            "dismissed", run_->dismissed(), kNotZero)("refusals", run_->refusals().size(),
                                                      kNotZero)("numbers_of", given, kNotZero)
            .Text());
    if (run_->next() != nullptr) Say(Show("next", *run_->next()));
  }

  // ---- a step in words ----

  void SayStep(const JobOutput& out) {
    std::string heard;
    for (const std::string& event : std::exchange(script_->heard, {})) {
      if (!event.empty()) heard += (heard.empty() ? "" : ", ") + event;
    }
    if (!heard.empty()) Say("engine: " + heard);
    std::set<std::string> reasons;
    for (const Record& record : out.records) {
      std::visit(
          [&]<typename T>(const T& body) {
            if constexpr (requires { TypeName(body); }) {
              if (IsInput(record.body)) return;
              Say(Show(TypeName(body), body));
            }
            if constexpr (requires { body.reason; }) reasons.insert(body.reason);
            if constexpr (std::is_same_v<T, GroupFormed>) groups_[body.id] = body;
          },
          static_cast<const RecordBody::Variant&>(record.body));
    }
    SaySends(out.sends, reasons);
    SayStates();
  }

  void SaySends(const std::vector<JobOutput::Outgoing>& sends,
                const std::set<std::string>& reasons) {
    std::vector<Rank> to;
    for (std::size_t i = 0; i < sends.size(); ++i) {
      to.push_back(sends[i].rank);
      const std::string text = Message(sends[i], reasons);
      if (i + 1 < sends.size() && Message(sends[i + 1], reasons) == text) continue;
      Say("to " + body_text::AsText(std::exchange(to, {})) + ": " + text);
    }
  }
  std::string Message(const JobOutput::Outgoing& send, const std::set<std::string>& reasons) {
    return std::visit(
        [&](auto body) {
          if constexpr (requires { body.reason; }) {
            if (!body.reason.empty() && reasons.contains(body.reason)) {
              // A group is compared with its record, reason and all.
              if constexpr (!std::is_same_v<decltype(body), Group>) body.reason = "as recorded";
            }
          }
          return Words(body);
        },
        static_cast<const ControllerBody::Variant&>(send.envelope.body));
  }

  // Members as their Hellos told: "0*0.5,1*0.5", without the weights where they have no meaning.
  std::string Text(const std::vector<GroupMember>& members) const {
    std::string text;
    for (const GroupMember& member : members) {
      text += (text.empty() ? "" : ",") + std::to_string(member.rank) +
              (member.weight == 0 ? "" : "*" + body_text::AsText(member.weight)) +
              (member.passive ? "+" : "");
      const auto hello = hellos_.find(member.rank);
      if (hello == hellos_.end() || hello->second.incarnation != member.incarnation ||
          std::get<Hello>(hello->second.body).host != member.host ||
          std::get<Hello>(hello->second.body).endpoints != member.endpoints) {
        text += "(unlike its Hello)";
      }
    }
    return text.empty() ? "none" : text;
  }
  std::string Text(const SharedList<GroupMember>& members) const { return Text(members.get()); }

  std::string Words(const Welcome& m) const {
    return Shower("welcome")("rank", m.rank)("workers", m.workers)(
               "own_steps", m.own.steps, kNotZero)("own_samples", m.own.samples, kNotZero)(
               "goal_steps", m.goal.steps, kNotZero)("goal_samples", m.goal.samples, kNotZero)(
               "on_nonfinite", m.on_nonfinite, kNotZero)
        .Text();
  }
  std::string Words(const Group& m) const {
    const auto found = groups_.find(m.id);
    GroupFormed formed = found == groups_.end() ? GroupFormed() : found->second;
    GroupFormed sent{.id = m.id,
                     .kind = m.kind,
                     .iteration = m.iteration,
                     .initial_weight = m.initial_weight,
                     .reason = m.reason,
                     .conflict = formed.conflict};
    for (const GroupMember& member : m.members) {
      const std::size_t i = sent.members.size();
      sent.members.push_back(
          {.rank = member.rank,
           .weight = member.weight,
           .iteration = i < formed.members.size() ? formed.members[i].iteration : 0,
           .passive = member.passive});
    }
    std::string text = "group " + std::to_string(m.id);
    if (m.ring_only) text += " ring_only";
    if (m.digest) text += " digest";
    if (m.last) text += " last";
    if (Text(m.members).find('(') != std::string::npos) text += " members=" + Text(m.members);
    return sent == formed ? text : text + ", unlike its record: " + Show("", sent);
  }
  std::string Words(const Abort& m) const {
    return Shower("abort")("group", m.group)("undone", m.undone, kNotZero)("reason", m.reason)
        .Text();
  }
  std::string Words(const Adopt& m) const {
    return Shower("adopt")("source", Text(std::vector{m.source}))("result", m.result, kNotZero)(
               "reason", m.reason)
        .Text();
  }
  std::string Words(const Released& m) const {
    return Shower("released")("reason", m.reason).Text();
  }
  std::string Words(const Refused& m) const {
    return Shower("refused")("code", m.code)("retry_ms", m.retry_ms, kNotZero)("reason", m.reason)
        .Text();
  }
  std::string Words(const HeartbeatAck& m) const {
    return Shower("heartbeat_ack")("waits_for", m.waits_for, kNotZero).Text();
  }
  std::string Words(const QueryReply& m) const {
    return Shower("query_reply")("iteration", m.iteration)("local_steps", m.local_steps, kNotZero)(
               "ready", m.ready)("next", m.next, kNotZero)("workers", m.workers, kNotZero)
        .Text();
  }
  std::string Words(const Schedule& m) const {
    return Shower("schedule")("first", m.first)("members", Text(m.members))("hosts", m.hosts)(
               "reason", m.reason)
        .Text();
  }
  std::string Words(const Neighbourhood& m) const {
    return Shower("neighbourhood")("in", Text(m.in))("from", m.from)("out", Text(m.out))(
               "own_weight", m.own_weight)("slots", m.slots)("at", m.at)("reason", m.reason)
        .Text();
  }
  std::string Words(const Placement& m) const {
    return Shower("placement")("epoch", m.epoch)("members", Text(m.members))("shards", m.shards)(
               "at", m.at)("reason", m.reason)
        .Text();
  }
  std::string Words(const Opened& m) const { return Shower("opened")("epoch", m.epoch).Text(); }
  std::string Words(const Probe& m) const {
    return Shower("probe")("targets", Text(m.targets)).Text();
  }
  std::string Words(const Resumed&) const { return "resumed"; }
  std::string Words(const Members& m) const {
    return Shower("members")("members", Text(m.members)).Text();
  }
  std::string Words(const Announce& m) const {
    return Shower("announce")("members", Text(m.members))("copies", m.copies, kNotZero).Text();
  }
  std::string Words(const EndRun& m) const { return Shower("end_run")("reason", m.reason).Text(); }
  std::string Words(const Gone& m) const {
    return Shower("gone")("incarnations", m.incarnations).Text();
  }
  std::string Words(const NumbersMean& m) const {
    return Shower("numbers_mean")("call", m.call)("values", m.values)("wrong", m.wrong, kNotZero)
        .Text();
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
  const Job::Worker& WorkerOf(Rank rank) const { return run_->workers().at(Index(rank)); }
  void Say(std::string text) { said_.push_back(std::move(text)); }

  const bool reloads_;
  bool scripted_ = false;
  JobSpec spec_;
  std::unique_ptr<Script> script_;
  std::unique_ptr<Job> run_;
  std::vector<Record> history_;
  std::uint64_t identity_ = 0;  // of the newest run
  std::int64_t now_ = 0;
  std::map<Rank, std::uint64_t> lives_;    // Hellos so far
  std::map<Rank, WorkerEnvelope> hellos_;  // the newest of each rank that was admitted
  std::map<Rank, Seq> seq_;                // of the newest message
  std::map<Rank, State> states_;           // as they were said
  std::map<GroupId, GroupFormed> groups_;  // as they were recorded
  std::vector<std::string> said_;          // by this command
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
