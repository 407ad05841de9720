#include "tests/engines/controller_transcript.h"

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "engines/controller.h"
#include "engines/registry.h"
#include "engines/replay.h"
#include "tests/engines/body_text.h"
#include "tests/engines/speech.h"
#include "tests/transcript/text.h"

namespace prd {
namespace {

using transcript::Command;

class Ports : public History, public Messenger {
 public:
  Status Append(std::span<const Record> batch) override {
    if (full) return Status(Code::kResourceExhausted, "no space left on device");
    ++appends;
    records.insert(records.end(), batch.begin(), batch.end());
    return Status::Ok();
  }
  Status SaveSnapshot(RunId, std::uint64_t, std::string_view) override { return Status::Ok(); }
  void Send(const ControllerEnvelope& envelope) override { sent.push_back(envelope); }

  bool full = false;
  int appends = 0;
  std::vector<Record> records;
  std::vector<ControllerEnvelope> sent;
};

class ControllerPlay {
 public:
  std::vector<std::string> Line(Command* command) {
    said_.clear();
    using Act = void (ControllerPlay::*)(Command*);
    static const std::map<std::string, Act> kActs = {{"controller", &ControllerPlay::Begin},
                                                     {"start", &ControllerPlay::StartTwo},
                                                     {"at", &ControllerPlay::GoTo},
                                                     {"tick", &ControllerPlay::Tick},
                                                     {"alive", &ControllerPlay::Alive},
                                                     {"connection", &ControllerPlay::Connection},
                                                     {"operator", &ControllerPlay::Operate},
                                                     {"disk", &ControllerPlay::Disk},
                                                     {"restart", &ControllerPlay::Restart},
                                                     {"forget", &ControllerPlay::Forget},
                                                     {"know_ended", &ControllerPlay::RememberEnded},
                                                     {"status", &ControllerPlay::ShowStatus},
                                                     {"explain", &ControllerPlay::Explain}};
    if (controller_ == nullptr && command->name() != "controller") {
      throw std::invalid_argument("the first command must be controller");
    }
    const auto act = kActs.find(command->name());
    if (act != kActs.end()) {
      (this->*act->second)(command);
    } else {
      workers_.Say(command);
    }
    return said_;
  }

 private:
  void Begin(Command* command) {
    death_grace_ms_ = static_cast<std::uint32_t>(command->TakeNumber("death_grace_ms", 200));
    *ports_ = Ports();
    now_ = {};
    drawn_ = 0;
    workers_.Reset(kNoRun, {});
    Forget(command);
  }
  void Forget(Command*) {
    const auto refused = [this](const std::string& job, const HelloRefused& hello) {
      Say("told of a refusal by job \"" + job + "\": " + body_text::Show("", hello));
    };
    controller_ = std::make_unique<Controller>(
        Controller::Options{
            .random = [this] { return ++drawn_; },
            .spec_of = [this](const std::string& text) { return SpecOf("toy", text); },
            .refused = refused},
        [this](const std::string& name) -> Result<JobSpec> {
          if (name == "toy" || name == "another") return SpecOf(name, "");
          return Status(Code::kNotFound, "no job matches " + name);
        },
        ports_.get(), ports_.get());
  }
  Result<JobSpec> SpecOf(const std::string& name, const std::string& text) const {
    JobSpec spec{.name = name, .engine = PReduceOptions{.group_size = 2}, .workers = 2};
    spec.lease_ms = 1000;
    spec.heartbeat_ms = 250;
    spec.death_grace_ms = death_grace_ms_;
    spec.text = text;
    if (text == "all-reduce" || text == "batch-of-2") spec.engine = AllReduceOptions{};
    if (text == "batch-of-2") spec.batch = 2;
    if (text.empty() || text == "all-reduce" || text == "batch-of-2") return spec;
    return Status(Code::kInvalidArgument, "no such spec");
  }

  void StartTwo(Command* command) {
    const bool returns_at_once = command->TakeFlag("returns_at_once");
    for (Rank rank = 0; rank < 2; ++rank) {
      Hello hello = Speakers::HelloOf(rank);
      hello.returns_at_once = returns_at_once;
      workers_.SayHello(rank, std::move(hello));
    }
    now_ = now_ + kMillisecond;
    for (Rank rank = 0; rank < 2; ++rank) workers_.Say(rank, Finished{.group = GroupOf(rank)});
    said_.clear();
  }

  bool Deliver(const WorkerEnvelope& envelope) {
    controller_->Receive(now_, 0, envelope);
    Flush();
    return std::holds_alternative<Hello>(envelope.body) ||
           envelope.seq == workers_.all()[envelope.rank].seq + 1;
  }

