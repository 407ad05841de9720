#include "worker/background.h"

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/io/codec.h"
#include "common/io/poll.h"
#include "common/io/secret.h"
#include "common/io/tcp_liveness.h"
#include "worker/host.h"
#include "worker/memory/meanwhile.h"

namespace prd {
namespace {

// The longest control message: a group of some thousand members fits.
constexpr std::int64_t kMaxMessageBytes = 4 << 20;
constexpr int kMessagesPerTurn = 64;
constexpr int kControllerDeadMs = 3000;

// ZeroMQ tries again to connect after so long, and somewhat longer each time up to the second: well
// within death_grace_ms (config). A controller that has been away for 20 s is asked less often.
struct Pauses {
  int first_ms = 0;
  int longest_ms = 0;
};
constexpr Pauses kSoon = {.first_ms = 50, .longest_ms = 100};
constexpr Pauses kPatient = {.first_ms = 250, .longest_ms = 500};
constexpr int kAttemptsSoon = 160;
constexpr DurationNs kSayToCome = 100 * kMillisecond;

void SetPauses(zmq::socket_ref socket, const Pauses& pauses) {
  socket.set(zmq::sockopt::reconnect_ivl, pauses.first_ms);
  socket.set(zmq::sockopt::reconnect_ivl_max, pauses.longest_ms);
}

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

}  // namespace

Background::Background(const SessionOptions& options)
    : host_(HostId()), token_{RandomBits(), RandomBits()}, log_(options.log) {
  welcome_.rank = kNoRank;
}

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
  wake_.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_.fd < 0) return Status(Code::kResourceExhausted, "no file descriptors are left");
  const Incarnation incarnation = DrawIncarnation();
  core_.GiveIncarnation(incarnation);
  Mesh::Options mesh{.incarnation = incarnation, .host = host_};
  mesh.timeout = std::chrono::nanoseconds(options.reduce_timeout).count();
  Result<std::string> address = options.address.empty() ? AddressTowards(options.controller)
                                                        : Result<std::string>(options.address);
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
  return Connect(options);
}

Status Background::Connect(const SessionOptions& options) {
  PRD_RETURN_IF_ERROR(MayOpen(options.controller));
  controller_options_.controller = options.controller;
  controller_options_.curve_server_key = options.curve_server_key;
  controller_options_.curve_public_key = options.curve_public_key;
  try {
    controller_ = zmq::socket_t(context_, zmq::socket_type::dealer);
    controller_.set(zmq::sockopt::linger, 500);
    controller_.set(zmq::sockopt::immediate, true);  // what cannot leave now is sent again later
    controller_.set(zmq::sockopt::maxmsgsize, kMaxMessageBytes);
    SetPauses(controller_, kSoon);
    // Not bounded by ZeroMQ, for libzmq may abort the process where it bounds (tcp_liveness.h). The
    // controller sends no more than 1 MiB that is not acknowledged.
    controller_.set(zmq::sockopt::rcvhwm, 0);
    EndDeadConnections(controller_, kControllerDeadMs);
    controller_.set(zmq::sockopt::ipv6, IsReachedByIpv6(options.controller));
    if (!options.curve_server_key.empty()) {
      controller_.set(zmq::sockopt::curve_serverkey, options.curve_server_key);
      controller_.set(zmq::sockopt::curve_publickey, options.curve_public_key);
      controller_.set(zmq::sockopt::curve_secretkey, options.curve_secret_key);
    }
    handshakes_.Watch(&context_, controller_);
    controller_.connect(options.controller);
  } catch (const zmq::error_t& error) {
    return Status(Code::kInvalidArgument,
                  "controller: found \"" + options.controller + "\": " + error.what());
  }
  return Status::Ok();
}

Background::~Background() {
  stop_ = true;
  if (thread_.joinable()) {
    eventfd_write(wake_.fd, 1);
    thread_.join();
  }
  mesh_.reset();
  handshakes_.Stop();
  controller_.close();
}

// ---- the user's thread ----

void Background::Ask(Request request, bool may_be_early) {
  {
    const std::lock_guard lock(mutex_);
    reply_.reset();
    request_ = std::move(request);
    may_be_early_ = may_be_early;
  }
  eventfd_write(wake_.fd, 1);
}

