// Hop's update queues: this worker's side of the exchange with its neighbours on a graph (Luo et
// al., ASPLOS 2019). Pure; a part of SessionCore, which says when to publish, receive and move on.
//
// Receiving. Iteration k, the one that this worker is in, is where its window begins. Without
// staleness it holds updates of k and of the slots - 1 iterations after it, of each neighbour; what
// is offered beyond is pulled once the window gets there (section 6.1). With a staleness of s it
// keeps each neighbour's newest update, and pulls at most one more; updates before k - s are of no
// use. A worker declines what its window is past. So updates take at most `slots` models for each
// neighbour it gets them from, and 2 with staleness. An update that its sender skipped is not
// waited for.
//
// Sending. A published update can be pulled until all who get it have it or have declined it, and
// is offered again until then. With staleness a newer one replaces it. The newest one stays until
// there is a newer one, for who becomes a neighbour meanwhile.
#ifndef PRD_WORKER_CORE_UPDATE_QUEUES_H_
#define PRD_WORKER_CORE_UPDATE_QUEUES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/core/actions.h"

namespace prd {

class UpdateQueues {
 public:
  // For Ready, where they are explained. Dropped and suppressed: since they were taken last.
  struct Counters {
    std::uint32_t queued = 0;
    std::uint32_t dropped = 0;
    std::uint32_t suppressed = 0;
    friend bool operator==(const Counters&, const Counters&) = default;
  };

  // From now on these are the neighbours, and the window begins at iteration k. REQUIRES:
  // incarnations are distinct in `in`, and in `out`; `from` is as long as `in`; weights are finite
  // and >= 0.
  void SetNeighbourhood(Instant now, const NeighbourPlan& plan, const Neighbourhood& hood,
                        Iteration k, Actions* out);
  bool met() const { return met_; }  // there is a Neighbourhood
  Iteration window() const { return k_; }
  // This worker is no neighbour any more, for good: everything is let go.
  void Close(Actions* out);

  // The parameters as they are now are the update of iteration k: offers it. Nothing happens where
  // an update of that iteration, or of a later one, has been published.
  void Publish(Instant now, Iteration k, Actions* out);
  // The window begins at iteration k.
  void MoveTo(Iteration k, Actions* out);
  // Recv(k) may end: enough updates are here (sections 4.1, 4.3 and 4.4).
  bool CanReceive(Iteration k) const;
  // Reduce: averages the parameters with the updates for iteration k that are here. False: there
  // are none, and the parameters stay as they are.
  bool Mix(Iteration k, Actions* out);
  Counters TakeCounters();

  // exchange.h. Whatever they bring: what makes no sense is disregarded, or refused.
  void OnNote(Incarnation from, const PeerMessage& note, Actions* out);
  void OnRequest(Incarnation from, Request request, const PeerItem& parcel, Actions* out);
  void OnPulled(Instant now, Ticket ticket, const Status& status, Actions* out);
  void OnTime(Instant now, Actions* out);
  std::optional<Instant> NextDeadline() const;

  std::size_t published() const { return published_.size(); }  // that can be pulled here

 private:
  struct Pull {
    Ticket ticket = 0;  // 0: it has failed, and is tried again
    bool here = false;
    Instant retry_at;
    DurationNs retry_after = 0;
  };
  struct Sender {
    double weight = 0;
    Iteration from = 0;
    Iteration newest = -1;            // of those that were ever here
    std::map<Iteration, Pull> pulls;  // on their way, or here and not used yet
    std::set<Iteration> offered;      // and not pulled yet; with staleness the newest alone
    // The update before, of updates whose sender skipped iterations before them. None of the past.
    std::map<Iteration, Iteration> skips;
    std::set<Iteration> let_go;  // see let_go_
  };
  struct Offer {
    bool pulled = false;
    Instant again_at;
    DurationNs again_after = 0;
  };
  using Senders = std::map<Incarnation, Sender>;
  struct Published {
    Iteration before = 0;                 // of the update published before
    std::map<Incarnation, Offer> offers;  // not answered yet
  };

  Iteration oldest() const { return k_ - staleness_; }  // that is of use
  Iteration newest() const;                             // that there is room for
  bool Waits(const Sender& sender, Iteration k) const;
  bool Skipped(const Sender& sender, Iteration k) const;

  void OnOffer(Incarnation from, const PeerMessage& note, Actions* out);
  void OnAnswer(Incarnation from, const PeerMessage& note, Actions* out);
  void StartPulls(Incarnation from, Sender* sender, Actions* out);
  void Start(Incarnation from, Iteration iteration, Pull* pull, Actions* out);
  void Drop(const Pull& pull, Actions* out);
  void DropAll(const Sender& sender, Actions* out);
  void LetGo(Incarnation from, const Sender& sender);
  void DropPast(Actions* out);
  void DropPast(Incarnation from, Sender* sender, Actions* out);
  void SetSenders(const Neighbourhood& hood, Actions* out);
  void SetReceivers(Instant now, const Neighbourhood& hood, Actions* out);
  void SayOffer(Instant now, Incarnation to, Iteration iteration, Actions* out);
  void RetireOld(Actions* out);

  bool met_ = false;
  bool closed_ = false;
  Iteration k_ = 0;
  std::int64_t staleness_ = 0;
  std::uint32_t backups_ = 0;
  std::uint32_t slots_ = 1;
  double own_weight_ = 1;

  Senders in_;
  std::map<Ticket, std::pair<Incarnation, Iteration>> tickets_;
  Ticket last_ticket_ = 0;
  // Updates that were here when their sender ceased to be a neighbour, but for those of the past.
  // It has been told that they are stored, and should it be a neighbour again, it may not have them
  // any more: they are not waited for.
  std::map<Incarnation, std::set<Iteration>> let_go_;
  // Offers of those who have learned before this worker that it is their neighbour.
  std::vector<std::pair<Incarnation, PeerMessage>> early_;

  std::set<Incarnation> out_;
  std::map<Iteration, Published> published_;
  Iteration newest_published_ = -1;

  std::uint32_t dropped_ = 0;
  std::uint32_t suppressed_ = 0;
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_UPDATE_QUEUES_H_
