#include "tools/sim/model_plane.h"

#include <utility>
#include <variant>

#include "tools/sim/sim_worker.h"

namespace prd::sim {

ModelPlane::ModelPlane(World* world, std::vector<SimWorker>* workers, const MeshDoors* doors,
                       Stats* stats, const Plan& plan, Mutation mutation,
                       std::function<void(const Group&)> unreported)
    : world_(world),
      workers_(workers),
      doors_(doors),
      boxes_(world, mutation),
      data_(world, &boxes_, mutation, std::move(unreported)),
      copies_(world, &boxes_, mutation),
      probes_(world),
      exchange_(world, plan, stats, mutation),
      lent_(workers->size()) {
  for (std::uint32_t i = 0; i < lent_.size(); ++i) {
    lent_[i].plane = this;
    lent_[i].worker = i;
  }
}

// ---- processes ----

void ModelPlane::Start(std::uint32_t worker, Incarnation, bool) {
  lent_[worker].plan = world_->runs.first_plan();
  ++lent_[worker].lives;
}

void ModelPlane::End(std::uint32_t worker, bool) {
  data_.Gone(worker);
  copies_.Gone(worker);
  probes_.Ask(worker, {});
  exchange_.Gone(worker);
}

MeshKey ModelPlane::Key(std::uint32_t worker) const {
  return MeshDoors::KeyOf(lent_[worker].lives * 1'000'003 + worker + 1);
}

// ---- what the core wants ----

void ModelPlane::Enter(std::uint32_t worker, PlaneCall call) {
  if (call == PlaneCall::kAverage) copies_.BeginAverage(worker, (*workers_)[worker].run_number());
}

// A source that is out fails at once.
void ModelPlane::Copies(std::uint32_t worker, const GroupMember& source) {
  if (doors_->IsOut(worker, source.incarnation)) copies_.SourceOut(worker, source.incarnation);
}

void ModelPlane::Perform(std::uint32_t worker, const Action& action) {
  const SimWorker& of = (*workers_)[worker];
  if (std::holds_alternative<BecomeIncarnation>(action)) {
    End(worker, false);
  } else if (const auto* join = std::get_if<JoinRun>(&action)) {
    lent_[worker].plan = world_->runs.PlanOf(world_->runs.NumberOf(join->welcome.identity));
    exchange_.Joins(worker, lent_[worker].plan);
  } else if (const auto* gone = std::get_if<ForgetMembers>(&action)) {
    for (const Incarnation out : gone->incarnations) copies_.SourceOut(worker, out);
  } else if (const auto* start = std::get_if<StartReduce>(&action)) {
    data_.Begin(worker, of.run_number(), *start, of.welcome().plan);
  } else if (std::holds_alternative<CancelReduce>(action)) {
    data_.Cancel(worker);
  } else if (const auto* fetch = std::get_if<StartFetch>(&action)) {
    copies_.Fetch(worker, of.run_number(), *fetch, of.welcome().plan);
    Copies(worker, fetch->source);
  } else if (std::holds_alternative<CancelFetch>(action)) {
    copies_.CancelFetch(worker);
  } else if (const auto* copy = std::get_if<CopyForAverage>(&action)) {
    copies_.CopyForAverage(worker, copy->source.incarnation);
    Copies(worker, copy->source);
  } else if (std::holds_alternative<CancelCopyForAverage>(action)) {
    copies_.CancelAverage(worker);
  } else if (const auto* probe = std::get_if<ProbePeers>(&action)) {
    probes_.Ask(worker, probe->targets);
  } else if (std::holds_alternative<Deposit>(action)) {
    data_.Deposit(worker);
  } else {
    exchange_.Perform(worker, of.run_number(), of.lends(), action);
  }
}

void ModelPlane::Told(std::uint32_t worker, const ControllerBody& body) {
  exchange_.Told(worker, body);
}

void ModelPlane::Says(std::uint32_t worker, const WorkerBody& body) {
  exchange_.Says(worker, (*workers_)[worker].run_number(), body);
}

void ModelPlane::Flip(std::uint32_t worker) {
  Replica& own = world_->replicas[worker];
  own.tag = Mixed(own.tag);
  own.base_tag = Mixed(own.base_tag);
  if (!own.x.empty()) own.x[0] += 1;
  if (!own.base.empty()) own.base[0] += 1;
}

void ModelPlane::Seen(RunId run, const Record& record) {
  if (const auto* set = std::get_if<ScheduleSet>(&record.body)) data_.Seen(run, *set);
  if (const auto* formed = std::get_if<GroupFormed>(&record.body)) data_.Seen(run, *formed);
  exchange_.Seen(run, record);
}

// ---- what comes of it ----

void ModelPlane::OnEvent(const SimEvent& event, Traces::Trace* trace) {
  SimWorker& worker = (*workers_)[event.who];
  switch (event.kind) {
    case EventKind::kReduced:
      return Reduced(data_.OnReduced(event.what));
    case EventKind::kReduceFails:
      return Reduced(data_.OnFails(event.who, event.what));
    case EventKind::kSilent:
      return Reduced(data_.OnSilent(event.who, event.what));
    case EventKind::kFetched:
      if (const auto result = copies_.OnFetched(event.who, event.what)) worker.OnFetched(*result);
      return;
    case EventKind::kCopied:
      if (const auto ok = copies_.OnCopied(event.who, event.what)) {
        const Status status = *ok ? Status::Ok() : Status(Code::kUnavailable, "the source is gone");
        worker.Hear([&](SessionCore* core, Instant now, Actions* out) {
          core->OnCopiedForAverage(now, status, out);
        });
      }
      return;
    case EventKind::kProbe:
      for (const GroupMember& of : probes_.OnProbe(event.who, event.what)) {
        worker.Hear([&](SessionCore* core, Instant now, Actions* out) {
          core->OnProbed(now, of.rank, of.incarnation, out);
        });
      }
      return;
    default:
      return OnExchange(event, trace);
  }
}

void ModelPlane::Reduced(const std::vector<PlaneResult>& results) {
  for (const PlaneResult& result : results) {
    const Status status =
        result.ok ? Status::Ok() : Status(Code::kUnavailable, "a member has vanished");
    (*workers_)[result.worker].OnReduced(result, status);
  }
}

void ModelPlane::OnExchange(const SimEvent& event, Traces::Trace* trace) {
  SimWorker& worker = (*workers_)[event.who];
  const auto tell = [&](Incarnation from, const char* word, std::int64_t stamp) {
    trace->peer = WorkerOf(from);
    trace->word = word;
    trace->id = static_cast<std::uint64_t>(stamp);
  };
  const auto out_of_reach = [&](Rank rank) {
    worker.Hear(
        [&](SessionCore* core, Instant now, Actions* out) { core->OnOutOfReach(now, rank, out); });
  };
  if (event.kind == EventKind::kNote) {
    const auto noted = exchange_.OnNote(event.who, event.what);
    if (!noted) return;
    tell(noted->from, WordOf(noted->note.kind), noted->note.parcel.stamp);
    worker.Hear([&](SessionCore* core, Instant now, Actions* out) {
      core->OnNote(now, noted->from, noted->note, out);
    });
  } else if (event.kind == EventKind::kRequest) {
    const auto asked = exchange_.OnRequest(event.who, event.what);
    if (!asked) return;
    tell(asked->from, WordOf(asked->parcel.kind), asked->parcel.stamp);
    worker.Hear([&](SessionCore* core, Instant now, Actions* out) {
      core->OnRequest(now, asked->from, asked->request, asked->parcel, out);
    });
  } else if (event.kind == EventKind::kUnheard) {
    const auto peer = exchange_.OnUnheard(event.who, event.what);
    if (!peer) return;
    trace->peer = static_cast<std::uint32_t>(*peer);
    out_of_reach(*peer);
  } else if (event.kind == EventKind::kPulled) {
    const auto pulled = exchange_.OnPulled(event.who, event.what);
    if (!pulled) return;
    tell(pulled->from, pulled->ok ? WordOf(pulled->parcel.kind) : "nothing, for",
         pulled->parcel.stamp);
    const Status status = pulled->ok ? Status::Ok() : Status(Code::kUnavailable, "the pull failed");
    worker.Hear([&](SessionCore* core, Instant now, Actions* out) {
      core->OnPulled(now, pulled->ticket, status, pulled->enclosure, out);
    });
    if (pulled->out_of_reach) out_of_reach(static_cast<Rank>(WorkerOf(pulled->from)));
  }
}

}  // namespace prd::sim
