#include "tools/prdctl/json.h"

#include <array>
#include <cstdio>
#include <string>
#include <utility>

#include "common/base/static_schedule.h"
#include "common/base/visit.h"
#include "tools/prdctl/text.h"

namespace prd::ctl {
namespace {

const char* OutcomeName(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk:
      return "ok";
    case Outcome::kFailed:
      return "failed";
    case Outcome::kAborted:
      return "aborted";
  }
  return "unknown";
}

// Adds the fields that are shown to an object.
class FieldWriter {
 public:
  // `prefix` begins the keys of all fields, and `traits` hold for all.
  explicit FieldWriter(Json& out, std::string prefix = "", FieldTraits traits = kPlain)
      : out_(out), prefix_(std::move(prefix)), traits_(traits) {}

  template <typename T>
  FieldWriter& operator()(const char* name, const T& value, FieldTraits traits = kPlain,
                          const char* shown = nullptr) {
    traits = traits | traits_;
    if ((traits & kHidden) != 0 || ((traits & kUnlessZero) != 0 && value == T())) return *this;
    std::string key = prefix_ + (shown != nullptr ? shown : name);
    if constexpr (Described<T>) {
      if (key.ends_with('*')) {
        key.pop_back();
        Visit(value, FieldWriter(out_, key, traits));
        return *this;
      }
    }
    out_[key] = Of(value);
    return *this;
  }

 private:
  template <typename T>
  static Json Of(const T& value) {
    if constexpr (Described<T>) {
      Json fields = Json::object();
      Visit(value, FieldWriter(fields));
      return fields;
    } else {
      return value;
    }
  }
  static Json Of(const Outcome& value) { return OutcomeName(value); }
  static Json Of(const RunIdentity& value) { return ToText(value); }
  static Json Of(const MeshKey& value) { return value.known(); }
  static Json Of(const GroupKind& value) { return KindName(value); }
  static Json Of(const LeftReason& value) { return LeftWord(value); }
  static Json Of(const HasGradients& value) {
    return value == HasGradients::kHere ? "here" : value == HasGradients::kNone ? "none" : "later";
  }
  static Json Of(const OperatorVerb& value) { return VerbName(value); }
  template <typename T>
  static Json Of(const std::vector<T>& values) {
    Json all = Json::array();
    for (const T& value : values) all.push_back(Of(value));
    return all;
  }
  template <typename T>
  static Json Of(const SharedList<T>& values) {
    Json all = Json::array();
    for (const T& value : values) all.push_back(Of(value));
    return all;
  }

  Json& out_;
  const std::string prefix_;
  const FieldTraits traits_;
};

template <typename Body>
void AddBody(const Body& body, Json* out) {
  (*out)["type"] = Body::kName;
  Visit(body, FieldWriter(*out));
}

void AddBody(const FromWorker& from, Json* out) {
  (*out)["rank"] = from.envelope.rank;
  (*out)["incarnation"] = from.envelope.incarnation;
  (*out)["seq"] = from.envelope.seq;
  std::visit([out](const auto& body) { AddBody(body, out); }, from.envelope.body);
}

}  // namespace

const char* StateOfRun(const RunInfo& run) {
  if (!run.ended) return run.begun ? "running" : "starting";
  if (run.end.empty()) return "ended";
  if (run.next != kNoRun) return "switched";
  if (!run.begun) return "never began";
  if (!run.finished) return "lost";
  return meters::HowEnded(run.end);
}

Json ToJson(const RunInfo& run) {
  return {{"run", run.run},
          {"job", run.job},
          {"engine", run.engine},
          {"started", WallTime(run.started_wall_ns)},
          {"started_wall_ns", run.started_wall_ns},
          {"ended", run.ended},
          {"state", StateOfRun(run)},
          {"end", run.end.empty() ? Json(nullptr) : Json(run.end)},
          {"former_run", run.former == kNoRun ? Json(nullptr) : Json(run.former)},
          {"next_run", run.next == kNoRun ? Json(nullptr) : Json(run.next)},
          {"records", run.records},
          {"removed_before", run.first == 0 ? Json(nullptr) : Json(run.first)},
          {"identity", run.owner.empty() ? Json(nullptr) : Json(run.owner)},
          {"bytes", run.bytes == 0 ? Json(nullptr) : Json(run.bytes)}};
}

