#include "tests/worker/core_controller_words.h"

#include <cstddef>
#include <cstdint>

#include "tests/worker/core_words.h"

namespace prd::testing::core_words {
namespace {

using transcript::Choose;
using transcript::Command;
using transcript::ParseNumber;

ControllerBody SayAbort(Command* command, Incarnation) {
  return Abort{.group = static_cast<GroupId>(ParseNumber(command->Word(0))),
               .reason = command->Take("reason"),
               .undone = command->TakeFlag("undone")};
}

ControllerBody SayAdopt(Command* command, Incarnation me) {
  return Adopt{.source = Named(command->Take("from", "4"), me).front(),
               .reason = "r",
               .result = static_cast<GroupId>(command->TakeNumber("result"))};
}

ControllerBody SayAnnounce(Command* command, Incarnation me) {
  return Announce{Named(command->words(), me), command->TakeFlag("copies")};
}

ControllerBody SayEndRun(Command*, Incarnation) { return EndRun{}; }

ControllerBody SayGone(Command* command, Incarnation) {
  Gone gone;
  for (const std::string& word : command->words()) {
    gone.incarnations.push_back(static_cast<Incarnation>(ParseNumber(word)));
  }
  return gone;
}

ControllerBody SayGroup(Command* command, Incarnation me) {
  Group group{.id = static_cast<GroupId>(ParseNumber(command->Word(0)))};
  if (command->words().size() > 1) {
    group.kind = Choose<GroupKind>(command->Word(1), {{"initial", GroupKind::kInitial},
                                                      {"final", GroupKind::kFinal},
                                                      {"round", GroupKind::kRound},
                                                      {"average", GroupKind::kAverage},
                                                      {"train", GroupKind::kTrain}});
  }
  group.members = Named(command->Take("members", "3*0.5 4*0.5"), me);
  if (!command->TakeFlag("gives", true)) group.members.Mutable().at(0).weight = 0;
  if (command->TakeFlag("passive")) group.members.Mutable().at(0).passive = true;
  group.iteration = command->TakeNumber("at", 1);
  group.initial_weight = command->TakeReal("initial_weight");
  group.digest = command->TakeFlag("digest");
  group.last = command->TakeFlag("last");
  group.reason = "because";
  return group;
}

ControllerBody SayHeartbeat(Command* command, Incarnation) {
  return HeartbeatAck{.waits_for = command->Take("waits_for")};
}

ControllerBody SayMembers(Command* command, Incarnation me) {
  return Members{Named(command->words(), me)};
}

ControllerBody SayNeighbourhood(Command* command, Incarnation me) {
  Neighbourhood hood{.in = Named(command->Take("in"), me),
                     .out = Named(command->Take("out"), me),
                     .own_weight = command->TakeReal("own", 1),
                     .slots = static_cast<std::uint32_t>(command->TakeNumber("slots", 1)),
                     .at = command->TakeNumber("at"),
                     .reason = "because"};
  for (const std::string& from : transcript::Split(command->Take("from"))) {
    hood.from.push_back(ParseNumber(from));
  }
  return hood;
}

ControllerBody SayNumbers(Command* command, Incarnation) {
  NumbersMean mean{.call = static_cast<std::uint64_t>(ParseNumber(command->Word(0))),
                   .wrong = command->Take("wrong")};
  for (std::size_t i = 1; i < command->words().size(); ++i) {
    mean.values.push_back(std::stod(command->Word(i)));
  }
  return mean;
}

ControllerBody SayOpened(Command* command, Incarnation) {
  return Opened{static_cast<std::uint64_t>(ParseNumber(command->Word(0)))};
}

ControllerBody SayPlacement(Command* command, Incarnation me) {
  Placement placement{.epoch = static_cast<std::uint64_t>(ParseNumber(command->Word(0))),
                      .members = Named(command->Take("members"), me),
                      .at = command->TakeNumber("at"),
                      .reason = "because"};
  for (const std::string& text : transcript::Split(command->Take("shards"), ' ')) {
    const std::vector<std::string> parts = transcript::Split(text, '+');
    const std::size_t arrow = parts.at(0).find("<-");
    ShardPlace place{.owner = static_cast<Rank>(ParseNumber(parts[0].substr(0, arrow)))};
    place.source = place.owner;
    if (arrow != std::string::npos) {
      const std::string source = parts[0].substr(arrow + 2);
      place.source = source == "none" ? kNoRank : static_cast<Rank>(ParseNumber(source));
    }
    if (parts.size() > 1) place.holders = transcript::ParseRanks(transcript::Split(parts[1]));
    placement.shards.push_back(place);
  }
  return placement;
}

ControllerBody SayProbe(Command* command, Incarnation me) {
  return Probe{Named(command->words(), me)};
}

ControllerBody SayRefused(Command* command, Incarnation) {
  const DurationNs retry = command->TakeTime("retry");
  return Refused{.code = ParseCode(command->Word(0)),
                 .reason = command->Word(1),
                 .retry_ms = static_cast<std::uint32_t>(retry / kMillisecond)};
}

ControllerBody SayReleased(Command* command, Incarnation) {
  return Released{command->words().empty() ? "" : command->Word(0)};
}

ControllerBody SayReply(Command* command, Incarnation) {
  return QueryReply{.iteration = ParseNumber(command->Word(0)),
                    .local_steps = static_cast<std::uint32_t>(command->TakeNumber("local_steps")),
                    .ready = command->TakeFlag("ready"),
                    .next = command->TakeNumber("next"),
                    .workers = static_cast<std::uint32_t>(command->TakeNumber("workers"))};
}

ControllerBody SayResumed(Command*, Incarnation) { return Resumed{}; }

// Ranks 0 to n - 1, by `hosts`, unless the members are named.
ControllerBody SaySchedule(Command* command, Incarnation me) {
  Schedule schedule{.first = std::stoull(command->Word(0)), .reason = "because"};
  schedule.hosts = command->TakeRanks("hosts");
  std::string members;
  for (std::size_t i = 0; i < schedule.hosts.size(); ++i) members += std::to_string(i) + " ";
  schedule.members = Named(command->Take("members", members), me);
  return schedule;
}

ControllerBody SaySetShare(Command* command, Incarnation) {
  return SetShare{.from = command->TakeNumber("from"),
                  .first = command->TakeNumber("first"),
                  .samples = ParseNumber(command->Word(0)),
                  .more = command->TakeFlag("more")};
}

}  // namespace

const std::map<std::string, ControllerWord>& ControllerWords() {
  static const std::map<std::string, ControllerWord> words = {
      {"abort", {SayAbort}},
      {"adopt", {SayAdopt}},
      {"announce", {SayAnnounce}},
      {"end-run", {SayEndRun}},
      {"gone", {SayGone}},
      {"group", {SayGroup}},
      {"heartbeat", {SayHeartbeat, false}},
      {"members", {SayMembers}},
      {"neighbourhood", {SayNeighbourhood}},
      {"numbers", {SayNumbers}},
      {"opened", {SayOpened}},
      {"placement", {SayPlacement}},
      {"probe", {SayProbe}},
      {"refused", {SayRefused, false}},
      {"released", {SayReleased}},
      {"reply", {SayReply}},
      {"resumed", {SayResumed}},
      {"schedule", {SaySchedule}},
      {"set-share", {SaySetShare}},
  };
  return words;
}

SharedList<GroupMember> Named(const std::vector<std::string>& words, Incarnation me) {
  return SharedList<GroupMember>(ParseMembers(words, me));
}
SharedList<GroupMember> Named(const std::string& text, Incarnation me) {
  return Named(transcript::Split(text, ' '), me);
}

std::vector<std::vector<GroupMember>> MembersOf(const ControllerBody& body) {
  std::vector<std::vector<GroupMember>> lists;
  const auto add = [&lists](const SharedList<GroupMember>& list) {
    if (!list.empty()) lists.push_back(list.get());
  };
  if (const auto* group = std::get_if<Group>(&body)) add(group->members);
  if (const auto* adopt = std::get_if<Adopt>(&body)) add({adopt->source});
  if (const auto* schedule = std::get_if<Schedule>(&body)) add(schedule->members);
  if (const auto* placement = std::get_if<Placement>(&body)) add(placement->members);
  if (const auto* hood = std::get_if<Neighbourhood>(&body)) {
    add(hood->in);
    add(hood->out);
  }
  return lists;
}

}  // namespace prd::testing::core_words
