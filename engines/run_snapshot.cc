// The state of a run as a value: its snapshot.
//
// The order of the fields is the format that kStateVersion names. Snapshots of it exist, and a
// replay is held against their hash; so the order of bytes stays as it is, although it goes across
// the parts: the row of each worker is one piece, and parts are split where fields came later.
#include <cstdint>
#include <optional>

#include "engines/run_state.h"

namespace prd {
namespace {

constexpr std::uint32_t kStateVersion = 22;

}  // namespace

void RunWorker::Archive(StateArchive& ar) {
  bool waiting = signal.has_value();
  Ready ready = signal.value_or(Ready{});
  bool for_replica = Held(kForReplica);
  bool for_comparison = Held(kForComparison);
  bool for_orders = Held(kForOrders);
  ar(state, incarnation, host, host_name, pid, endpoints, mesh_key, gradients, identity, version,
     mesh_version, returns_at_once, token, continues, returns, job_trained, brought, iteration,
     group, last_group, last_ok, waiting, ready.iteration, ready.step_ns, ready.samples,
     ready.waiting, ready.gradients, ready.local_steps, ready.rtt_ns, ready.queued, ready.dropped,
     ready.suppressed, ready.last, signalled, owed, for_replica, for_comparison, for_orders,
     stop_held, resumes, outdated, first_group, source, source_gone, fetches, failed_source,
     copies_after, no_replica, stopped_at, stopped_when, told_when, since, untold, reads_group,
     reads_from, link);
  if (ar.saving()) return;
  signal = waiting ? std::optional<Ready>(ready) : std::nullopt;
  holds = static_cast<std::uint8_t>((for_replica ? kForReplica : 0) |
                                    (for_comparison ? kForComparison : 0) |
                                    (for_orders ? kForOrders : 0));
}

std::string RunState::OtherVersion(std::string_view state) {
  StateArchive ar = StateArchive::Loader(state);
  std::uint32_t version = 0;
  ar(version);
  constexpr std::uint32_t kMost = 1000;  // more is damage
  if (!ar.ok() || version == kStateVersion || version > kMost) return {};
  return "another version of prd has written it: its state has version " + std::to_string(version) +
         ", and this prd's " + std::to_string(kStateVersion);
}

void RunState::Archive(StateArchive& ar) {
  std::uint32_t version = kStateVersion;
  ar(version);
  if (version != kStateVersion) ar.Fail();
  ar(identity_, wall_ns_, started_at_, log_, start_);
  copies_.ArchiveAgain(ar);
  bool ended = end_ != End::kNone;
  bool finished = end_ == End::kFinished;
  ar(switch_, ended, finished, admissions_);
  if (!ar.saving()) end_ = finished ? End::kFinished : ended ? End::kEnded : End::kNone;
  groups_.ArchiveNext(ar);
  ar(roster_, clock_, divergence_, groups_, held_, links_);
  copies_.ArchiveBehind(ar);
  ar(numbers_);
  engine_->Archive(ar);
  // Runs without orders, and without a batch, have the snapshots that they had before there were
  // any.
  orders_.Archive(ar, shares_.on());
  if (ar.saving() ? shares_.on() : !ar.AtEnd()) ar(shares_);
}

bool RunState::Restore() {
  if (tallies().size() != workers().size()) return false;
  roster_.Restore();
  ready_.Restore();
  gone_.Restore();
  const auto present = [this](Rank rank) { return roster_.Present(rank); };
  for (const auto& [rank, why] : draining()) {
    if (!present(rank)) return false;
  }
  return shares_.Restore() && links_.Restore(present) && held_.Restore() && copies_.Restore();
}

}  // namespace prd
