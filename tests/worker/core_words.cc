#include "tests/worker/core_words.h"

#include <algorithm>
#include <cstdio>
#include <variant>

#include "tests/plans.h"

namespace prd::testing::core_words {

namespace {

using transcript::Choose;
using transcript::ParseNumber;

std::string Text(const std::string& value) {
  const bool word = !value.empty() && value.find(' ') == std::string::npos;
  return word ? value : "\"" + value + "\"";
}
std::string Text(double value) { return Number(value); }
std::string Text(bool value) { return value ? "1" : "0"; }
std::string Text(const Trained& value) { return Of(value); }
std::string Text(const RunIdentity& value) {
  return std::to_string(value.high) + "/" + std::to_string(value.low);
}
template <typename T>
requires std::is_integral_v<T> std::string Text(T value) { return std::to_string(value); }
template <typename T>
std::string Text(const std::vector<T>& values) {
  std::string text;
  for (const T& value : values) text += (text.empty() ? "" : ",") + Text(value);
  return text;
}

// A line that begins with words, and goes on with the fields that are not as expected.
class Line {
 public:
  explicit Line(std::string words) : text_(std::move(words)) {}
  template <typename T>
  Line& Add(const char* key, const T& value, const T& expected = T()) {
    if (!(value == expected)) text_ += std::string(" ") + key + "=" + Text(value);
    return *this;
  }
  Line& AddTime(const char* key, DurationNs value, DurationNs expected = 0) {
    if (value != expected) text_ += std::string(" ") + key + "=" + Time(value);
    return *this;
  }
  Line& AddFlag(const char* word, bool value) {
    if (value) text_ += std::string(" ") + word;
    return *this;
  }
  operator std::string() const { return text_; }

