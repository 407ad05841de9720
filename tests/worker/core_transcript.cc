#include "tests/worker/core_transcript.h"

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <utility>
#include <variant>
#include <vector>

#include "tests/worker/core_controller_words.h"
#include "tests/worker/core_words.h"
#include "worker/core/step_shares.h"
#include "worker/core/trained_report.h"

namespace prd::testing {

namespace {

using namespace core_words;
using transcript::Choose;
using transcript::Command;
using transcript::ParseNumber;
using transcript::ParseTime;

constexpr Instant kStart{kSecond};

Incarnation FromPeer(Command* command, Incarnation me) {
  return Named(command->Take("from", "4"), me)[0].incarnation;
}

// Lines that are said several times in a row become one.
std::vector<std::string> Shortened(const std::vector<std::string>& said) {
  std::vector<std::string> lines;
  for (std::size_t i = 0, end = 0; i < said.size(); i = end) {
    while (end < said.size() && said[end] == said[i]) ++end;
    lines.push_back(said[i] + (end - i > 1 ? " x " + std::to_string(end - i) : ""));
  }
  return lines;
}

class Play {
 public:
  std::vector<std::string> Line(Command* command) {
    said_.clear();
    if (command->name() == "worker" || command->name() == "join") {
      *this = Play();
      core_ = std::make_unique<SessionCore>();
      core_->GiveIncarnation(kMe);
      if (command->name() == "join") Join(command);
    } else if (core_ == nullptr) {
      throw std::invalid_argument("the first command must be worker or join");
    } else {
      Carry(command);
    }
    return said_;
  }

 private:
  // One command, and what it led to.
  void Carry(Command* command) {
    using Commands = std::map<std::string, std::function<void(Play*, Command*)>>;
    static const Commands kOwn = {
        {"ack", &Play::Acknowledge},
        {"alive", &Play::Alive},
        {"applied", &Play::Applied},
        {"attach", &Play::Attach},
        {"average", &Play::Average},
        {"busy", &Play::Busy},
        {"cancel", &Play::Cancel},
        {"connected", &Play::Connected},
        {"copied", &Play::Copied},
        {"deadline", &Play::Deadline},
        {"fail", &Play::Fail},
        {"fetched", &Play::Fetched},
        {"finish", &Play::Finish},
        {"gradients", &Play::Gradients},
        {"handed-over", &Play::HandedOver},
        {"incarnation", &Play::GiveIncarnation},
        {"later", &Play::Later},
        {"leave", &Play::Leave},
        {"leave-soon", &Play::LeaveSoon},
        {"losses", &Play::TellLosses},
        {"mean", &Play::Mean},
        {"no-connection", &Play::NoConnection},
        {"nonfinite", &Play::Nonfinite},
        {"note", &Play::Note},
        {"out-of-reach", &Play::OutOfReach},
        {"pass", &Play::Pass},
        {"pause", &Play::Pause},
        {"probed", &Play::Probed},
        {"pulled", &Play::Pulled},
        {"reduced", &Play::Reduced},
        {"request", &Play::Ask},
        {"resume", &Play::Resume},
        {"share", &Play::ShowShare},
        {"step", &Play::Step},
        {"stop", &Play::Stop},
        {"trained", &Play::Trained},
        {"welcome", &Play::Welcome},
    };
    static const Commands kAll = [] {
      Commands all = kOwn;
      for (const auto& [name, word] : ControllerWords()) {
        all[name] = [&word](Play* play, Command* said) {
          play->Say(said, word.body(said, play->expected_.me), word.in_order);
        };
      }
      return all;
    }();
    Choose(command->name(), kAll)(this, command);
    Look();
  }

  // ---- the user ----

  void Attach(Command* command) {
    SessionCore::Options options;
    options.hello.job = "job";
    options.hello.rank = kRank;
    options.hello.own = ParseTrained(command->Take("own"));
    options.hello.job_trained = ParseTrained(command->Take("job_trained"));
    options.hello.gradients =
        command->Take("gradients") == "later" ? HasGradients::kLater : HasGradients::kHere;
    options.hello.accumulates = command->TakeFlag("accumulates");
    options.hello.max_share = command->TakeNumber("max_share");
    options.timeout = command->TakeTime("timeout");
    options.start_timeout = command->TakeTime("start_timeout");
    options.controller = command->Take("controller", "tcp://c:1");
    options.token = expected_.header.token;
    expected_.hello = options.hello;
    BeginCall();
    core_->Attach(now_, options, &actions_);
  }

