// Bounds how fast a process accepts TCP connections on sockets that somebody else accepts them
// from.
//
// So many per second on average, and four seconds' worth at once. While more come, the kernel drops
// the first packets of those sources that have made most connections lately (syn_filter.h), and of
// all sources while that is not enough. Whoever is dropped tries again by itself. Who makes few
// connections gets in as ever, unless there are more than kMaxSynSources such sources. Not thread
// safe; takes the time from its caller.
#ifndef PRD_COMMON_IO_ARRIVAL_LIMIT_H_
#define PRD_COMMON_IO_ARRIVAL_LIMIT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace prd {

class ArrivalLimit {
 public:
  // 0: no bound.
  explicit ArrivalLimit(std::size_t per_s);
  ~ArrivalLimit();  // drops nothing any more
  ArrivalLimit(const ArrivalLimit&) = delete;
  ArrivalLimit& operator=(const ArrivalLimit&) = delete;

  // A socket that listens. Others than those of TCP are left as they are.
  void Watch(int listener);
  // A connection from this source (named as in syn_filter.h) was accepted. Where it came from is
  // not known of one that is closed already: another name, for which all sources wait.
  void Arrived(std::int64_t now_ns, const std::string& source);
  // To be called often while dropping.
  void Tick(std::int64_t now_ns);

  bool dropping() const { return dropping_; }

 private:
  void Pass(std::int64_t now_ns);
  bool TooFast() const;
  void Drop();

  const double per_s_;
  const double most_;
  double left_;
  std::int64_t at_ns_ = 0;
  std::int64_t halve_at_ns_ = 0;
  std::int64_t drop_at_ns_ = 0;           // looks again whom to drop
  std::map<std::string, double> lately_;  // connections of a source; halved every ten seconds
  std::vector<int> listeners_;            // copies
  bool dropping_ = false;
  bool all_ = false;
};

}  // namespace prd

#endif  // PRD_COMMON_IO_ARRIVAL_LIMIT_H_
