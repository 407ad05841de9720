// What Prometheus and probes ask for: /metrics, /healthz and /readyz at http://ADDRESS:PORT. The
// daemon's thread publishes a page now and then; a thread of its own serves the newest one
// (common/io/http_server.h), and answers probes also while others keep connections busy.
#ifndef PRD_SERVER_METRICS_H_
#define PRD_SERVER_METRICS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/time.h"
#include "prd/status.h"

namespace prd {

// How many observations were below which bound.
class Distribution {
 public:
  // `bounds` ascend, and live as long as this.
  explicit Distribution(const std::vector<double>& bounds)
      : bounds_(&bounds), counts_(bounds.size() + 1) {}
  void Observe(double value);

  const std::vector<double>& bounds() const { return *bounds_; }
  // By bound, the last one for what is above all; not cumulative.
  const std::vector<std::uint64_t>& counts() const { return counts_; }
  double sum() const { return sum_; }

 private:
  const std::vector<double>* bounds_;
  std::vector<std::uint64_t> counts_;
  double sum_ = 0;
};

// What is served at one time. Every metric that there may be is on it with its help, also without a
// sample.
class MetricsPage {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  MetricsPage();
  ~MetricsPage();
  MetricsPage(MetricsPage&&) noexcept;
  MetricsPage& operator=(MetricsPage&&) noexcept;

  // `name` without "prd_". REQUIRES: metrics.cc knows the name and says what it is.
  void Add(const std::string& name, const Labels& labels, double value);
  void Add(const std::string& name, const Labels& labels, const Distribution& distribution);
  // Since the daemon started; `name` also without "_total". It need not be known.
  void AddCounter(const std::string& name, std::uint64_t value);

  // In the format that Prometheus reads.
  std::string Text() const;

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

class Metrics {
 public:
  // The daemon wakes each minute.
  static constexpr DurationNs kDeadAfter = 90 * kSecond;

  static Result<std::unique_ptr<Metrics>> Serve(const std::string& address,
                                                DurationNs dead_after = kDeadAfter);
  ~Metrics();

  void Publish(MetricsPage page);
  // /readyz: why the daemon does not take workers' messages; empty: it does.
  void SetUnready(const std::string& why);
  // /healthz: the daemon's thread works. It is to say so again within dead_after.
  void Alive();

 private:
  struct Impl;
  explicit Metrics(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace prd

#endif  // PRD_SERVER_METRICS_H_