void Background::AskToSettle() {
  store_.away = false;
  eventfd_write(wake_.fd, 1);
}

std::optional<Background::Reply> Background::Await(std::chrono::nanoseconds wait) {
  std::unique_lock lock(mutex_);
  const auto answered = [this] { return reply_.has_value() || !failure_.empty(); };
  if (wait.count() < 0) {
    answered_.wait(lock, answered);
  } else if (!answered_.wait_for(lock, wait, answered)) {
    return std::nullopt;
  }
  if (!reply_) return Reply{.done = {Status(Code::kInternal, failure_), {}}};
  if (!reply_->early) store_.away = false;
  return std::exchange(reply_, std::nullopt);
}

void Background::Cancel() {
  cancel_ = true;
  Signal();
}

void Background::LeaveSoon(const char* reason, std::chrono::nanoseconds grace) {
  if (leave_asked_.exchange(true)) return;
  for (std::size_t i = 0; i + 1 < leave_reason_.size() && reason[i] != 0; ++i) {
    leave_reason_[i] = reason[i];
  }
  leave_grace_ = grace;
  leave_ = true;
  Signal();
}

void Background::TellLoss(double loss) {
  const std::lock_guard lock(mutex_);
  losses_.Add({.count = 1, .mean = loss});
}

void Background::Stop(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    stop_reason_ = reason;
  }
  Signal();
}

// Wakes the thread, from a signal handler too.
void Background::Signal() {
  const int saved = errno;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(wake_.fd, &one, sizeof one);
  errno = saved;
}

Welcome Background::welcome() const {
  const std::lock_guard lock(mutex_);
  return welcome_;
}

Background::Progress Background::progress() const {
  const std::lock_guard lock(mutex_);
  return {.job = progress_, .own = own_, .goal = welcome_.goal};
}

StepShares Background::shares() const {
  const std::lock_guard lock(mutex_);
  return shares_;
}

// The caller's thread: this one changes the mean only while a call averages.
std::shared_ptr<Buffer> Background::TakeMean(bool with_state) { return mean_.Take(with_state); }

// ---- the background thread ----

void Background::Run() {
  const Meanwhile keep_lease([this] { KeepLease(); });
  try {
    while (!stop_) {
      Turn();
      Wait();
    }
  } catch (const std::exception& error) {
    Fail(error.what());
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
    SendEnvelope(std::get<SendToController>(action).envelope);
  }
}

void Background::Fail(const std::string& what) {
  const std::lock_guard lock(mutex_);
  failure_ = "the session's thread stopped: " + what;
  answered_.notify_all();
}

void Background::Turn() {
  const Instant now = Now();
  if (cancel_ && !cancel_seen_) {
    cancel_seen_ = true;
    core_.Cancel(now, &actions_);
  }
  if (leave_ && !leave_seen_) {
    leave_seen_ = true;
    core_.LeaveSoon(now, leave_reason_.data(), leave_grace_.count(), &actions_);
  }
  TakeRequests(now);
  LookAfterMemory(now);
  ReceiveFromController(now);
  LookAtHandshakes(now);
  const std::optional<Instant> deadline = core_.NextDeadline();
  if (deadline && *deadline <= now) core_.OnTime(now, &actions_);
  Perform(now);
  mesh_->CallOff(core_.called_off());
  mesh_->Service(now);
  Publish();
  exchanged_bytes_.store(mesh_->exchanged().sent_bytes, std::memory_order_relaxed);
  for (std::size_t way = 0; way < groups_.size(); ++way) {
    groups_[way].store(mesh_->counters().groups[way], std::memory_order_relaxed);
  }
  Perform(now);
}