  void Step(Command* command) {
    const prd::Ready ready{.iteration = ParseNumber(command->Word(0)),
                           .step_ns = 5,
                           .samples = command->TakeNumber("samples", 6)};
    const bool discard = command->TakeFlag("discard");
    BeginCall(true);
    core_->Step(now_, ready, discard, command->TakeNumber("taken"), &actions_);
  }

  void Applied(Command* command) {
    const std::int64_t rounds = command->TakeNumber("rounds", 1);
    const auto digest = static_cast<std::uint64_t>(command->TakeNumber("digest"));
    core_->Applied(now_, ParseNumber(command->Word(0)), rounds, &actions_, digest);
  }

  void Finish(Command*) {
    BeginCall();
    core_->Finish(now_, &actions_);
  }
  void Pause(Command*) {
    BeginCall();
    core_->Pause(now_, &actions_);
  }
  void Resume(Command*) {
    BeginCall();
    core_->Resume(now_, &actions_);
  }
  void Average(Command* command) {
    BeginCall();
    core_->Average(now_, command->TakeFlag("state"), &actions_);
  }
  void Mean(Command* command) {
    std::vector<double> values;
    for (const std::string& word : command->words()) values.push_back(std::stod(word));
    BeginCall();
    core_->Mean(now_, values, command->TakeFlag("resumes", true), &actions_);
  }
  void Leave(Command* command) {
    in_call_ = true;  // also instead of the end of the call in progress
    in_step_ = false;
    core_->Leave(now_, {.reason = command->Word(0)}, &actions_);
  }
  void LeaveSoon(Command* command) {
    core_->LeaveSoon(now_, command->Word(0), command->TakeTime("grace"), &actions_);
  }
  void Stop(Command* command) { core_->Stop(now_, command->Word(0), &actions_); }
  void Cancel(Command*) { core_->Cancel(now_, &actions_); }
  void Fail(Command* command) { core_->Fail(now_, ParseStatus(*command, 0), &actions_); }
  void Gradients(Command*) { core_->HasGradientsNow(); }
  void Nonfinite(Command*) { core_->report().NoteNonfinite(); }
  void TellLosses(Command* command) {
    core_->report().NoteLosses({.count = static_cast<std::uint32_t>(ParseNumber(command->Word(0))),
                                .mean = command->TakeReal("mean")});
  }

  // ---- the controller ----

  void Say(Command* command, ControllerBody body, bool in_order = true) {
    if (in_order && !command->Has("seq")) ++seq_;
    const Seq seq = static_cast<Seq>(
        command->TakeNumber("seq", in_order ? static_cast<std::int64_t>(seq_) : 0));
    heard_ = static_cast<Seq>(command->TakeNumber("ack", static_cast<std::int64_t>(heard_)));
    if (const std::string identity = command->Take("identity"); !identity.empty()) {
      const std::vector<std::string> halves = transcript::Split(identity, '/');
      identity_ = {static_cast<std::uint64_t>(ParseNumber(halves.at(0))),
                   static_cast<std::uint64_t>(ParseNumber(halves.at(1)))};
    }
    const prd::JobProgress progress{
        .trained = ParseTrained(command->Take("trained")),
        .workers = static_cast<std::int32_t>(command->TakeNumber("job_workers")),
        .done = command->TakeFlag("done")};
    const auto to = static_cast<Incarnation>(
        command->TakeNumber("to", static_cast<std::int64_t>(core_->incarnation())));
    names_ = MembersOf(body);
    core_->OnEnvelope(now_,
                      {.identity = identity_,
                       .incarnation = to,
                       .seq = seq,
                       .ack = heard_,
                       .progress = progress,
                       .body = std::move(body)},
                      &actions_);
  }

  void Welcome(Command* command) {
    prd::Welcome welcome{.run = static_cast<RunId>(command->TakeNumber("run", 9)),
                         .rank = static_cast<Rank>(command->TakeNumber("rank", kRank)),
                         .job = "job",
                         .engine = command->Take("engine", "e"),
                         .plan = ParsePlan(command),
                         .workers = 2,
                         .lease_ms = 2000,
                         .heartbeat_ms = 100,
                         .own = ParseTrained(command->Take("own")),
                         .job_calls = command->TakeFlag("calls"),
                         .batch = command->TakeNumber("batch")};
    if (!command->Has("seq")) {
      seq_ = 0;
      heard_ = 1;
    }
    expected_.welcome = welcome;
    Say(command, welcome);
  }