  // ---- time, connections, the disk ----

  void GoTo(Command* command) { now_ = {transcript::ParseTime(command->Word(0))}; }
  void Tick(Command* command) {
    if (!command->words().empty()) GoTo(command);
    controller_->Tick(now_);
    Flush();
  }
  void Alive(Command* command) {
    const Instant until{command->TakeTime("until")};
    const DurationNs every = command->TakeTime("every", 100 * kMillisecond);
    quiet_ = true;
    while (now_ < until) {
      now_ = std::min(until, now_ + every);
      for (const Rank rank : command->Ranks()) workers_.Say(rank, Heartbeat{});
      controller_->Tick(now_);
      Flush();
    }
    quiet_ = false;
  }
  void Connection(Command* command) {
    const Rank rank = command->Ranks().at(0);
    const auto own = static_cast<std::int64_t>(workers_.IncarnationOf(rank));
    const auto incarnation = static_cast<Incarnation>(command->TakeNumber("incarnation", own));
    controller_->Connection(now_, incarnation, command->TakeFlag("there"));
    Flush();
  }
  void Disk(Command* command) {
    const bool was_full = std::exchange(ports_->full, command->TakeFlag("full"));
    Flush();
    if (was_full && !ports_->full) controller_->HeardNobody(now_);
  }
  void Operate(Command* command) {
    OperatorActed act{
        .verb = transcript::Choose(command->Word(0), body_text::NamesOf(OperatorVerb())),
        .by = "identity alice"};
    Visit(act, body_text::Taker(command));
    const Status status = controller_->Act(now_, command->Take("job", "toy"), act);
    if (!status.ok()) Say("refused: " + status.ToString());
    Flush();
  }

  // ---- other controllers ----

  // Restores each run from its history, which gives the state that it had.
  void Restart(Command* command) {
    std::map<RunId, std::uint64_t> hashes;
    for (const auto& [id, run] : controller_->runs()) hashes[id] = run->StateHash();
    std::int64_t lose = command->TakeNumber("lose");
    const bool torn = command->TakeFlag("torn");
    const bool snapshot = command->TakeFlag("snapshot");
    std::vector<Record>& records = ports_->records;
    if (lose > 0 || torn) hashes.clear();
    for (; lose > 0; --lose) {
      while (!IsInput(records.back().body)) records.pop_back();
      records.pop_back();
    }
    while (torn && !IsInput(records.back().body)) records.pop_back();
    if (command->Has("only")) {
      const auto only = static_cast<RunId>(command->TakeNumber("only"));
      std::erase_if(records, [only](const Record& record) { return record.run != only; });
      records.resize(records.size() - static_cast<std::size_t>(command->TakeNumber("drop")));
      hashes.clear();
    }
    Forget(command);
    std::map<RunId, std::vector<Record>> runs;
    for (const Record& record : records) runs[record.run].push_back(record);
    for (const auto& [run, of] : runs) {
      const auto& started = std::get<RunStarted>(of.front().body);
      const JobSpec spec = SpecOf(started.job, started.spec).value();
      StoredRun stored(run, spec);
      Status status = stored.Add(of);
      if (status.ok() && snapshot) {
        const std::string state = SaveState(stored.run());
        stored = StoredRun(run, spec);
        status = stored.Load(state, of.size());
      }
      if (status.ok()) status = controller_->Restore(now_, std::move(stored));
      if (!status.ok()) throw std::invalid_argument(status.ToString());
    }
    for (const auto& [id, run] : controller_->runs()) {
      if (hashes.contains(id) && hashes[id] != run->StateHash()) {
        throw std::invalid_argument("run " + std::to_string(id) + " has another state");
      }
    }
    Flush();
  }
  void RememberEnded(Command* command) {
    const auto run = static_cast<RunId>(transcript::ParseNumber(command->Word(0)));
    const std::string job = command->Take("job", "toy");
    const auto identity = static_cast<std::uint64_t>(command->TakeNumber("identity"));
    controller_->RememberEnded(run, job, identity, command->TakeFlag("finished"));
  }

  // ---- what is shown ----