 private:
  std::string text_;
};

std::string PeerName(Incarnation incarnation) {
  const auto rank = static_cast<Rank>(incarnation - PeerOf(0));
  return rank >= 0 && rank < 100 ? std::to_string(rank) : "@" + std::to_string(incarnation);
}

const char* KindOf(GroupKind kind) {
  constexpr const char* kNames[] = {"", " initial", " final", " round", " average"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string ItemText(const PeerItem& item) {
  constexpr const char* kNames[] = {"update ", "delta ", "shard ", "state "};
  return Line(kNames[static_cast<std::size_t>(item.kind)] + std::to_string(item.stamp))
      .Add("shard", item.shard)
      .Add("epoch", item.epoch);
}

std::string HeaderText(const ShardHeader& header) {
  std::string clocks;
  for (const ShardHeader::Clock& clock : header.clocks) {
    clocks += (clocks.empty() ? "" : ",") + std::to_string(clock.worker) + ":" +
              std::to_string(clock.clock);
  }
  return Line("")
      .Add("version", header.version)
      .Add("readable", header.readable)
      .Add("clocks", clocks);
}

std::string GroupText(const Group& group, Incarnation me) {
  return Line("group " + std::to_string(group.id) + KindOf(group.kind) + " of " +
              Of(group.members.get(), me))
      .Add("at", group.iteration)
      .Add("initial_weight", group.initial_weight)
      .AddFlag("ring_only", group.ring_only)
      .AddFlag("digest", group.digest)
      .AddFlag("last", group.last)
      .Add("reason", group.reason, std::string("because"));
}

std::string LossesText(const Losses& losses) {
  return losses.count == 0 ? "" : std::to_string(losses.count) + "*" + Number(losses.mean);
}

struct BodyText {
  const Expected& expected;

  std::string operator()(const Hello& hello) const {
    Hello rest = hello;
    rest.rank = expected.hello.rank;
    rest.iteration = expected.hello.iteration;
    rest.former = expected.hello.former;
    rest.own = expected.hello.own;
    rest.job_trained = expected.hello.job_trained;
    rest.gradients = expected.hello.gradients;
    return Line("hello")
        .Add("rank", hello.rank, kNoRank)
        .Add("iteration", hello.iteration)
        .Add("former", hello.former)
        .Add("own", hello.own)
        .Add("job_trained", hello.job_trained)
        .AddFlag("gradients=none", hello.gradients == HasGradients::kNone)
        .AddFlag("gradients=later", hello.gradients == HasGradients::kLater)
        .AddFlag("(not as attached)", rest != expected.hello);
  }
  std::string operator()(const Ready& ready) const {
    return Line("ready " + std::to_string(ready.iteration))
        .Add("waiting", ready.waiting, true)
        .AddTime("step", ready.step_ns, 5)
        .Add("samples", ready.samples, std::int64_t{6})
        .Add("gradients", ready.gradients)
        .Add("local_steps", ready.local_steps)
        .AddTime("rtt", ready.rtt_ns)
        .Add("queued", ready.queued)
        .Add("dropped", ready.dropped)
        .Add("suppressed", ready.suppressed)
        .Add("own", ready.own)
        .Add("nonfinite", ready.nonfinite)
        .Add("losses", LossesText(ready.losses))
        .Add("made_up", ready.made_up)
        .Add("last", ready.last);
  }
  std::string operator()(const Finished& finished) const {
    constexpr const char* kOutcomes[] = {" ok", " failed", " aborted"};
    return Line("finished " + std::to_string(finished.group) +
                kOutcomes[static_cast<std::size_t>(finished.outcome)])
        .Add("detail", finished.detail)
        .AddTime("wait", finished.wait_ns)
        .AddTime("reduce", finished.reduce_ns)
        .Add("bytes", finished.bytes)
        .Add("included", finished.included)
        .Add("unreachable", finished.unreachable)
        .Add("digest", finished.digest);
  }
  std::string operator()(const Adopted& adopted) const {
    return Line(adopted.ok ? "adopted" : "not adopted")
        .Add("iteration", adopted.iteration)
        .Add("detail", adopted.detail)
        .Add("included", adopted.included);
  }
  std::string operator()(const Placed& placed) const {
    return "placed " + std::to_string(placed.epoch);
  }
  std::string operator()(const Probed& probed) const {
    return "probed " + std::to_string(probed.rank) + "@" + std::to_string(probed.incarnation);
  }
  std::string operator()(const Progressed& progressed) const {
    return Line("progressed")
        .Add("own", progressed.own)
        .Add("nonfinite", progressed.nonfinite)
        .Add("losses", LossesText(progressed.losses));
  }
  std::string operator()(const Pause&) const { return "pause"; }
  std::string operator()(const Resume&) const { return "resume"; }
  std::string operator()(const AskMembers&) const { return "ask-members"; }
  std::string operator()(const Finish&) const { return "finish"; }
  std::string operator()(const Leave& leave) const {
    return "leave " + Text(leave.reason) + (leave.failed ? " failed" : "");
  }
  std::string operator()(const StopJob& stop) const { return "stop " + Text(stop.reason); }
  std::string operator()(const GiveNumbers& give) const {
    return Line("numbers " + std::to_string(give.call)).Add("values", give.values);
  }
  std::string operator()(const Heartbeat&) const { return "heartbeat"; }
};

struct ActionText {
  const Expected& expected;

  std::string operator()(const SendToController& send) const {
    const WorkerEnvelope& envelope = send.envelope;
    const WorkerEnvelope& header = expected.header;
    Line line(
        "send " + std::to_string(envelope.seq) + " " +
        std::visit(BodyText{expected}, static_cast<const WorkerBody::variant&>(envelope.body)));
    line.AddFlag("again", envelope.seq != 0 && envelope.seq <= header.seq);
    std::string text = Line("")
                           .Add("run", envelope.run, header.run)
                           .Add("rank", envelope.rank, header.rank)
                           .Add("identity", envelope.identity, header.identity)
                           .Add("incarnation", envelope.incarnation, header.incarnation)
                           .Add("ack", envelope.ack, header.ack)
                           .Add("oldest", envelope.oldest, header.oldest)
                           .AddFlag("token", envelope.token != header.token);
    return text.empty() ? std::string(line) : std::string(line) + " (" + text.substr(1) + ")";
  }
  std::string operator()(const BecomeIncarnation& become) const {
    return "become " + std::to_string(become.incarnation);
  }
  std::string operator()(const JoinRun& join) const {
    return Line("join run " + std::to_string(join.welcome.run))
        .AddFlag("(not as welcomed)", join.welcome != expected.welcome);
  }
  std::string operator()(const StartReduce& start) const {
    constexpr const char* kPayloads[] = {"parameters", "gradients", "change"};
    constexpr const char* kLandings[] = {"parameters", "gradients", "base", "inbox"};
    const std::string payload = kPayloads[static_cast<std::size_t>(start.what.payload)];
    const std::string landing = kLandings[static_cast<std::size_t>(start.what.landing)];
    return Line("reduce " + GroupText(start.group, expected.me))
        .Add("payload", payload, std::string("parameters"))
        .Add("into", landing, std::string("parameters"))
        .Add("gain", start.gain)
        .AddFlag("in place", start.in_place);
  }
  std::string operator()(const CancelReduce&) const { return "cancel reduce"; }
  std::string operator()(const GiveUpReduce& give) const {
    return "give up reduce: " + give.reason;
  }
  std::string operator()(const StartFetch& fetch) const {
    return Line("fetch from " + Of({fetch.source}, expected.me))
        .Add("result", fetch.result)
        .AddFlag("contributed", fetch.contributed)
        .AddFlag("in place", fetch.in_place);
  }
  std::string operator()(const CancelFetch&) const { return "cancel fetch"; }
  std::string operator()(const CopyForAverage& copy) const {
    return "copy for average from " + Of({copy.source}, expected.me);
  }
  std::string operator()(const CancelCopyForAverage&) const { return "cancel copy for average"; }
  std::string operator()(const AnnouncedMembers& announced) const {
    return Line("announced " + Of(announced.members.get(), expected.me))
        .AddFlag("copies", announced.copies);
  }
  std::string operator()(const ForgetMembers& forget) const {
    return "forget " + Text(forget.incarnations);
  }
  std::string operator()(const ProbePeers& probe) const {
    return "probe " + (probe.targets.empty() ? "nobody" : Of(probe.targets.get(), expected.me));
  }
  std::string operator()(const Deposit&) const { return "deposit"; }
  std::string operator()(const Interrupt& interrupt) const {
    return interrupt.on ? "interrupt" : "interrupt off";
  }
  std::string operator()(const ApplyNow& apply) const {
    constexpr const char* kWhats[] = {"gradients", "inbox of gradients", "inbox of changes"};
    return Line(std::string("apply ") + kWhats[static_cast<std::size_t>(apply.what)])
        .Add("iteration", apply.iteration)
        .AddFlag("digest", apply.digest);
  }
  std::string operator()(const CallDone& done) const {
    const std::string rest =
        Of(done.step, expected) + std::string(Line("").Add("numbers", done.numbers));
    return done.status.ok() ? "done" + rest : "failed" + rest + ", " + done.status.ToString();
  }
  std::string operator()(const LogLine& log) const { return "log " + log.text; }
  std::string operator()(const SetPeers& set) const {
    return "peers " + (set.peers.empty() ? "none" : Of(set.peers, expected.me));
  }
  std::string operator()(const SendNote& send) const {
    constexpr const char* kKinds[] = {"offer ", "decline ", "stored "};
    return Line(kKinds[static_cast<std::size_t>(send.note.kind)] + ItemText(send.note.parcel) +
                " to " + PeerName(send.to))
        .Add("version", send.note.version)
        .Add("workers", send.note.workers);
  }
  std::string operator()(const StartPull& pull) const {
    return "pull " + std::to_string(pull.ticket) + " " + ItemText(pull.parcel) + " from " +
           PeerName(pull.from);
  }
  std::string operator()(const DropPull& drop) const {
    return "drop pull " + std::to_string(drop.ticket);
  }
  std::string operator()(const Serve& serve) const {
    return "serve " + std::to_string(serve.request) + " " + ItemText(serve.parcel) +
           HeaderText(serve.enclosure);
  }
  std::string operator()(const Refuse& refuse) const {
    return "refuse " + std::to_string(refuse.request);
  }
  std::string operator()(const SetIteration& set) const {
    return "set iteration " + std::to_string(set.iteration);
  }
  std::string operator()(const PublishUpdate& publish) const {
    return "publish update " + std::to_string(publish.iteration);
  }
  std::string operator()(const RetireUpdate& retire) const {
    return "retire update " + std::to_string(retire.iteration);
  }
  std::string operator()(const MixUpdates& mix) const {
    std::string text = "mix own*" + Number(mix.own_weight);
    for (const MixUpdates::Update& update : mix.updates) {
      text += " pull " + std::to_string(update.ticket) + "*" + Number(update.weight);
    }
    return text;
  }
  std::string operator()(const CutShards& cut) const {
    return "cut into " + std::to_string(cut.shards) + " shards";
  }
  std::string operator()(const TakeDelta& take) const {
    return "take delta share=" + Number(take.share);
  }
  std::string operator()(const KeepShard& keep) const {
    return Line("keep shard " + std::to_string(keep.shard)).Add("pull", keep.ticket);
  }
  std::string operator()(const AddDelta& add) const {
    return Line("add delta to shard " + std::to_string(add.shard))
        .Add("pull", add.ticket)
        .Add("factor", add.factor, 1.0)
        .AddFlag("pending", add.pending);
  }
  std::string operator()(const MergePending& merge) const {
    return "merge pending of shard " + std::to_string(merge.shard);
  }
  std::string operator()(const ReadShard& read) const {
    return Line("read shard " + std::to_string(read.shard))
        .Add("pull", read.ticket)
        .AddFlag("keeps move", read.keeps_move);
  }
  std::string operator()(const ForgetShard& forget) const {
    return "forget shard " + std::to_string(forget.shard);
  }
};

}  // namespace

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

std::string Time(DurationNs time) {
  if (time % kSecond == 0 && time != 0) return std::to_string(time / kSecond) + "s";
  if (time % kMillisecond == 0) return std::to_string(time / kMillisecond) + "ms";
  return std::to_string(time) + "ns";
}

std::string Of(const Trained& trained) {
  return std::to_string(trained.steps) + "/" + std::to_string(trained.samples);
}

std::string Of(const std::vector<GroupMember>& members, Incarnation me) {
  std::string text;
  for (const GroupMember& member : members) {
    text += (text.empty() ? "" : " ") + std::to_string(member.rank);
    const Incarnation usual = member.rank == kRank ? me : PeerOf(member.rank);
    if (member.incarnation != usual) text += "@" + std::to_string(member.incarnation);
    if (member.weight != 0 || member.passive) {
      text += (member.passive ? "+" : "*") + Number(member.weight);
    }
  }
  return text;
}

std::string Of(const StepOutcome& step, const Expected& expected) {
  std::string group;
  if (step.group.id != kNoGroup) {
    const auto started = expected.groups.find(step.group.id);
    const bool same = started != expected.groups.end() && started->second == step.group;
    group = same ? std::to_string(step.group.id) : "(" + GroupText(step.group, expected.me) + ")";
  }
  return Line("")
      .Add("iteration", step.iteration)
      .AddFlag("adopted", step.adopted)
      .AddFlag("included", step.included)
      .Add("rounds", step.rounds)
      .Add("local_steps", step.local_steps)
      .Add("group", group)
      .Add("attempts", step.attempts)
      .Add("sent", step.sent_bytes)
      .AddTime("reduced", step.reduced)
      .AddTime("waited", step.waited)
      .Add("own", step.own, expected.own)
      .AddFlag("goal", step.done)
      .AddFlag("partial", step.partial);
}

std::string Of(const Action& action, const Expected& expected) {
  return std::visit(ActionText{expected}, action);
}

std::vector<GroupMember> ParseMembers(const std::vector<std::string>& words, Incarnation me) {
  std::vector<GroupMember> members;
  for (const std::string& word : words) {
    GroupMember member;
    const std::size_t sign = word.find_first_of("*+");
    if (sign != std::string::npos) {
      member.passive = word[sign] == '+';
      member.weight = std::stod(word.substr(sign + 1));
    }
    const std::vector<std::string> name = transcript::Split(word.substr(0, sign), '@');
    member.rank = static_cast<Rank>(ParseNumber(name.at(0)));
    member.incarnation = member.rank == kRank ? me : PeerOf(member.rank);
    if (name.size() > 1) member.incarnation = static_cast<Incarnation>(ParseNumber(name[1]));
    members.push_back(member);
  }
  return members;
}

Trained ParseTrained(const std::string& text) {
  if (text.empty()) return {};
  const std::vector<std::string> parts = transcript::Split(text, '/');
  if (parts.size() != 2) throw std::invalid_argument("'" + text + "' is not STEPS/SAMPLES");
  return {.steps = ParseNumber(parts[0]), .samples = ParseNumber(parts[1])};
}

Plan ParsePlan(transcript::Command* command) {
  using namespace plans;
  Plan plan = Choose<Plan>(command->Word(0), {{"models", kModels},
                                              {"gradients", kGradients},
                                              {"rounds", kRounds},
                                              {"newest-round", kNewestRound},
                                              {"asked", kAsked},
                                              {"asked-late", kAskedLate},
                                              {"change", Every(1, kChangeEvery8)},
                                              {"ahead", kAhead},
                                              {"schedule", kSchedule},
                                              {"neighbours", kNeighbours},
                                              {"store", kStore},
                                              {"background", Background(0)}});
  plan.every = static_cast<std::uint32_t>(command->TakeNumber("every", plan.every));
  if (auto* group = std::get_if<GroupPlan>(&plan.by); group != nullptr) {
    if (AveragesInBackground(plan)) {
      group->run_ahead = static_cast<std::uint32_t>(command->TakeNumber("run_ahead"));
      group->members = Choose<Membership>(command->Take("members", "announced"),
                                          {{"announced", Membership::kAnnounced},
                                           {"ahead", Membership::kAhead},
                                           {"schedule", Membership::kSchedule}});
    }
  } else if (auto* neighbours = std::get_if<NeighbourPlan>(&plan.by); neighbours != nullptr) {
    neighbours->backups = static_cast<std::uint32_t>(command->TakeNumber("backups"));
    neighbours->serial = command->TakeFlag("serial");
  } else {
    auto& store = std::get<StorePlan>(plan.by);
    store.staleness = static_cast<std::int32_t>(command->TakeNumber("staleness"));
  }
  return plan;
}

PeerItem ParseItem(transcript::Command* command, std::size_t index) {
  return {.kind = Choose<PeerItem::Kind>(command->Word(index), {{"update", PeerItem::Kind::kUpdate},
                                                                {"delta", PeerItem::Kind::kDelta},
                                                                {"shard", PeerItem::Kind::kShard},
                                                                {"state", PeerItem::Kind::kState}}),
          .shard = static_cast<std::uint32_t>(command->TakeNumber("shard")),
          .epoch = static_cast<std::uint64_t>(command->TakeNumber("epoch")),
          .stamp = ParseNumber(command->Word(index + 1))};
}

Code ParseCode(const std::string& word) {
  std::map<std::string, Code> codes;
  for (int code = 0; code <= static_cast<int>(Code::kInternal); ++code) {
    std::string name = CodeName(static_cast<Code>(code));
    std::replace(name.begin(), name.end(), ' ', '-');
    codes[name] = static_cast<Code>(code);
  }
  return Choose(word, codes);
}

Status ParseStatus(const transcript::Command& command, std::size_t index) {
  if (command.words().size() <= index) return Status::Ok();
  if (command.Word(index) == "failed") return {Code::kUnavailable, "gone"};
  return {ParseCode(command.Word(index)), command.Word(index + 1)};
}

}  // namespace prd::testing::core_words
