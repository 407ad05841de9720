#include "worker/background.h"

#include <signal.h>

#include <algorithm>
#include <new>
#include <utility>

#include "common/io/poll.h"
#include "common/io/secret.h"
#include "worker/core/trained_report.h"
#include "worker/host.h"
#include "worker/memory/meanwhile.h"

namespace prd {
namespace {

constexpr int kMessagesPerTurn = 64;
constexpr DurationNs kSayToCome = 100 * kMillisecond;

Instant Now() {
  return {std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1)};
}

Incarnation DrawIncarnation() {
  for (;;) {
    const Incarnation drawn = RandomBits();
    if (drawn != 0) return drawn;
  }
}

// What frames between workers of the run carry in place of its number, which may come again.
std::uint64_t FrameRun(const Welcome& welcome) {
  return welcome.identity.known() ? welcome.identity.high : welcome.run;
}

// The address of this host at which the session listens.
Result<std::string> ListenAt(const SessionOptions& options, LineLog* log) {
  // Where the address is given, the controller's name may be found later, too.
  const auto now = std::chrono::steady_clock::now();
  Result<std::string> towards = AwaitAddressTowards(
      options.controller, options.address.empty() ? now + options.timeout : now,
      [&](const std::string& why) {
        const auto s = std::chrono::duration_cast<std::chrono::seconds>(options.timeout).count();
        log->Say(why + "; it is asked for again, for " + std::to_string(s) + " s");
      });
  const bool remote = towards.ok() && !IsLoopbackAddress(*towards);
  if (!options.announce_address.empty()) {
    PRD_RETURN_IF_ERROR(CheckAnnounced(options.announce_address, remote));
  } else if (!options.address.empty()) {
    PRD_RETURN_IF_ERROR(CheckAddress(options.address, remote));
  }
  if (!options.address.empty()) return options.address;
  if (!towards.ok() || remote) return towards;
  const std::string other = AddressOfHost(options.controller);
  if (other.empty()) return towards;
  log->Say("the host of " + options.controller + " is this one, by a loopback address (" +
           *towards + "); other hosts are told that this worker is at " + other +
           " (PRD_ADDRESS names another)");
  return other;
}

}  // namespace

Background::Background(const SessionOptions& options)
    : host_(HostId()), token_{RandomBits(), RandomBits()}, log_(options.log) {}

Result<std::unique_ptr<Background>> Background::Start(const SessionOptions& options) {
  std::unique_ptr<Background> background(new Background(options));
  PRD_RETURN_IF_ERROR(background->Open(options));
  // Signals are for the program's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  background->thread_ = std::thread([self = background.get()] { self->Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return background;
}

Status Background::Open(const SessionOptions& options) {
  if (bell_.fd() < 0) return Status(Code::kResourceExhausted, "no file descriptors are left");
  const Incarnation incarnation = DrawIncarnation();
  core_.GiveIncarnation(incarnation);
  Mesh::Options mesh{.incarnation = incarnation, .host = host_};
  mesh.timeout = std::chrono::nanoseconds(options.reduce_timeout).count();
  const Result<std::string> address = ListenAt(options, &log_);
  if (!address.ok()) return address.status();
  ZmqTransport::Options reached{.listening = {.address = *address,
                                              .ports = options.mesh_ports,
                                              .announce = options.announce_address},
                                .longest_part = mesh.LongestPart()};
  const bool asked =
      !options.address.empty() || !options.mesh_ports.empty() || !options.announce_address.empty();
  // All workers are on the controller's host, and reach each other by ipc.
  if (!asked && IsLoopbackAddress(*address)) reached.listening.address.clear();
  auto transport = ZmqTransport::Make(&context_, std::move(reached));
  if (!transport.ok()) return transport.status();
  transport_ = transport->get();
  Result<std::unique_ptr<Mesh>> made =
      Mesh::Create(std::move(transport).value(), std::move(mesh), &store_, this);
  if (!made.ok()) return made.status();
  mesh_ = std::move(*made);
  return controller_.Connect(&context_, options);
}