  void ShowShare(Command* command) {
    const auto ahead = static_cast<int>(command->TakeNumber("ahead"));
    const StepShares::Piece piece = ahead > 0 ? core_->shares().Ahead(core_->iteration(), ahead)
                                              : core_->shares().Next(core_->iteration());
    said_.push_back("now " + std::to_string(piece.samples) + " samples of step " +
                    std::to_string(piece.step) + " from " + std::to_string(piece.first));
  }

  // A store's common start ends with the first placement: ranks 3 and 4 own a shard each.
  void Join(Command* command) {
    const auto run = [this](const std::string& line) {
      Command part(line);
      Carry(&part);
    };
    const bool store = command->Word(0) == "store";
    const std::string attach = "attach timeout=" + command->Take("timeout", "0s") +
                               " accumulates=" + command->Take("accumulates", "0") +
                               " max_share=" + command->Take("max_share", "0");
    run(attach);
    Welcome(command);
    Look();
    run("group 1 initial at=0");
    run("reduced 1");
    if (store) {
      run(R"(placement 1 members="3 4" shards="3<-none 4<-none")");
      run("opened 1");
      run("pulled 1");
    }
    if (in_call_) throw std::logic_error("is not through the common start");
    Acknowledge(command);
    Look();
    said_.clear();
  }

  void Acknowledge(Command* command) {
    heard_ = expected_.header.seq;
    Say(command, HeartbeatAck{.waits_for = command->Take("waits_for")}, false);
  }

  // ---- the data plane ----

  void Reduced(Command* command) {
    core_->OnReduced(now_, static_cast<GroupId>(ParseNumber(command->Word(0))),
                     ParseStatus(*command, 1),
                     static_cast<std::uint64_t>(command->TakeNumber("bytes")), &actions_,
                     command->TakeRanks("unreachable"),
                     static_cast<std::uint64_t>(command->TakeNumber("digest")));
  }
  void Fetched(Command* command) {
    core_->OnFetched(now_, ParseStatus(*command, 1), ParseNumber(command->Word(0)), &actions_,
                     command->TakeNumber("in_inbox"));
  }
  void Copied(Command* command) {
    core_->OnCopiedForAverage(now_, ParseStatus(*command, 0), &actions_);
  }
  void HandedOver(Command* command) {
    const std::optional<StepOutcome> step =
        core_->HandedOver(static_cast<GroupId>(ParseNumber(command->Word(0))));
    expected_.own = core_->own();
    said_.push_back(step ? "ends the step:" + Of(*step, expected_) : "does not end the step");
  }
  void Note(Command* command) {
    using Kind = PeerMessage::Kind;
    const PeerMessage note{.kind = Choose<Kind>(command->Word(0), {{"offer", Kind::kOffer},
                                                                   {"declined", Kind::kDeclined},
                                                                   {"stored", Kind::kStored}}),
                           .parcel = ParseItem(command, 1),
                           .version = command->TakeNumber("version"),
                           .workers = static_cast<std::uint32_t>(command->TakeNumber("workers"))};
    core_->OnNote(now_, FromPeer(command, expected_.me), note, &actions_);
  }
  void Ask(Command* command) {
    core_->OnRequest(now_, FromPeer(command, expected_.me),
                     static_cast<Request>(ParseNumber(command->Word(0))), ParseItem(command, 1),
                     &actions_);
  }
  void Pulled(Command* command) {
    core_->OnPulled(now_, static_cast<Ticket>(ParseNumber(command->Word(0))),
                    ParseStatus(*command, 1), {.version = command->TakeNumber("version")},
                    &actions_);
  }
  void Probed(Command* command) {
    const GroupMember member = Named(command->words(), expected_.me).front();
    core_->OnProbed(now_, member.rank, member.incarnation, &actions_);
  }
  void OutOfReach(Command* command) {
    core_->OnOutOfReach(now_, command->Ranks().at(0), &actions_);
  }
  void Connected(Command*) { core_->OnConnected(now_, &actions_); }
  void NoConnection(Command* command) { core_->OnNoConnection(command->Word(0)); }

  // ---- time, and what the core says of itself ----

