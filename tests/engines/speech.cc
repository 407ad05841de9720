#include "tests/engines/speech.h"

#include <optional>
#include <set>
#include <stdexcept>
#include <type_traits>

#include "tests/engines/body_text.h"

namespace prd {

using body_text::Show;
using body_text::Shower;
using transcript::Command;

namespace {

constexpr const char* kEndpoint = "tcp://127.0.0.1:1";

void TakeEnvelope(Command* command, WorkerEnvelope* envelope) {
  const auto take = [command](const char* key, std::uint64_t* value) {
    *value =
        static_cast<std::uint64_t>(command->TakeNumber(key, static_cast<std::int64_t>(*value)));
  };
  take("incarnation", &envelope->incarnation);
  take("run", &envelope->run);
  take("seq", &envelope->seq);
  take("ack", &envelope->ack);
  take("oldest", &envelope->oldest);
  if (!command->Has("token")) return;
  RunIdentity token;
  body_text::Parse(command->Take("token"), &token);
  envelope->token = {token.high, token.low};
}

}  // namespace

// ---- what workers say ----

Hello Speakers::HelloOf(Rank rank) {
  return {.job = "toy",
          .rank = rank,
          .host = "h",
          .host_name = body_text::kHostName,
          .pid = body_text::kPid,
          .endpoints = {kEndpoint},
          .model_bytes = 4,
          .model_hash = 9};
}

void Speakers::Reset(RunId run, RunIdentity identity) {
  run_ = run;
  identity_ = identity;
  all_.clear();
  lives_.clear();
}

Incarnation Speakers::IncarnationOf(Rank rank) const {
  const auto found = all_.find(rank);
  return found == all_.end() ? 0 : found->second.hello.incarnation;
}

void Speakers::Say(Command* command) {
  const Command all = *command;
  for (const Rank rank : all.Ranks()) {
    *command = all;
    if (all.name() == "hello") {
      Hello hello = HelloOf(rank);
      Visit(hello, body_text::Taker(command));
      SayHello(rank, std::move(hello), command);
      continue;
    }
    std::optional<WorkerBody> body = body_text::Take<WorkerBody>(all.name(), command);
    if (!body) throw std::invalid_argument("no such command");
    if (auto* finished = std::get_if<Finished>(&*body)) {
      if (!all.Has("group")) finished->group = group_of_(rank);
      if (finished->outcome == Outcome::kFailed && !all.Has("detail")) finished->detail = "test";
    }
    if (auto* probed = std::get_if<Probed>(&*body)) {
      if (!all.Has("target_incarnation")) probed->incarnation = IncarnationOf(probed->rank);
    }
    Say(rank, std::move(*body), command);
  }
}

void Speakers::SayHello(Rank rank, Hello hello, Command* command) {
  const Rank number = rank < 0 ? 9999 : rank;
  WorkerEnvelope envelope{.incarnation = static_cast<Incarnation>(number) * 100 + ++lives_[rank],
                          .seq = 1,
                          .body = std::move(hello)};
  if (command != nullptr) TakeEnvelope(command, &envelope);
  const Speaker before = all_[rank];
  all_[rank] = {.hello = envelope, .run = run_, .identity = identity_, .seq = 1};
  if (!deliver_(envelope)) all_[rank] = before;
}

void Speakers::Say(Rank rank, WorkerBody body, Command* command) {
  const Speaker& of = all_[rank];
  const bool in_order = !std::holds_alternative<Heartbeat>(body);
  WorkerEnvelope envelope{.run = of.run,
                          .identity = of.identity,
                          .rank = rank,
                          .incarnation = of.hello.incarnation,
                          .seq = in_order ? of.seq + 1 : 0,
                          .ack = of.ack,
                          .oldest = of.seq + 1,
                          .body = std::move(body)};
  if (command != nullptr) TakeEnvelope(command, &envelope);
  if (deliver_(envelope)) all_[rank].seq = envelope.seq;
}

// ---- what they are told ----

std::vector<std::string> StepWords::Of(std::span<const Record> records,
                                       const std::vector<Send>& sends) {
  std::vector<std::string> said;
  std::set<std::string> reasons;
  for (const Record& record : records) {
    std::visit(
        [&]<typename T>(const T& body) {
          if constexpr (requires { TypeName(body); }) {
            if (IsInput(record.body) && !inputs_) return;
            said.push_back((record.run == 1 ? "" : "run " + std::to_string(record.run) + ": ") +
                           Show(TypeName(body), body));
          }
          if constexpr (requires { body.reason; }) reasons.insert(body.reason);
          if constexpr (std::is_same_v<T, GroupFormed>) groups_[body.id] = body;
        },
        static_cast<const RecordBody::Variant&>(record.body));
  }
  // The reason of a message is left out where a record has it. A group is compared with its
  // record, reason and all.
  const auto text_of = [&](const Send& send) {
    return std::visit(
               [&](auto body) {
                 if constexpr (requires { body.reason; }) {
                   const bool same = !body.reason.empty() && reasons.contains(body.reason);
                   if (same && !std::is_same_v<decltype(body), Group>) body.reason = "as recorded";
                 }
                 return Words(body);
               },
               static_cast<const ControllerBody::Variant&>(send.body)) +
           send.suffix;
  };
  std::string to;
  for (std::size_t i = 0; i < sends.size(); ++i) {
    to += (to.empty() ? "" : ",") + sends[i].to;
    const std::string text = text_of(sends[i]);
    if (i + 1 < sends.size() && text_of(sends[i + 1]) == text) continue;
    said.push_back("to " + std::exchange(to, {}) + ": " + text);
  }
  return said;
}

std::string StepWords::Of(const ControllerBody& body) const {
  return std::visit([this](const auto& of) { return Words(of); },
                    static_cast<const ControllerBody::Variant&>(body));
}

// As their Hellos told: "0*0.5,1*0.5", without the weights where they have no meaning.
std::string StepWords::Peers(const std::vector<GroupMember>& members) const {
  std::string text;
  for (const GroupMember& member : members) {
    text += (text.empty() ? "" : ",") + std::to_string(member.rank) +
            (member.weight == 0 ? "" : "*" + body_text::AsText(member.weight)) +
            (member.passive ? "+" : "");
    const auto speaker = speakers_->all().find(member.rank);
    if (speaker == speakers_->all().end() ||
        speaker->second.hello.incarnation != member.incarnation ||
        std::get<Hello>(speaker->second.hello.body).host != member.host ||
        std::get<Hello>(speaker->second.hello.body).endpoints != member.endpoints) {
      text += "(unlike its Hello)";
    }
  }
  return text.empty() ? "none" : text;
}

std::string StepWords::Words(const Welcome& m) const {
  return Shower("welcome")("rank", m.rank)("workers", m.workers)(
             "needs_gradients", NeedsGradients(m.plan), kUnlessZero)(
             "own_steps", m.own.steps, kUnlessZero)("own_samples", m.own.samples, kUnlessZero)(
             "goal_steps", m.goal.steps, kUnlessZero)("goal_samples", m.goal.samples, kUnlessZero)(
             "on_nonfinite", m.on_nonfinite, kUnlessZero)
      .Text();
}
std::string StepWords::Words(const Group& m) const {
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
  if (Peers(m.members).find('(') != std::string::npos) text += " members=" + Peers(m.members);
  return sent == formed ? text : text + ", unlike its record: " + Show("", sent);
}
std::string StepWords::Words(const Abort& m) const {
  return Shower("abort")("group", m.group)("undone", m.undone, kUnlessZero)("reason", m.reason)
      .Text();
}
std::string StepWords::Words(const Adopt& m) const {
  return Shower("adopt")("source", Peers(std::vector{m.source}))("result", m.result, kUnlessZero)(
             "reason", m.reason)
      .Text();
}
std::string StepWords::Words(const Released& m) const {
  return Shower("released")("reason", m.reason).Text();
}
std::string StepWords::Words(const Refused& m) const {
  return Shower("refused")("code", m.code)("retry_ms", m.retry_ms, kUnlessZero)("reason", m.reason)
      .Text();
}
std::string StepWords::Words(const HeartbeatAck& m) const {
  return Shower("heartbeat_ack")("waits_for", m.waits_for, kUnlessZero).Text();
}
std::string StepWords::Words(const QueryReply& m) const {
  return Shower("query_reply")("iteration", m.iteration)("local_steps", m.local_steps, kUnlessZero)(
             "ready", m.ready)("next", m.next, kUnlessZero)("workers", m.workers, kUnlessZero)
      .Text();
}
std::string StepWords::Words(const Schedule& m) const {
  return Shower("schedule")("first", m.first)("members", Peers(m.members))("hosts", m.hosts)(
             "reason", m.reason)
      .Text();
}
std::string StepWords::Words(const Neighbourhood& m) const {
  return Shower("neighbourhood")("in", Peers(m.in))("from", m.from)("out", Peers(m.out))(
             "own_weight", m.own_weight)("slots", m.slots)("at", m.at)("reason", m.reason)
      .Text();
}
std::string StepWords::Words(const Placement& m) const {
  return Shower("placement")("epoch", m.epoch)("members", Peers(m.members))("shards", m.shards)(
             "at", m.at)("reason", m.reason)
      .Text();
}
std::string StepWords::Words(const Opened& m) const {
  return Shower("opened")("epoch", m.epoch).Text();
}
std::string StepWords::Words(const Probe& m) const {
  return Shower("probe")("targets", Peers(m.targets)).Text();
}
std::string StepWords::Words(const Resumed&) const { return "resumed"; }
std::string StepWords::Words(const Members& m) const {
  return Shower("members")("members", Peers(m.members)).Text();
}
std::string StepWords::Words(const Announce& m) const {
  return Shower("announce")("members", Peers(m.members))("copies", m.copies, kUnlessZero).Text();
}
std::string StepWords::Words(const EndRun& m) const {
  return Shower("end_run")("reason", m.reason).Text();
}
std::string StepWords::Words(const Gone& m) const {
  return Shower("gone")("incarnations", m.incarnations).Text();
}
std::string StepWords::Words(const NumbersMean& m) const {
  return Shower("numbers_mean")("call", m.call)("values", m.values)("wrong", m.wrong, kUnlessZero)
      .Text();
}

}  // namespace prd