Background::~Background() {
  stop_ = true;
  if (thread_.joinable()) {
    bell_.Ring();
    thread_.join();
  }
  mesh_.reset();
}

// ---- the user's thread ----

void Background::Ask(Request request, bool may_be_early) {
  desk_.Ask(std::move(request), may_be_early);
  bell_.Ring();
}

void Background::AskToSettle() {
  store_.away = false;
  bell_.Ring();
}

std::optional<Background::Reply> Background::Await(std::chrono::nanoseconds wait) {
  std::optional<Reply> reply = desk_.Await(wait);
  if (reply && !reply->early) store_.away = false;
  return reply;
}

void Background::Cancel() {
  outside_.Cancel();
  bell_.Ring();
}

void Background::LeaveSoon(const char* reason, std::chrono::nanoseconds grace) {
  outside_.LeaveSoon(reason, grace);
  bell_.Ring();
}

void Background::Stop(const std::string& reason) {
  outside_.Stop(reason);
  bell_.Ring();
}

// ---- the background thread ----

void Background::Run() {
  const Meanwhile keep_lease([this] { KeepLease(); });
  try {
    while (!stop_) {
      Turn();
      Wait();
    }
  } catch (const std::bad_alloc& error) {
    desk_.Fail(Status(Code::kResourceExhausted,
                      "the session's thread stopped: " + std::string(error.what())));
  } catch (const std::exception& error) {
    desk_.Fail(
        Status(Code::kInternal, "the session's thread stopped: " + std::string(error.what())));
  }
}

// To copy gigabytes may take longer than the controller and peers wait without a word.
void Background::KeepLease() {
  const Instant now = Now();
  if (now - said_to_come_ > kSayToCome) {
    said_to_come_ = now;
    mesh_->SayToCome(now);
  }
  Actions heartbeat;
  core_.KeepLease(now, &heartbeat);
  for (const Action& action : heartbeat) {
    controller_.Send(std::get<SendToController>(action).envelope);
  }
}

void Background::Turn() {
  const Instant now = Now();
  TakeRequests(now);
  LookAfterMemory(now);
  ReceiveFromController(now);
  LookAtConnection(now);
  const std::optional<Instant> deadline = core_.NextDeadline();
  if (deadline && *deadline <= now) core_.OnTime(now, &actions_);
  Perform(now);
  mesh_->CallOff(core_.called_off());
  mesh_->Service(now);
  view_.Publish(core_);
  view_.Publish(*mesh_);
  Perform(now);
}

