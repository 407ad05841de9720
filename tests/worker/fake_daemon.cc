#include "tests/worker/fake_daemon.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <random>
#include <utility>

#include "common/base/check.h"
#include "common/io/codec.h"

namespace prd::testing {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

JobSpec SpecFor(EngineOptions engine, int workers) {
  JobSpec spec;
  spec.engine = std::move(engine);
  spec.workers = workers;
  spec.lease_ms = 60'000;  // nobody is given up on a busy machine: rounds would have other means
  spec.heartbeat_ms = 100;
  return spec;
}

SessionOptions OptionsFor(const FakeDaemon& daemon, int rank) {
  SessionOptions options;
  options.controller = daemon.endpoint();
  options.job = "job";
  options.rank = rank;
  return options;
}

FakeDaemon::FakeDaemon(JobSpec spec) : spec_(std::move(spec)) {
  endpoint_ = "tcp://127.0.0.1:*";
  Start();
}

FakeDaemon::~FakeDaemon() { Stop(); }

void FakeDaemon::MakePump() {
  const auto catalog = [this](const std::string& name) -> Result<JobSpec> {
    if (name == "unknown") return Status(Code::kNotFound, "no pattern matches unknown");
    JobSpec spec = spec_;
    spec.name = name;
    return spec;
  };
  controller_ = std::unique_ptr<Controller>(new Controller(
      {.random = [device = std::make_shared<std::random_device>()] { return (*device)(); }},
      catalog, this, this));
  std::map<RunId, std::vector<Record>> runs;
  for (const Record& record : records_) runs[record.run].push_back(record);
  for (const auto& [run, records] : runs) {
    JobSpec spec = spec_;
    spec.name = std::get<RunStarted>(records.front().body).job;
    StoredRun stored(run, spec);
    Status status = stored.Add(records);
    if (status.ok()) status = controller_->Restore(Now(), std::move(stored));
    if (!status.ok()) std::fprintf(stderr, "restore: %s\n", status.ToString().c_str());
    PRD_CHECK(status.ok());
  }
}

void FakeDaemon::Start() {
  MakePump();
  routes_.clear();
  router_ = zmq::socket_t(context_, zmq::socket_type::router);
  router_.set(zmq::sockopt::linger, 0);
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  for (;;) {  // the socket before gives its port back a little after its close
    if (zmq_bind(router_.handle(), endpoint_.c_str()) == 0) break;
    PRD_CHECK(zmq_errno() == EADDRINUSE && Clock::now() < deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // Later the same, and workers' threads may be reading it.
  if (endpoint_.back() == '*') endpoint_ = router_.get(zmq::sockopt::last_endpoint);
  stop_ = false;
  thread_ = std::thread([this] { Run(); });
}

void FakeDaemon::Stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void FakeDaemon::Restart() {
  Stop();
  router_.close();
  Start();
}

void FakeDaemon::Run() {
  while (!stop_) {
    zmq::pollitem_t item{router_.handle(), 0, ZMQ_POLLIN, 0};
    zmq::poll(&item, 1, std::chrono::milliseconds(5));
    ReceiveAll();
    Age();
    controller_->Tick(Now());
    PRD_CHECK(controller_->Flush().ok());
  }
}

void FakeDaemon::ReceiveAll() {
  zmq::message_t route;
  while (router_.recv(route, zmq::recv_flags::dontwait)) {
    zmq::message_t body;
    (void)router_.recv(body);
    const Result<WorkerEnvelope> envelope = DecodeWorkerEnvelope(body.to_string_view());
    PRD_CHECK(envelope.ok());
    if (envelope->rank != kNoRank) {
      if (envelope->rank == lost_) continue;
      here_.insert(envelope->rank);
      heard_.insert(envelope->rank);
    }
    routes_[envelope->incarnation] = route.to_string();
    controller_->Receive(Now(), 0, *envelope);
  }
}

Instant FakeDaemon::Now() const {
  return {Clock::now().time_since_epoch() / std::chrono::nanoseconds(1) + ahead_ns_};
}

void FakeDaemon::Age() {
  if (lost_ == kNoRank || !here_.contains(lost_)) return;
  for (const Rank rank : here_) {
    if (rank != lost_ && !heard_.contains(rank)) return;
  }
  ahead_ns_ += spec_.lease_ms * std::int64_t{1'000'000} / 4;
  heard_.clear();
}

bool FakeDaemon::Lose(Rank rank) {
  lost_ = rank;
  return WaitFor([rank](const Record& record) {
    const auto* left = std::get_if<WorkerLeft>(&record.body);
    return left != nullptr && left->rank == rank;
  });
}

void FakeDaemon::Send(const ControllerEnvelope& envelope) {
  const std::string& route = routes_[envelope.incarnation];
  if (route.empty()) return;
  const std::string bytes = Encode(envelope);
  router_.send(zmq::buffer(route), zmq::send_flags::sndmore);
  router_.send(zmq::buffer(bytes), zmq::send_flags::none);
}

Status FakeDaemon::Append(std::span<const Record> records) {
  const std::lock_guard lock(mutex_);
  records_.insert(records_.end(), records.begin(), records.end());
  for (const Record& record : records) {
    if (const auto* left = std::get_if<WorkerLeft>(&record.body)) here_.erase(left->rank);
  }
  return Status::Ok();
}

std::vector<Record> FakeDaemon::records() const {
  const std::lock_guard lock(mutex_);
  return records_;
}

bool FakeDaemon::WaitFor(const std::function<bool(const Record&)>& satisfies) const {
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  while (Clock::now() < deadline) {
    const std::vector<Record> all = records();
    if (std::any_of(all.begin(), all.end(), satisfies)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

}  // namespace prd::testing