Json ToJson(const Record& record) {
  Json json = {{"run", record.run},
               {"index", record.index},
               {"now_ns", record.now.ns},
               {"input", IsInput(record.body)}};
  std::visit([&json](const auto& body) { AddBody(body, &json); }, record.body);
  return json;
}

Json ToJson(const GroupRow& group, Instant start) {
  Json json = {{"group", group.id},
               {"kind", KindName(group.kind)},
               {"state", group.State()},
               {"formed_s", Seconds(group.formed - start)},
               {"ended_s", nullptr},
               {"iteration", group.iteration},
               {"initial_weight", group.initial_weight},
               {"contributors", group.Contributors()},
               {"conflict", group.conflict},
               {"reason", group.reason}};
  if (group.ended) json["ended_s"] = Seconds(*group.ended - start);
  if (!group.failure.empty()) json["failure"] = group.failure;
  if (group.held) {
    const std::optional<Instant> started = group.Started();
    json["started_s"] = started ? Json(Seconds(*started - start)) : Json(nullptr);
    json["waits_for"] = Json::array();
    for (const MemberRow* m : group.Missing()) json["waits_for"].push_back(m->rank);
  }
  Json members = Json::array();
  for (const MemberRow& m : group.members) {
    Json member = {{"rank", m.rank}, {"weight", m.weight}, {"iteration", m.iteration}};
    if (m.ready) {
      member["ready_s"] = Seconds(*m.ready - start);
      member["step_ns"] = m.step_ns;
    }
    if (group.held) member["came_s"] = m.came ? Json(Seconds(*m.came - start)) : Json(nullptr);
    if (m.computing) member["computing_since_s"] = Seconds(*m.computing - start);
    if (m.local_steps > 0) member["local_steps"] = m.local_steps;
    member["outcome"] = m.outcome ? Json(OutcomeName(*m.outcome)) : Json(nullptr);
    if (m.reported) {
      member["reported_s"] = Seconds(*m.reported - start);
      member["wait_ns"] = m.wait_ns;
      member["reduce_ns"] = m.reduce_ns;
      member["bytes"] = m.bytes;
    }
    if (group.kind == GroupKind::kTrain) member["passive"] = m.passive;
    if (group.kind == GroupKind::kRound) {
      member["passive"] = m.weight == 0;
      member["included"] = m.included;
    }
    if (m.fetched_from != kNoRank) member["fetched_from"] = m.fetched_from;
    if (!m.detail.empty()) member["detail"] = m.detail;
    members.push_back(std::move(member));
  }
  json["members"] = std::move(members);
  return json;
}

const char* DrawnWord(const Engine::Drawn& group) { return group.pending ? "pending" : "buffered"; }

Json ToJson(const Engine::Drawn& group) {
  Json members = Json::array();
  for (const GroupShare& share : group.members) {
    members.push_back({{"rank", share.rank}, {"weight", share.weight}, {"passive", share.passive}});
  }
  return {{"group", group.id},
          {"kind", KindName(GroupKind::kTrain)},
          {"state", DrawnWord(group)},
          {"formed_s", nullptr},
          {"ended_s", nullptr},
          {"reason", group.reason},
          {"members", std::move(members)}};
}

Json ToJson(const ScheduleRow& schedule, Instant start) {
  Json phases = Json::array();
  for (int phase = 0; phase < kStaticPhases; ++phase) phases.push_back(schedule.Groups(phase));
  return {{"first", schedule.set.first},
          {"since_s", Seconds(schedule.since - start)},
          {"until_s", schedule.until ? Json(Seconds(*schedule.until - start)) : Json(nullptr)},
          {"members", schedule.set.members},
          {"hosts", schedule.set.hosts},
          {"reason", schedule.set.reason},
          {"phases", std::move(phases)}};
}

std::string Dump(const Json& json) {
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string out;
  out.reserve(text.size());
  for (std::string_view rest = text; !rest.empty();) {
    const Character first = FirstCharacter(rest);
    if (first.harmless) {
      out += rest.substr(0, first.size);
    } else {  // inside a string, where it may as well be an escape
      std::array<char, 16> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04x", static_cast<unsigned>(first.code));
      out += escape.data();
    }
    rest.remove_prefix(first.size);
  }
  return out;
}

}  // namespace prd::ctl