void Background::Wait() {
  items_.clear();
  items_.push_back({nullptr, bell_.fd(), ZMQ_POLLIN, 0});
  controller_.AppendPollItems(&items_);
  transport_->AppendPollItems(mesh_->WatchedLinks(), &items_);
  std::optional<Instant> until = mesh_->NextDeadline();
  const std::optional<Instant> core = core_.NextDeadline();
  if (core && (!until || *core < *until)) until = core;
  std::int64_t wait_ms = -1;
  if (until) {
    const DurationNs left = *until - Now();
    wait_ms = left <= 0 ? 0 : std::min<std::int64_t>(left / kMillisecond + 1, 60'000);
  }
  Poll(items_, wait_ms);
  if ((items_[0].revents & ZMQ_POLLIN) != 0) bell_.Quiet();
  controller_.OnPolled(items_[1]);
}

// A device that failed has lost the replica.
void Background::LookAfterMemory(Instant now) {
  if (failure_seen_) return;
  const Status status = store_.memory->failure();
  if (status.ok()) return;
  failure_seen_ = true;
  core_.Fail(now, status, &actions_);
}

void Background::MoveTo(ReplicaHome home) {
  failure_seen_ = false;
  mean_.Forget();
  if (home.device == nullptr && !store_.memory->device()) return;
  mesh_->UseMemory(std::move(home.memory), std::move(home.plane));
}

void Background::TakeRequests(Instant now) {
  // Before what else was asked: a loss that was told before this request goes with it.
  const Request request = desk_.Take();
  core_.report().NoteMemory(store_.memory->meter()->all());
  outside_.Take(&core_, now, &actions_);
  if (!request) return;
  // The caller is in a call until the answer. It may be a short one.
  store_.kept.lent = true;
  mesh_->ServeWaiting(now);
  request(&core_, now, &actions_);
  if (refused_) core_.Fail(now, *refused_, &actions_);
}

void Background::LookAtConnection(Instant now) {
  const ControllerSocket::News news = controller_.TakeNews();
  if (news.connected) core_.OnConnected(now, &actions_);
  if (!news.failure) return;
  log_.Say(news.failure->status.message());
  if (!news.failure->final) return core_.OnNoConnection(news.failure->status.message());
  refused_ = news.failure->status;
  core_.Fail(now, news.failure->status, &actions_);
}

void Background::ReceiveFromController(Instant now) {
  std::optional<ControllerEnvelope> envelope;
  for (int i = 0; i < kMessagesPerTurn && controller_.Receive(&envelope); ++i) {
    if (envelope) core_.OnEnvelope(now, *envelope, &actions_);
    Perform(now);
  }
}

void Background::Perform(Instant now) {
  for (bool first = true; first || !actions_.empty(); first = false) {
    Actions actions;
    actions.swap(actions_);
    for (Action& action : actions) {
      if (auto* send = std::get_if<SendToController>(&action)) {
        if (const auto* through = std::get_if<Finished>(&send->envelope.body)) {
          mesh_->CallOff(through->group);
        }
        controller_.Send(send->envelope);
      } else if (auto* become = std::get_if<BecomeIncarnation>(&action)) {
        mesh_->SetIncarnation(become->incarnation);
      } else if (auto* join = std::get_if<JoinRun>(&action)) {
        EnterRun(join->welcome);
        view_.SetWelcome(join->welcome);
      } else if (const auto* announced = std::get_if<AnnouncedMembers>(&action)) {
        mesh_->Announce(now, announced->members, announced->copies);
      } else if (const auto* gone = std::get_if<ForgetMembers>(&action)) {
        mesh_->ForgetMembers(now, gone->incarnations);
      } else if (auto* reduce = std::get_if<StartReduce>(&action)) {
        if (const Status whole = store_.Whole(); !whole.ok() && !reduce->in_place) {
          core_.Fail(now, whole, &actions_);
        } else {
          mesh_->StartReduce(now, reduce->group, reduce->what, reduce->gain, reduce->in_place);
        }
      } else if (std::holds_alternative<CancelReduce>(action)) {
        mesh_->CancelReduce();
      } else if (const auto* give_up = std::get_if<GiveUpReduce>(&action)) {
        mesh_->GiveUpReduce(give_up->reason);
      } else if (auto* fetch = std::get_if<StartFetch>(&action)) {
        mesh_->StartFetch(now, fetch->source, fetch->result, fetch->contributed, fetch->in_place);
      } else if (std::holds_alternative<CancelFetch>(action)) {
        mesh_->CancelFetch();
      } else if (auto* copy = std::get_if<CopyForAverage>(&action)) {
        mesh_->StartSample(now, copy->source);
      } else if (std::holds_alternative<CancelCopyForAverage>(action)) {
        mesh_->CancelSample();
      } else if (const auto* line = std::get_if<LogLine>(&action)) {
        log_.Say(line->text);
      } else if (const auto* probe = std::get_if<ProbePeers>(&action)) {
        mesh_->Probe(now, probe->targets);
      } else if (std::holds_alternative<Deposit>(action)) {
        store_.Deposit();
      } else if (const auto* interrupt = std::get_if<Interrupt>(&action)) {
        view_.SetInterrupted(interrupt->on);
      } else if (auto* apply = std::get_if<ApplyNow>(&action)) {
        Answer({.duty = *apply, .done = {}});
      } else if (auto* done = std::get_if<CallDone>(&action)) {
        Answer({.done = std::move(*done)});
      } else {
        PerformExchange(now, action);
      }
    }
    if (core_.wants_incarnation()) core_.GiveIncarnation(DrawIncarnation());
  }
}

void Background::EnterRun(const Welcome& welcome) {
  const MeshProtection protection{.security = welcome.mesh_security,
                                  .device_network_trusted = welcome.device_network_trusted};
  store_.keeps_gradients = accumulates_ && welcome.batch > 0;
  mesh_->JoinRun(FrameRun(welcome), welcome.plan,
                 std::max<std::uint32_t>(welcome.lease_ms, 1) * kMillisecond, protection);
  if (protection.MayUseNccl() || !store_.memory->device()) return;
  if (std::exchange(said_no_nccl_, true)) return;
  log_.Say(
      "NCCL is not used: nothing protects what it sends, and the job's mesh_security protects what "
      "workers send each other; where the network between devices can be trusted, the config says "
      "device_network = \"trusted\"");
}

void Background::PerformExchange(Instant now, const Action& action) {
  std::visit(
      [&](const auto& what) {
        if constexpr (requires { mesh_->Do(now, what); }) mesh_->Do(now, what);
      },
      action);
}

void Background::Answer(Reply reply) {
  if (!reply.duty) store_.GiveBack();
  if (Status& status = reply.done.status; !status.ok()) {
    const std::lock_guard lock(store_.mutex);
    store_.AboutToChange();  // the caller may be about to let go of its tensors
    if (const Status whole = store_.Whole(); !whole.ok() && status.code() != whole.code()) {
      status = Status(status.code(), status.message() + "; " + whole.message());
    }
  }
  view_.Publish(core_);
  desk_.Answer(std::move(reply));
}

void Background::OnReduced(GroupId group, const Status& status, std::uint64_t sent_bytes,
                           const std::vector<Rank>& unreachable, std::uint64_t digest) {
  core_.OnReduced(Now(), group, status, sent_bytes, &actions_, unreachable, digest);
}

void Background::OnProbed(Rank rank, Incarnation incarnation) {
  core_.OnProbed(Now(), rank, incarnation, &actions_);
}

void Background::OnIntruder(const std::string& what) { log_.Say(what); }

void Background::OnOutOfReach(Rank rank) { core_.OnOutOfReach(Now(), rank, &actions_); }

void Background::OnHandedOver(GroupId group, std::uint64_t sent_bytes) {
  std::optional<StepOutcome> outcome = core_.HandedOver(group);
  if (!outcome) return;
  outcome->sent_bytes += sent_bytes;
  if (!desk_.TakeMayBeEarly()) return;
  store_.away = true;
  Answer({.done = {Status::Ok(), *std::move(outcome)}, .early = true});
}

void Background::OnNote(Incarnation from, const PeerMessage& note) {
  core_.OnNote(Now(), from, note, &actions_);
}

void Background::OnRequest(Incarnation from, prd::Request request, const PeerItem& parcel) {
  core_.OnRequest(Now(), from, request, parcel, &actions_);
}

void Background::OnPulled(Ticket ticket, const Status& status, const ShardHeader& enclosure) {
  core_.OnPulled(Now(), ticket, status, enclosure, &actions_);
}

void Background::OnFetched(const Status& status, Iteration iteration) {
  const Iteration in_inbox = std::max<Iteration>(0, iteration - store_.iteration);
  core_.OnFetched(Now(), status, iteration, &actions_, status.ok() ? in_inbox : 0);
}

void Background::OnSampled(const Status& status, const std::shared_ptr<Buffer>& row) {
  if (status.ok()) mean_.Add(*row);
  core_.OnCopiedForAverage(Now(), status, &actions_);
}

}  // namespace prd
