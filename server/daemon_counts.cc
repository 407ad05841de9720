#include "server/daemon_counts.h"

#include <unistd.h>

#include <optional>

#include "common/io/clock.h"

namespace prd {

std::size_t DaemonCounts::Workers() const {
  std::size_t workers = 0;
  for (const auto& [id, run] : of_.controller->runs())
    workers += static_cast<std::size_t>(run->live());
  return workers;
}

ConnectionGuard::Counters DaemonCounts::Connections() const {
  ConnectionGuard::Counters all = of_.workers->listener().guard().counters();
  const ConnectionGuard::Counters admin = of_.admin->connections();
  all.refused += admin.refused;
  all.denied += admin.denied;
  all.cut += admin.cut;
  all.rushes += admin.rushes;
  return all;
}

std::vector<std::pair<std::string, std::uint64_t>> DaemonCounts::Counters() const {
  const Controller::Counters& controller = of_.controller->counters();
  const WorkerSocket::Counters& socket = of_.workers->counters();
  const ConnectionGuard::Counters connections = Connections();
  const Decided& decided = of_.recorder->decided();
  return {{"messages", controller.messages},
          {"messages_duplicate", controller.duplicates},
          {"messages_out_of_order", controller.gaps},
          {"messages_foreign", controller.foreign + socket.foreign},
          {"messages_refused", controller.refused},
          {"messages_malformed", socket.malformed},
          {"messages_resent", controller.resent},
          {"acknowledgements_missing", controller.over_ack_limit},
          {"messages_unroutable", socket.unroutable},
          {"messages_blocked", socket.blocked},
          {"messages_forbidden", socket.forbidden},
          {"messages_over_quota", of_.gate->over_quota()},
          {"connections_denied", of_.zap->denied() + of_.admin->denied() + connections.denied},
          {"connections_refused", connections.refused},
          {"connections_cut", connections.cut},
          {"connections_rushed", connections.rushes},
          {"leases_expired", controller.leases_expired},
          {"processes_ended", controller.processes_ended},
          {"histories_lost", controller.histories_lost},
          {"records", controller.records},
          {"rounds_formed", decided.rounds_formed},
          {"round_contributors", decided.round_contributors},
          {"updates_dropped", decided.updates_dropped},
          {"iterations_granted", decided.iterations_granted},
          {"iterations_skipped", decided.iterations_skipped},
          {"graph_changes", decided.graph_changes},
          {"placements_opened", decided.placements_opened},
          {"queries_ready", decided.queries_ready},
          {"queries_not_ready", decided.queries_not_ready},
          {"results_fetched", decided.results_fetched},
          {"gradients_lost", decided.gradients_lost},
          {"snapshots", of_.recorder->snapshots()},
          {"history_runs_removed", of_.history->trimmed().runs},
          {"history_errors", of_.writer->errors()}};
}

DaemonStatus DaemonCounts::StatusAt(Instant now) const {
  DaemonStatus status{.version = PRD_VERSION,
                      .pid = static_cast<std::uint32_t>(::getpid()),
                      .uptime_ns = MonotonicNs() - started_ns_,
                      .now = now,
                      .counters = Counters(),
                      .silences = {},
                      .stalled_ns = of_.writer->StalledFor(now),
                      .stalled = of_.writer->why_stalled()};
  std::uint64_t groups = 0;
  for (const auto& [engine, formed] : of_.recorder->groups()) groups += formed;
  status.counters.emplace_back("groups_formed", groups);
  for (const auto& [id, run] : of_.controller->runs()) {
    for (Rank rank = 0; static_cast<std::size_t>(rank) < run->workers().size(); ++rank) {
      if (const std::optional<DurationNs> silent = of_.controller->Silence(now, id, rank)) {
        status.silences.push_back({.run = id, .rank = rank, .silent_ns = *silent});
      }
    }
  }
  return status;
}

void DaemonCounts::Write(MetricsPage* page) const {
  const auto number = [](auto value) { return static_cast<double>(value); };
  for (const auto& [name, value] : Counters()) page->AddCounter(name, value);
  for (const auto& [engine, groups] : of_.recorder->groups()) {
    page->Add("groups_formed_total", {{"engine", engine}}, number(groups));
  }
  page->Add("build_info",
            {{"version", PRD_VERSION}, {"protocol", std::to_string(kProtocolVersion)}}, 1);
  page->Add("start_time_seconds", {}, number(started_wall_ns_) / number(kSecond));
  page->Add("jobs", {}, number(of_.controller->runs().size()));
  page->Add("workers", {}, number(Workers()));
  page->Add("history_runs", {}, number(of_.history->retention().total().ended));
  for (const auto& [owner, use] : of_.history->retention().Owners()) {
    page->Add("history_identity_bytes", {{"identity", owner}}, number(use.bytes));
  }
  page->Add("history_stalled", {}, of_.writer->stalled() ? 1 : 0);
  page->Add("flush_seconds", {}, of_.writer->seconds());
}

}  // namespace prd
