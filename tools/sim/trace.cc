#include "tools/sim/trace.h"

#include <cstdio>

namespace prd::sim {
namespace {

constexpr std::array<const char*, std::variant_size_v<WorkerBody::Variant>> kWorkerWords = {
    "Hello",  "Ready",      "Finished", "Adopted", "Finish",     "Leave",   "Heartbeat",  "Placed",
    "Probed", "Progressed", "Pause",    "Resume",  "AskMembers", "StopJob", "GiveNumbers"};
constexpr std::array<const char*, std::variant_size_v<ControllerBody::Variant>> kControllerWords = {
    "Welcome",   "Group",        "Abort",      "Adopt",       "Released",
    "Refused",   "HeartbeatAck", "QueryReply", "Schedule",    "Neighbourhood",
    "Placement", "Opened",       "Probe",      "Resumed",     "Members",
    "Announce",  "EndRun",       "Gone",       "NumbersMean", "SetShare"};
constexpr std::array<const char*, 3> kNoteWords = {"offers", "declines", "has stored"};
constexpr std::array<const char*, 4> kParcelWords = {"update", "delta", "shard", "state"};
constexpr std::array<const char*, static_cast<std::size_t>(EventKind::kCopied) + 1> kEventWords = {
    "worker -> controller",
    "controller -> worker",
    "controller's turn",
    "controller starts",
    "faults",
    "worker's deadline",
    "step computed",
    "step polls",
    "reduced",
    "reduction fails",
    "model copied",
    "worker starts",
    "evaluation",
    "note",
    "asked by a peer",
    "pulled",
    "its user stops it",
    "told to leave",
    "probes",
    "hears no peer",
    "hears nothing",
    "pause is over",
    "connection ends",
    "connected",
    "copied for an average"};

}  // namespace

const char* WordOf(const WorkerBody& body) { return kWorkerWords[body.index()]; }
const char* WordOf(const ControllerBody& body) { return kControllerWords[body.index()]; }
const char* WordOf(PeerMessage::Kind kind) { return kNoteWords[static_cast<std::size_t>(kind)]; }
const char* WordOf(PeerItem::Kind kind) { return kParcelWords[static_cast<std::size_t>(kind)]; }

void Traces::Begin(const SimEvent& event) {
  ++events_;
  newest() = {.event = event, .word = "", .id = 0, .peer = {}};
}

std::string Traces::Line(const Trace& trace) {
  char line[160];
  std::snprintf(line, sizeof line, "%12.6f s  worker %-4u %-21s %s %llu",
                static_cast<double>(trace.event.at.ns) / 1e9, trace.event.who,
                kEventWords[static_cast<std::size_t>(trace.event.kind)], trace.word,
                static_cast<unsigned long long>(trace.id));
  return trace.peer ? line + (", worker " + std::to_string(*trace.peer)) : line;
}

std::vector<std::string> Traces::LastLines() const {
  std::vector<std::string> lines;
  const std::uint64_t all = traces_.size();
  const std::uint64_t first = events_ >= all ? events_ - all + 1 : 1;
  for (std::uint64_t i = first; i <= events_; ++i) lines.push_back(Line(traces_[i % all]));
  return lines;
}

}  // namespace prd::sim
