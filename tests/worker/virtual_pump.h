// The controller of a walk: the real pump on a network that loses, doubles and delays messages, in
// virtual time. What it has written down survives its restarts.
#ifndef PRD_TESTS_WORKER_VIRTUAL_PUMP_H_
#define PRD_TESTS_WORKER_VIRTUAL_PUMP_H_

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "common/base/prng.h"
#include "engines/pump.h"
#include "tools/sim/mutation.h"
#include "worker/core/session_core.h"

namespace prd {

class VirtualPump : private History, private Transport {
 public:
  const std::vector<Record>& records() const { return records_; }
  // Of what happened when.
  std::uint64_t HistoryHash() const {
    std::uint64_t hash = 1;
    for (const Record& record : records_) {
      hash = HashBytes(std::to_string(record.now.ns) + "," + std::to_string(record.body.index()),
                       hash);
    }
    return hash;
  }

 protected:
  struct Network {
    double loss = 0;  // of a message
    double duplicate = 0;
    DurationNs until = 0;  // these and all other faults happen
  };

  VirtualPump(std::uint64_t seed, EngineOptions engine, int workers, Network network,
              sim::Mutation mutation = sim::Mutation::kNone)
      : random_(seed), mutation_(mutation), network_(network) {
    spec_.engine = std::move(engine);
    spec_.workers = workers;
    spec_.lease_ms = 2000;
    spec_.heartbeat_ms = 200;
    spec_.make_engine = [mutation, workers](const EngineOptions& options) {
      return sim::MakeMutant(options, mutation, workers);
    };
    RestartController();
  }

  // A message of the controller: as it leaves, and as it comes to the worker that it is for.
  virtual void Leaves(const ControllerEnvelope&) {}
  virtual void Arrives(const ControllerEnvelope& envelope) = 0;
  virtual void Seen(const Record&) {}  // it is durable now
  virtual DurationNs Delay() {
    return 1 + static_cast<DurationNs>(random_.Below(3 * kMillisecond));
  }

  void At(DurationNs after, std::function<void()> run) {
    events_.push({now_ + after, ++order_, std::move(run)});
  }
  bool Chance(double p) { return now_.ns < network_.until && p > 0 && random_.Unit() < p; }
  // False: `done` was not true after ten virtual minutes.
  bool RunUntil(const std::function<bool()>& done) {
    while (!events_.empty() && now_.ns < 600 * kSecond && !testing::Test::HasFatalFailure()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      event.run();
      if (done()) return true;
    }
    return false;
  }

  // Also its start.
  void RestartController() {
    const auto catalog = [this](const std::string& name) -> Result<JobSpec> {
      JobSpec spec = spec_;
      spec.name = name;
      return spec;
    };
    front_ = sim::MakeMutantHistory(mutation_, this);
    History* const history = front_ != nullptr ? front_.get() : this;
    pump_.reset(new Pump(Pump::Options{}, catalog, history, this));
    std::map<RunId, std::vector<Record>> runs;
    for (const Record& record : records_) runs[record.run].push_back(record);
    for (const auto& [run, records] : runs) {
      JobSpec spec = spec_;
      spec.name = "job";
      const Status status = pump_->Restore(now_, run, spec, {}, 0, records);
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
  }
  void TickController() {
    pump_->Tick(now_);
    EXPECT_TRUE(pump_->Flush().ok());
  }
  void ToController(const WorkerEnvelope& envelope) {
    if (Chance(network_.loss)) return;
    for (int copies = Chance(network_.duplicate) ? 2 : 1; copies > 0; --copies) {
      At(Delay(), [this, envelope] {
        if (sim::Swallows(mutation_, envelope)) return;
        pump_->Receive(now_, 0, envelope);
        EXPECT_TRUE(pump_->Flush().ok());
      });
    }
  }
  // What the controller thinks of a rank, a line per run.
  std::string Explain(Rank rank) const {
    std::string text;
    for (const auto& [run, job] : pump_->jobs()) text += " / " + job->Explain(now_, rank) + "\n";
    return text;
  }
  static SessionCore::Options OptionsOf(Rank rank) {
    SessionCore::Options options;
    options.patience = 20 * kSecond;
    options.hello.job = "job";
    options.hello.rank = rank;
    options.hello.host = "host";
    options.hello.endpoints = {"ipc://x"};
    options.hello.model_hash = 1;
    return options;
  }

  Prng random_;
  Instant now_;
  const sim::Mutation mutation_;

 private:
  struct Event {
    Instant at;
    std::uint64_t order;
    std::function<void()> run;
    bool operator<(const Event& other) const {
      return std::pair(other.at.ns, other.order) < std::pair(at.ns, order);
    }
  };

  Status Append(std::span<const Record> records) override {
    for (const Record& record : records) Seen(record);
    records_.insert(records_.end(), records.begin(), records.end());
    return Status::Ok();
  }
  Status SaveSnapshot(RunId, std::uint64_t, std::string_view) override { return Status::Ok(); }
  void Send(const ControllerEnvelope& original) override {
    const ControllerEnvelope envelope = sim::Twisted(mutation_, original).value_or(original);
    Leaves(envelope);
    if (Chance(network_.loss)) return;
    for (int copies = Chance(network_.duplicate) ? 2 : 1; copies > 0; --copies) {
      At(Delay(), [this, envelope] { Arrives(envelope); });
    }
  }

  const Network network_;
  JobSpec spec_;
  std::priority_queue<Event> events_;
  std::uint64_t order_ = 0;
  std::vector<Record> records_;
  std::unique_ptr<History> front_;  // between the pump and the records, with a bug
  std::unique_ptr<Pump> pump_;
};

}  // namespace prd

#endif  // PRD_TESTS_WORKER_VIRTUAL_PUMP_H_
