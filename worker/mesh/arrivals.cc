#include "worker/mesh/arrivals.h"

#include <algorithm>

namespace prd {

bool Arrivals::Misses(const FrameHeader& header) const {
  const auto streams = streams_.find(header.from);
  if (streams == streams_.end()) return header.number > 1;
  const auto& known = streams->second;
  const auto stream = known.find(header.stream);
  if (stream != known.end()) return header.number > stream->second.newest + 1;
  const bool forgotten = known.size() == kStreams && header.stream < known.begin()->first;
  return header.number > 1 && !forgotten;
}

bool Arrivals::Take(Instant now, const FrameHeader& header) {
  std::map<std::uint64_t, Stream>& streams = streams_[header.from];
  streams.try_emplace(header.stream);
  if (streams.size() > kStreams) streams.erase(streams.begin());
  const auto at = streams.find(header.stream);
  if (at == streams.end()) return true;
  Stream& stream = at->second;
  const bool fresh = header.number > stream.newest;
  stream.newest = std::max(stream.newest, header.number);
  // Also of one that came before: its sender does not know that.
  stream.bytes += header.length;
  stream.owes = true;
  much_ = much_ || stream.bytes >= kTellBytes;
  if (!tell_at_) tell_at_ = now + kTellAfter;
  return fresh;
}

std::vector<Arrivals::Acknowledgement> Arrivals::TakeDue(Instant now) {
  std::vector<Acknowledgement> due;
  const bool all = tell_at_ && *tell_at_ <= now;
  if (!all && !much_) return due;
  for (auto& [from, streams] : streams_) {
    for (auto& [id, stream] : streams) {
      if (!stream.owes || (!all && stream.bytes < kTellBytes)) continue;
      due.push_back({from, id, stream.newest});
      stream.owes = false;
      stream.bytes = 0;
    }
  }
  much_ = false;
  if (all) tell_at_.reset();
  return due;
}

void Arrivals::Clear() {
  streams_.clear();
  tell_at_.reset();
  much_ = false;
}

}  // namespace prd
