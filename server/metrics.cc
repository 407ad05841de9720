#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <exception>
#include <map>

namespace prd {
namespace {

// What is not told by its name.
const char* HelpOf(const std::string& counter) {
  static const std::map<std::string, const char*> help = {
      {"rounds_formed", "Rounds of gradients in which all workers of a job take part"},
      {"round_contributors", "Workers that gave gradients to a round, summed over the rounds"},
      {"updates_dropped", "Updates of workers that came too late and were not used"},
      {"iterations_granted", "Answers that let a worker go on to its next iteration (hop, ssp)"},
      {"iterations_skipped", "Iterations that workers skipped (hop)"},
      {"graph_changes", "Times that a worker was told its neighbours (hop)"},
      {"placements_opened", "Placements of shards that were complete and opened (ssp)"},
      {"queries_ready", "State queries of workers answered: come to the round"},
      {"queries_not_ready", "State queries of workers answered: train on"},
      {"results_fetched", "Orders to take a failed round's result from a peer that has it"},
      {"histories_lost",
       "Runs that ended because a worker knew of messages that their history had lost"},
      {"connections_denied", "Connections that were refused: an unknown key or user"},
      {"messages_forbidden", "Messages of workers that may not, or are over a quota"},
      {"messages_over_quota", "Messages of workers whose identity is over a quota"},
      {"messages_foreign", "Messages in the name of another worker"},
      {"gradients_lost", "Gradients in no round yet when their worker went"}};
  const auto found = help.find(counter);
  return found == help.end() ? "Since the daemon started" : found->second;
}

}  // namespace

// A family whose values are those of the jobs that run.
template <typename T>
struct ByJob {
  prometheus::Family<T>* family = nullptr;
  std::map<std::string, T*> of;

  template <typename Jobs>
  void Keep(const Jobs& jobs) {
    std::erase_if(of, [&](const auto& entry) {
      if (jobs.contains(entry.first)) return false;
      family->Remove(entry.second);
      return true;
    });
  }
  T& At(const std::string& job) {
    T*& value = of[job];
    if (value == nullptr) value = &family->Add({{"job", job}});
    return *value;
  }
  void Forget(const std::string& job) {
    family->Remove(of.at(job));
    of.erase(job);
  }
};

struct Metrics::Impl {
  explicit Impl(const std::string& address)
      : exposer(address, 1), registry(std::make_shared<prometheus::Registry>()) {}

  // Counters in the library only go up by steps.
  static void Raise(prometheus::Counter& counter, std::uint64_t to) {
    const double step = static_cast<double>(to) - counter.Value();
    if (step > 0) counter.Increment(step);
  }

  prometheus::Exposer exposer;
  std::shared_ptr<prometheus::Registry> registry;
  std::map<std::string, prometheus::Counter*> counters;
  std::map<std::string, prometheus::Gauge*> gauges;
  prometheus::Family<prometheus::Counter>* groups = nullptr;
  ByJob<prometheus::Gauge> links;
  ByJob<prometheus::Gauge> differ;
  ByJob<prometheus::Counter> nonfinite;
  prometheus::Histogram* flush = nullptr;
};

Metrics::Metrics(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Metrics::~Metrics() = default;

Result<std::unique_ptr<Metrics>> Metrics::Serve(const std::string& address) {
  try {
    auto impl = std::make_unique<Impl>(address);
    impl->groups = &prometheus::BuildCounter()
                        .Name("prd_groups_formed_total")
                        .Help("Groups announced, by engine")
                        .Register(*impl->registry);
    impl->links.family = &prometheus::BuildGauge()
                              .Name("prd_links_broken")
                              .Help("Pairs of a job's workers that do not reach each other")
                              .Register(*impl->registry);
    impl->differ.family =
        &prometheus::BuildGauge()
             .Name("prd_replicas_differ")
             .Help(
                 "Workers of a job whose parameters are not those of most, where all are to be "
                 "equal")
             .Register(*impl->registry);
    impl->nonfinite.family = &prometheus::BuildCounter()
                                  .Name("prd_nonfinite_steps_total")
                                  .Help("Steps of a job's run with values that are not finite")
                                  .Register(*impl->registry);
    impl->flush = &prometheus::BuildHistogram()
                       .Name("prd_flush_seconds")
                       .Help("Recording and sending what one turn of the controller decided")
                       .Register(*impl->registry)
                       .Add({}, prometheus::Histogram::BucketBoundaries{
                                    1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1});
    impl->exposer.RegisterCollectable(impl->registry);
    return std::unique_ptr<Metrics>(new Metrics(std::move(impl)));
  } catch (const std::exception& error) {
    const bool ipv6 = address.find('[') != std::string::npos;
    return Status(Code::kUnavailable,
                  "metrics = \"" + address + "\": " + error.what() +
                      (ipv6 ? " The HTTP library (civetweb) may have been built without IPv6, as "
                              "Debian 12's is: then give an IPv4 address."
                            : ""));
  }
}

void Metrics::SetCounters(const std::vector<std::pair<std::string, std::uint64_t>>& counters) {
  for (const auto& [name, value] : counters) {
    prometheus::Counter*& counter = impl_->counters[name];
    if (counter == nullptr) {
      counter = &prometheus::BuildCounter()
                     .Name("prd_" + name + "_total")
                     .Help(HelpOf(name))
                     .Register(*impl_->registry)
                     .Add({});
    }
    Impl::Raise(*counter, value);
  }
}

void Metrics::SetGroups(const std::string& engine, std::uint64_t formed) {
  Impl::Raise(impl_->groups->Add({{"engine", engine}}), formed);
}

void Metrics::SetJobs(const std::map<std::string, OfJob>& jobs) {
  impl_->links.Keep(jobs);
  impl_->differ.Keep(jobs);
  impl_->nonfinite.Keep(jobs);
  for (const auto& [job, of] : jobs) {
    impl_->links.At(job).Set(static_cast<double>(of.links_broken));
    impl_->differ.At(job).Set(static_cast<double>(of.replicas_differ));
    // Another run of the job counts from 0.
    const bool fewer = static_cast<double>(of.nonfinite_steps) < impl_->nonfinite.At(job).Value();
    if (fewer) impl_->nonfinite.Forget(job);
    Impl::Raise(impl_->nonfinite.At(job), of.nonfinite_steps);
  }
}

void Metrics::SetGauge(const std::string& name, double value) {
  prometheus::Gauge*& gauge = impl_->gauges[name];
  if (gauge == nullptr) {
    gauge = &prometheus::BuildGauge()
                 .Name("prd_" + name)
                 .Help("Now")
                 .Register(*impl_->registry)
                 .Add({});
  }
  gauge->Set(value);
}

void Metrics::ObserveFlush(DurationNs took) {
  impl_->flush->Observe(static_cast<double>(took) / static_cast<double>(kSecond));
}

}  // namespace prd
