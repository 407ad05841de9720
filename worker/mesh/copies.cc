#include "worker/mesh/copies.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "common/base/check.h"

namespace prd {

Copies::Copies(ReplicaStore* store, Peers* peers, const Directory* directory, Buffers* buffers,
               std::size_t chunk_bytes)
    : store_(store),
      peers_(peers),
      directory_(directory),
      buffers_(buffers),
      server_(store, peers, chunk_bytes) {}

void Copies::Join(const Plan& plan, DurationNs timeout) {
  plan_ = plan;
  timeout_ = timeout;
  newest_ = {};
}

// ---- to here ----

// `slot` is where the one copy of its kind is kept.
void Copies::Start(Instant now, Fetcher::Wanted wanted, std::optional<Fetcher>* slot) {
  PRD_CHECK(!*slot);
  const Fetcher::Context context{.store = store_,
                                 .peers = peers_,
                                 .self = directory_->self(),
                                 .run = directory_->run(),
                                 .plan = plan_,
                                 .timeout = timeout_};
  const bool out = directory_->IsOut(wanted.source.incarnation);
  slot->emplace(context, now, std::move(wanted), ++started_);
  (*slot)->Request(out);
}

void Copies::StartFetch(Instant now, Fetcher::Wanted wanted) {
  if (wanted.what.in_place) KeepNewest();
  Start(now, std::move(wanted), &fetching_);
}

void Copies::StartSample(Instant now, const GroupMember& source) {
  Start(now, {.source = source, .what = {.alone = true}}, &sampling_);
}

std::optional<Copies::Fetched> Copies::TakeFetched(Instant now, const GiveUp& give_up) {
  if (!fetching_) return std::nullopt;
  if (const auto endpoint = fetching_->Watch(now)) give_up(*endpoint);
  if (!fetching_->over()) return std::nullopt;
  Fetched fetched{.status = fetching_->failure()};
  if (fetched.status.ok()) {
    const std::unique_lock lock(store_->mutex, std::try_to_lock);
    if (!lock.owns_lock() || store_->away) return std::nullopt;
    fetched.iteration = Commit();
    fetched.replica = fetching_->wanted().what.result == kNoGroup;
  }
  fetching_.reset();
  return fetched;
}

std::optional<Copies::Sampled> Copies::TakeSampled(Instant now, const GiveUp& give_up) {
  if (!sampling_) return std::nullopt;
  if (const auto endpoint = sampling_->Watch(now)) give_up(*endpoint);
  if (!sampling_->over()) return std::nullopt;
  Sampled sampled{.status = sampling_->failure(), .row = nullptr};
  if (sampled.status.ok()) sampled.row = sampling_->replica().TakeParameters();
  sampling_.reset();
  return sampled;
}

// The newest result may be in the inbox, which is about to change.
void Copies::KeepNewest() {
  if (newest_.group == kNoGroup || store_->memory->device()) return;
  const std::shared_ptr<Buffer> copy = buffers_->Get(store_->gradients.bytes());
  const Memory::Place row = Memory::InHost(copy->data(), copy);
  store_->memory->Combine(store_->gradients, row, {{newest_.row}});
  newest_.row = row;
}

Iteration Copies::Commit() {
  IncomingReplica& replica = fetching_->replica();
  KeepNewest();
  if (replica.result() == kNoGroup) return replica.Commit();
  const std::shared_ptr<Buffer> row = replica.TakeResult();
  store_->AddToInbox(Memory::InHost(row->data(), row), replica.round(), TakesNewestOnly(plan_));
  if (fetching_->wanted().contributed) store_->owes = false;
  return replica.round();
}

// ---- both ----

bool Copies::OnFrame(Instant now, const FrameHeader& header, SharedBytes payload) {
  const RunId run = directory_->run();
  if (header.run != run || run == kNoRun) return false;
  if (header.kind == FrameKind::kFetch) {
    server_.OnRequest(now, header, *directory_->Find(header.from), newest_);
    return true;
  }
  return (fetching_ && fetching_->OnFrame(now, header, payload)) ||
         (sampling_ && sampling_->OnFrame(now, header, payload));
}

bool Copies::OnPong(Instant now, const FrameHeader& header) {
  return (fetching_ && fetching_->OnPong(now, header)) ||
         (sampling_ && sampling_->OnPong(now, header));
}

void Copies::OnLost(const std::string& endpoint) {
  server_.OnLost(endpoint);
  if (fetching_) fetching_->OnLost(endpoint);
  if (sampling_) sampling_->OnLost(endpoint);
}

std::optional<Instant> Copies::NextDeadline() const {
  std::optional<Instant> next = fetching_ ? fetching_->NextDeadline() : std::nullopt;
  const std::optional<Instant> other = sampling_ ? sampling_->NextDeadline() : std::nullopt;
  return next && other ? std::min(next, other) : next ? next : other;
}

}  // namespace prd