  void ShowStatus(Command*) {
    for (const auto& [id, run] : controller_->runs()) {
      std::vector<std::string> ranks;  // "2:100ms": rank 2 was heard 100 ms ago
      for (Rank rank = 0; rank < static_cast<Rank>(run->workers().size()); ++rank) {
        const std::optional<DurationNs> silence = controller_->Silence(now_, id, rank);
        if (!silence) continue;
        ranks.push_back(std::to_string(rank) + ":" + std::to_string(*silence / kMillisecond) +
                        "ms");
      }
      Say("run " + std::to_string(id) + " of " + run->spec().name + ": " +
          std::string(EngineName(run->spec().engine)) + ", ranks " + body_text::AsText(ranks));
    }
    const Controller::Counters& of = controller_->counters();
    const std::string counted =
        body_text::Shower("")("duplicates", of.duplicates, kUnlessZero)(
            "gaps", of.gaps, kUnlessZero)("refused", of.refused, kUnlessZero)(
            "foreign", of.foreign, kUnlessZero)("resent", of.resent, kUnlessZero)(
            "leases_expired", of.leases_expired, kUnlessZero)(
            "processes_ended", of.processes_ended, kUnlessZero)("histories_lost", of.histories_lost,
                                                                kUnlessZero)
            .Text();
    if (controller_->pending()) Say("something is to be recorded");
    Say("counted: " + (counted.empty() ? "nothing" : counted));
    const std::optional<Instant> next = controller_->NextDeadline();
    Say(next ? "next deadline at " + std::to_string(next->ns / kMillisecond) + "ms"
             : "no deadline");
  }
  void Explain(Command* command) {
    const prd::Run& run =
        *controller_->runs().at(static_cast<RunId>(command->TakeNumber("run", 1)));
    for (const Rank rank : command->Ranks()) {
      Say(RankName(rank) + ": " + run.Explain(now_, rank));
    }
  }

  void Flush() {
    const std::size_t records = ports_->records.size();
    const int appends = ports_->appends;
    const Status status = controller_->Flush();
    if (!status.ok()) {
      if (!ports_->sent.empty()) throw std::invalid_argument("sent before it was recorded");
      return Say("flush: " + status.ToString());
    }
    if (ports_->appends > appends + 1) throw std::invalid_argument("more than one batch");
    std::vector<StepWords::Send> sends;
    for (const ControllerEnvelope& envelope : std::exchange(ports_->sent, {})) {
      Hear(envelope);
      if (quiet_ && std::holds_alternative<HeartbeatAck>(envelope.body)) continue;
      sends.push_back({.to = std::to_string(envelope.incarnation),
                       .body = envelope.body,
                       .suffix = Progress(envelope)});
    }
    const auto appended = std::span(ports_->records).subspan(records);
    for (std::string& said : words_.Of(appended, sends)) Say(std::move(said));
  }
  // Its worker learns its run, and acknowledges the message with the next of its own.
  void Hear(const ControllerEnvelope& envelope) {
    for (auto& [rank, worker] : workers_.all()) {
      if (worker.hello.incarnation != envelope.incarnation) continue;
      if (const auto* welcome = std::get_if<Welcome>(&envelope.body)) worker.run = welcome->run;
      if (envelope.identity.known()) worker.identity = envelope.identity;
      worker.ack = std::max(worker.ack, envelope.seq);
    }
  }
  // Every message of a run says how far its job is. Shown where that is not so.
  std::string Progress(const ControllerEnvelope& envelope) const {
    JobProgress expected;
    for (const auto& [id, run] : controller_->runs()) {
      if (run->identity().high == envelope.identity.high) expected = run->progress();
    }
    const JobProgress& is = envelope.progress;
    if (is == expected || (expected == JobProgress() && envelope.identity.known())) return "";
    return " with progress " + std::to_string(is.trained.steps) + "/" +
           std::to_string(is.trained.samples) + " of " + std::to_string(is.workers);
  }
  GroupId GroupOf(Rank rank) const {
    const auto speaker = workers_.all().find(rank);
    const RunId run = speaker == workers_.all().end() ? kNoRun : speaker->second.run;
    const auto found = controller_->runs().find(run);
    if (found == controller_->runs().end()) return kNoGroup;
    return found->second->workers().at(static_cast<std::size_t>(rank)).group;
  }
  void Say(std::string text) { said_.push_back(std::move(text)); }

  Instant now_;
  std::uint64_t drawn_ = 0;
  std::uint32_t death_grace_ms_ = 200;
  bool quiet_ = false;
  std::unique_ptr<Ports> ports_ = std::make_unique<Ports>();
  std::unique_ptr<Controller> controller_;
  Speakers workers_{[this](const WorkerEnvelope& envelope) { return Deliver(envelope); },
                    [this](Rank rank) { return GroupOf(rank); }};
  StepWords words_{&workers_, true};
  std::vector<std::string> said_;
};

}  // namespace

std::string ReplayController(const std::string& text) {
  ControllerPlay play;
  return transcript::Replay(text, [&play](Command* command) { return play.Line(command); });
}

}  // namespace prd
