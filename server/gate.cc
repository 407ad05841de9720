#include "server/gate.h"

#include <algorithm>
#include <utility>

namespace prd {
namespace {

constexpr std::uint32_t kRetryMs = 1000;
constexpr std::size_t kMaxArrived = 16'384;
constexpr std::size_t kMaxName = 257;

// The job that the message is about; null: no run that there is.
const Job* JobOf(const Pump& pump, const WorkerEnvelope& envelope) {
  const auto job = pump.jobs().find(envelope.run);
  return job == pump.jobs().end() ? nullptr : job->second.get();
}

}  // namespace

Gate::Verdict Gate::Check(Instant now, const Sender& sender, WorkerEnvelope* envelope,
                          Refused* refusal) {
  auto* hello = std::get_if<Hello>(&envelope->body);
  const Job* job = hello != nullptr ? nullptr : JobOf(*pump_, *envelope);
  std::string other;                                             // no name of a run there is
  if (hello != nullptr) other = hello->job.substr(0, kMaxName);  // the pump refuses longer ones
  const std::string& name = job != nullptr ? job->spec().name : other;
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
  // What is of no run there is, is for the pump to refuse.
  if (hello == nullptr && job == nullptr) return Verdict::kPass;
  if (!rights->trains || !rights->Covers(name)) {
    return refuse(Code::kFailedPrecondition, "it may not train in job " + name);
  }
  if (Overdrawn(now, *rights)) {
    ++over_quota_;
    const Verdict verdict = refuse(Code::kUnavailable,
                                   "over " + std::to_string(rights->max_messages_per_s) +
                                       " messages per second (max_messages_per_s)",
                                   kRetryMs);
    return hello != nullptr ? verdict : Verdict::kDrop;
  }
  if (hello != nullptr) {
    hello->identity = rights->name;
    const std::string missing = Missing(*rights, *envelope, *hello);
    if (!missing.empty()) {
      ++over_quota_;
      return refuse(Code::kUnavailable, missing, kRetryMs);
    }
    NoteArrival(PeerOf(*sender.part), *rights, *envelope, *hello);
    return Verdict::kPass;
  }
  const std::vector<Job::Worker>& workers = job->workers();
  const auto rank = static_cast<std::size_t>(envelope->rank);
  if (envelope->rank < 0 || rank >= workers.size() ||
      workers[rank].incarnation != envelope->incarnation ||
      workers[rank].identity == rights->name) {
    return Verdict::kPass;
  }
  return refuse(Code::kAborted, "this worker joined as identity " + workers[rank].identity);
}

// A bucket that holds a second's worth of messages, and fills at that rate.
bool Gate::Overdrawn(Instant now, const Rights& rights) {
  if (rights.max_messages_per_s == 0) return false;
  const auto most = static_cast<double>(rights.max_messages_per_s);
  Bucket& bucket = buckets_[rights.name];
  const double filled =
      bucket.at ? bucket.left + most * static_cast<double>(now - *bucket.at) / kSecond : most;
  bucket = {.left = std::min(most, filled), .at = now};
  if (bucket.left < 1) return true;
  bucket.left -= 1;
  return false;
}

// Which quota has no room for this worker; empty: it may come.
std::string Gate::Missing(const Rights& rights, const WorkerEnvelope& envelope,
                          const Hello& hello) const {
  if (rights.max_jobs == 0 && rights.max_workers == 0) return {};
  const Pump::Share* share = pump_->ShareOf(rights.name);
  // The first one, or it repeats itself.
  if (share == nullptr || pump_->IsHere(envelope.incarnation, rights.name)) return {};
  const auto jobs = static_cast<std::int64_t>(share->runs.size());
  const bool in_it = share->runs.contains(pump_->RunOf(hello.job));  // with another worker
  if (rights.max_workers > 0 && share->workers >= rights.max_workers) {
    return "it has all its " + std::to_string(rights.max_workers) + " workers (max_workers)";
  }
  if (rights.max_jobs > 0 && jobs >= rights.max_jobs && !in_it) {
    return "it has all its " + std::to_string(rights.max_jobs) + " jobs (max_jobs)";
  }
  return {};
}

void Gate::NoteArrival(const Peer& peer, const Rights& rights, const WorkerEnvelope& envelope,
                       const Hello& hello) {
  if (!arrived_.insert(envelope.incarnation).second) return;
  arrived_order_.push_back(envelope.incarnation);
  if (arrived_order_.size() > kMaxArrived) {
    arrived_.erase(arrived_order_.front());
    arrived_order_.pop_front();
  }
  audit_->Admitted(peer, &rights, "train in job " + hello.job);
}

}  // namespace prd
