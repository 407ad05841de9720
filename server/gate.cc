#include "server/gate.h"

#include <algorithm>
#include <utility>

namespace prd {
namespace {

constexpr std::uint32_t kRetryMs = 1000;
constexpr std::size_t kMaxName = 257;

// The job that the message is about; null: no run that there is.
const Run* JobOf(const Controller& controller, const WorkerEnvelope& envelope) {
  const auto run = controller.runs().find(envelope.run);
  return run == controller.runs().end() ? nullptr : run->second.get();
}

}  // namespace

Gate::Verdict Gate::Check(Instant now, const Sender& sender, WorkerEnvelope* envelope,
                          Refused* refusal) {
  auto* hello = std::get_if<Hello>(&envelope->body);
  const Run* run = hello != nullptr ? nullptr : JobOf(*controller_, *envelope);
  std::string other;  // no name of a run there is
  if (hello != nullptr)
    other = hello->job.substr(0, kMaxName);  // the controller refuses longer ones
  const std::string& name = run != nullptr ? run->spec().name : other;
  const Rights* rights = sender.rights;
  const auto refuse = [&](Code code, const std::string& why, std::uint32_t retry_ms = 0) {
    const Peer peer = PeerOf(*sender.part);
    audit_->Refused(peer, rights, "train in job " + name, why);
    *refusal = {
        .code = code, .reason = Called(rights, peer.who) + ": " + why, .retry_ms = retry_ms};
    return Verdict::kRefuse;
  };
  if (rights == nullptr) {
    return refuse(Code::kFailedPrecondition, "the daemon's config does not let it in any more");
  }
  if (sender.surplus) {
    ++over_quota_;
    return refuse(Code::kUnavailable,
                  "it has all its " + std::to_string(rights->max_connections) +
                      " connections (max_connections)",
                  kRetryMs);
  }
  // What is of no run there is, is for the controller to refuse.
  if (hello == nullptr && run == nullptr) return Verdict::kPass;
  if (!rights->trains || !rights->Covers(name)) {
    return refuse(Code::kFailedPrecondition, "it may not train in job " + name);
  }
  if (rights->max_messages_per_s > 0 &&
      !messages_[rights->name].Take(now, rights->max_messages_per_s, kSecond)) {
    ++over_quota_;
    const Verdict verdict = refuse(Code::kUnavailable,
                                   "over " + std::to_string(rights->max_messages_per_s) +
                                       " messages per second (max_messages_per_s)",
                                   kRetryMs);
    return hello != nullptr ? verdict : Verdict::kDrop;
  }
  if (hello != nullptr) {
    hello->identity = rights->name;
    const std::string missing = Missing(now, *rights, *envelope, *hello);
    if (!missing.empty()) {
      ++over_quota_;
      return refuse(Code::kUnavailable, missing, kRetryMs);
    }
    NoteArrival(PeerOf(*sender.part), *rights, *envelope, *hello);
    return Verdict::kPass;
  }
  const std::vector<RunWorker>& workers = run->workers();
  const auto rank = static_cast<std::size_t>(envelope->rank);
  if (envelope->rank < 0 || rank >= workers.size() ||
      workers[rank].incarnation != envelope->incarnation ||
      workers[rank].identity == rights->name) {
    return Verdict::kPass;
  }
  return refuse(Code::kAborted, "this worker joined as identity " + workers[rank].identity);
}

// False: it is empty.
bool Gate::Bucket::Take(Instant now, std::int64_t most, DurationNs per) {
  const double rate = static_cast<double>(most) / static_cast<double>(per);
  const double filled =
      at ? left + rate * static_cast<double>(now - *at) : static_cast<double>(most);
  left = std::min(static_cast<double>(most), filled);
  at = now;
  if (left < 1) return false;
  left -= 1;
  return true;
}

// Which quota has no room for this worker; empty: it may come.
std::string Gate::Missing(Instant now, const Rights& rights, const WorkerEnvelope& envelope,
                          const Hello& hello) {
  const RunId run = controller_->RunOf(hello.job);  // with another worker
  const Controller::Share* share = controller_->ShareOf(rights.name);
  if (share != nullptr) {
    if (controller_->IsHere(envelope.incarnation, rights.name)) return {};  // it repeats itself
    if (rights.max_workers > 0 && share->workers >= rights.max_workers) {
      return "it has all its " + std::to_string(rights.max_workers) + " workers (max_workers)";
    }
    const auto jobs = static_cast<std::int64_t>(share->runs.size());
    if (rights.max_jobs > 0 && jobs >= rights.max_jobs && !share->runs.contains(run)) {
      return "it has all its " + std::to_string(rights.max_jobs) + " jobs (max_jobs)";
    }
  }
  if (run == kNoRun && rights.max_runs_per_minute > 0 &&
      !runs_[rights.name].Take(now, rights.max_runs_per_minute, 60 * kSecond)) {
    return "it has begun its " + std::to_string(rights.max_runs_per_minute) +
           " runs of this minute (max_runs_per_minute)";
  }
  return {};
}

void Gate::NoteArrival(const Peer& peer, const Rights& rights, const WorkerEnvelope& envelope,
                       const Hello& hello) {
  if (arrived_.contains(envelope.incarnation)) return;
  arrived_.Add(envelope.incarnation);
  audit_->Admitted(peer, &rights, "train in job " + hello.job);
}

}  // namespace prd