void Background::Wait() {
  items_.clear();
  items_.push_back({nullptr, wake_.fd, ZMQ_POLLIN, 0});
  const int events = ZMQ_POLLIN | (blocked_ ? ZMQ_POLLOUT : 0);
  items_.push_back({controller_.handle(), 0, static_cast<short>(events), 0});
  items_.push_back({handshakes_.handle(), 0, ZMQ_POLLIN, 0});
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
  if ((items_[0].revents & ZMQ_POLLIN) != 0) {
    eventfd_t count;
    eventfd_read(wake_.fd, &count);
  }
  if (blocked_ && (items_[1].revents & ZMQ_POLLOUT) != 0) {
    blocked_ = false;
    unblocked_ = true;
  }
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
  Request request;
  std::optional<std::string> stop;
  {
    const std::lock_guard lock(mutex_);
    request.swap(request_);
    stop.swap(stop_reason_);
    core_.NoteLosses(std::exchange(losses_, {}));
  }
  core_.NoteMemory(store_.memory->meter()->all());
  if (stop) core_.Stop(now, *std::move(stop), &actions_);
  if (!request) return;
  // The caller is in a call until the answer. It may be a short one.
  store_.lent = true;
  mesh_->ServeWaiting(now);
  request(&core_, now, &actions_);
  if (refused_) core_.Fail(now, *refused_, &actions_);
}

// ZeroMQ takes other pauses for another connection only.
void Background::ChangePace(bool patient) {
  patient_ = patient;
  SetPauses(controller_, patient ? kPatient : kSoon);
  try {
    controller_.disconnect(controller_options_.controller);
    controller_.connect(controller_options_.controller);
  } catch (const zmq::error_t&) {  // it goes on at the pace before
  }
}

void Background::LookAtHandshakes(Instant now) {
  const std::optional<Handshakes::Failure> failure = handshakes_.Take(controller_options_);
  const bool broken = handshakes_.TakeBroken();
  if (!patient_ && handshakes_.attempts() >= kAttemptsSoon) ChangePace(true);
  if (patient_ && broken) ChangePace(false);
  // The controller may have noticed that the connection before broke, and wait for a word over this
  // one.
  if (handshakes_.TakeMade() || std::exchange(unblocked_, false)) {
    blocked_ = unblocked_ = false;
    core_.OnConnected(now, &actions_);
  }
  if (!failure) return;
  log_.Say(failure->status.message());
  if (!failure->final) return core_.OnNoConnection(failure->status.message());
  refused_ = failure->status;
  core_.Fail(now, failure->status, &actions_);
}

void Background::ReceiveFromController(Instant now) {
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    zmq::message_t message;
    if (!controller_.recv(message, zmq::recv_flags::dontwait)) return;
    const bool whole = !message.more();
    for (bool more = message.more(); more;) {
      zmq::message_t part;
      if (!controller_.recv(part, zmq::recv_flags::dontwait)) break;
      more = part.more();
    }
    if (!whole) continue;
    const Result<ControllerEnvelope> envelope = DecodeControllerEnvelope(message.to_string_view());
    // Drops what does not decode; the controller sends it again if it was ours.
    if (envelope.ok()) core_.OnEnvelope(now, *envelope, &actions_);
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
        SendEnvelope(send->envelope);
      } else if (auto* become = std::get_if<BecomeIncarnation>(&action)) {
        mesh_->SetIncarnation(become->incarnation);
      } else if (auto* join = std::get_if<JoinRun>(&action)) {
        EnterRun(join->welcome);
        const std::lock_guard lock(mutex_);
        welcome_ = join->welcome;
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
        interrupted_.store(interrupt->on, std::memory_order_relaxed);
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

void Background::SendEnvelope(const WorkerEnvelope& envelope) {
  if (blocked_) return;  // all of it is sent again once the connection is there
  const std::string bytes = Encode(envelope);
  if (!controller_.send(zmq::buffer(bytes), zmq::send_flags::dontwait)) blocked_ = true;
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
  Publish();
  const std::lock_guard lock(mutex_);
  reply_ = std::move(reply);
  reply_->at = std::chrono::steady_clock::now();
  answered_.notify_all();
}

void Background::Publish() {
  const bool same = core_.progress() == progress_ && core_.own() == own_;
  const bool same_share = core_.shares().version() == shares_.version();
  if (same && same_share) return;  // only this thread writes them
  const std::lock_guard lock(mutex_);
  if (!same_share) shares_ = core_.shares();
  progress_ = core_.progress();
  own_ = core_.own();
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
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(may_be_early_, false)) return;
    store_.away = true;
  }
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