  void GiveIncarnation(Command* command) {
    core_->GiveIncarnation(static_cast<Incarnation>(ParseNumber(command->Word(0))));
  }
  void Busy(Command* command) { core_->KeepLease(now_ + ParseTime(command->Word(0)), &actions_); }
  void Later(Command* command) { now_ = now_ + ParseTime(command->Word(0)); }
  void Pass(Command* command) {
    Later(command);
    core_->OnTime(now_, &actions_);
  }
  void Alive(Command* command) {
    const DurationNs every = command->TakeTime("every", kSecond);
    const std::string refused = command->Take("refused");
    const HeartbeatAck ack{.waits_for = command->Take("waits_for")};
    for (const Instant end = now_ + ParseTime(command->Word(0)); now_ < end;) {
      if (refused.empty()) {
        Say(command, ack, false);
      } else {
        const auto retry_ms = static_cast<std::uint32_t>(every / kMillisecond);
        Say(command, prd::Refused{Code::kUnavailable, refused, retry_ms}, false);
      }
      now_ = now_ + every;
      core_->OnTime(now_, &actions_);
    }
  }
  void Deadline(Command*) {
    const std::optional<Instant> deadline = core_->NextDeadline();
    said_.push_back(deadline ? "in " + Time(*deadline - now_) : "none");
  }
  void Trained(Command*) { said_.push_back(Of(core_->own())); }

  void BeginCall(bool step = false) {
    if (in_call_) throw std::logic_error("a call is in progress");
    in_call_ = true;
    in_step_ = step;
  }

  // What the command led to.
  void Look() {
    expected_.me = core_->incarnation() == 0 ? kMe : core_->incarnation();
    for (const Action& action : std::exchange(actions_, {})) Take(action);
    said_ = Shortened(said_);
    if (in_call_ != core_->in_call()) throw std::logic_error("the call is not what it should be");
    for (const std::vector<GroupMember>& list : std::exchange(names_, {})) {
      said_.push_back("not announced: " + Of(list, expected_.me));
    }
    if (core_->iteration() != iteration_) {
      iteration_ = core_->iteration();
      said_.push_back("now at iteration " + std::to_string(iteration_));
    }
    if (core_->paused() != paused_) {
      paused_ = core_->paused();
      said_.push_back(paused_ ? "now paused" : "now not paused");
    }
    if (core_->progress() != progress_) {
      progress_ = core_->progress();
      said_.push_back("now the job is at " + Of(progress_.trained) + " of " +
                      std::to_string(progress_.workers) + " workers" +
                      (progress_.done ? ", done" : ""));
    }
  }

  void Take(const Action& action) {
    expected_.header.ack = seq_;
    expected_.header.oldest = heard_ + 1;
    if (const auto* announced = std::get_if<AnnouncedMembers>(&action)) {
      const bool as_named = !names_.empty() && Of(names_.front(), expected_.me) ==
                                                   Of(announced->members.get(), expected_.me);
      if (as_named) names_.erase(names_.begin());
      if (as_named && !announced->copies) return;
    }
    if (const auto* start = std::get_if<StartReduce>(&action)) {
      expected_.groups[start->group.id] = start->group;
    }
    if (const auto* become = std::get_if<BecomeIncarnation>(&action)) {
      expected_.me = become->incarnation;
      expected_.header = {.incarnation = become->incarnation, .token = expected_.header.token};
      seq_ = heard_ = 0;
      reported_.clear();
    }
    expected_.own = in_step_ ? core_->own() : prd::Trained{};
    said_.push_back(Of(action, expected_));
    if (std::holds_alternative<CallDone>(action)) {
      if (!std::exchange(in_call_, false)) throw std::logic_error("no call is in progress");
    }
    if (const auto* send = std::get_if<SendToController>(&action)) {
      const Seq newest = std::max(expected_.header.seq, send->envelope.seq);
      const auto* finished = std::get_if<Finished>(&send->envelope.body);
      if (finished != nullptr && finished->group != kNoGroup &&
          send->envelope.seq > expected_.header.seq && !reported_.insert(finished->group).second) {
        throw std::logic_error("a group is reported twice");
      }
      expected_.header = send->envelope;
      expected_.header.seq = newest;
    }
  }

  std::unique_ptr<SessionCore> core_;
  Actions actions_;  // not looked at yet
  std::vector<std::string> said_;
  Instant now_ = kStart;

  // What the controller says.
  RunIdentity identity_ = {7, 8};
  Seq seq_ = 0;                                  // its last message
  Seq heard_ = 0;                                // what it acknowledges
  std::vector<std::vector<GroupMember>> names_;  // the newest message's, not announced

  Expected expected_{.header = {.token = {5, 6}}};
  bool in_call_ = false;
  bool in_step_ = false;        // and the call is Step
  std::set<GroupId> reported_;  // by this incarnation
  // As last said.
  Iteration iteration_ = 0;
  bool paused_ = false;
  JobProgress progress_;
};

}  // namespace

std::string RunCoreTranscript(const std::string& text) {
  Play play;
  return transcript::Replay(text, [&](Command* command) { return play.Line(command); });
}

}  // namespace prd::testing
