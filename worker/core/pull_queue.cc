#include "worker/core/pull_queue.h"

#include <algorithm>

namespace prd {
namespace {

constexpr DurationNs kAgainFirst = 100 * kMillisecond;
constexpr DurationNs kAgainMax = 2 * kSecond;

}  // namespace

bool PullQueue::Want(Incarnation from, const PeerItem& parcel, Actions* out) {
  const Key key{from, parcel.shard};
  const auto [it, first] = items_.try_emplace(key);
  Item& item = it->second;
  if (!first && parcel.stamp <= item.parcel.stamp) return false;
  item.parcel = parcel;
  if (first) {
    waiting_.push_back(key);
  } else if (item.ticket != 0) {
    out->push_back(DropPull{item.ticket});
    tickets_.erase(std::exchange(item.ticket, 0));
    waiting_.push_back(key);
  }
  return true;
}

void PullQueue::Start(Instant now, Ticket* next_ticket, Actions* out) {
  while (!failed_.empty() && failed_.begin()->first <= now) {
    const Key key = failed_.begin()->second;
    failed_.erase(failed_.begin());
    waiting_.push_back(key);
  }
  while (!waiting_.empty() && tickets_.size() < limit_) {
    const Key key = waiting_.front();
    waiting_.pop_front();
    Item& item = items_.at(key);
    item.ticket = (*next_ticket)++;
    tickets_.emplace(item.ticket, key);
    out->push_back(StartPull{.ticket = item.ticket, .from = key.first, .parcel = item.parcel});
  }
}

std::optional<PullQueue::Pull> PullQueue::Find(Ticket ticket) const {
  const auto it = tickets_.find(ticket);
  if (it == tickets_.end()) return std::nullopt;
  return Pull{.from = it->second.first, .parcel = items_.at(it->second).parcel};
}

void PullQueue::Succeeded(Ticket ticket) {
  items_.erase(tickets_.at(ticket));
  tickets_.erase(ticket);
}

void PullQueue::Failed(Instant now, Ticket ticket) {
  const Key key = tickets_.at(ticket);
  tickets_.erase(ticket);
  Item& item = items_.at(key);
  item.ticket = 0;
  item.after = item.after == 0 ? kAgainFirst : std::min(2 * item.after, kAgainMax);
  failed_.emplace(now + item.after, key);
}

void PullQueue::Clear(Actions* out) {
  for (const auto& [ticket, key] : tickets_) out->push_back(DropPull{ticket});
  items_.clear();
  waiting_.clear();
  failed_.clear();
  tickets_.clear();
}

std::optional<Instant> PullQueue::NextDeadline() const {
  if (failed_.empty()) return std::nullopt;
  return failed_.begin()->first;
}

}  // namespace prd
