#include "worker/mesh/reduction.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "common/base/check.h"

namespace prd {
namespace {

// Shards begin at cache lines of the row, and so never inside an element.
constexpr std::size_t kShardAlign = 64;

std::byte* Bytes(zmq::message_t* message) { return static_cast<std::byte*>(message->data()); }

}  // namespace

Reduction::Reduction(const Layout* row, Options options)
    : row_(row), options_(std::move(options)), members_(options_.weights.size()) {
  PRD_CHECK(options_.position < members_ && options_.chunk_bytes >= 8 &&
            options_.chunk_bytes % 8 == 0);
  std::vector<double> shares = options_.weights;
  shares.push_back(options_.initial_weight);
  weights_ = RoundWeights(shares);
  direct_ = row_->bytes() <= options_.direct_bytes;
  if (members_ == 1 || row_->bytes() == 0) return;
  if (direct_) {
    own_count_ = members_ - 1;
    missing_ = members_ - 1;
    contributions_.resize(members_);
    return;
  }
  const std::size_t even = (row_->bytes() + members_ - 1) / members_;
  shard_bytes_ = (even + kShardAlign - 1) / kShardAlign * kShardAlign;
  own_count_ = ChunksOf(ShardAt(options_.position));
  received_.resize(2 * members_ - 2);
  for (std::size_t stage = 0; stage < received_.size(); ++stage) {
    const std::size_t shard = (options_.position + 2 * members_ - 1 - stage) % members_;
    received_[stage].resize(ChunksOf(ShardAt(shard)));
    missing_ += received_[stage].size();
  }
}

Reduction::Shard Reduction::ShardAt(std::size_t index) const {
  return {std::min(index * shard_bytes_, row_->bytes()),
          std::min((index + 1) * shard_bytes_, row_->bytes())};
}

std::size_t Reduction::ChunksOf(Shard shard) const {
  return (shard.end - shard.begin + options_.chunk_bytes - 1) / options_.chunk_bytes;
}

bool Reduction::Complete() const { return missing_ == 0 && own_next_ == own_count_; }

std::optional<Reduction::Outgoing> Reduction::NextOwn() {
  if (own_next_ == own_count_) return std::nullopt;
  Outgoing out;
  if (direct_) {
    if (own_next_ == 0) {
      own_.rebuild(row_->bytes());
      row_->Read(0, row_->bytes(), Bytes(&own_));
    }
    out.to = (options_.position + 1 + own_next_++) % members_;
    out.header = {.kind = FrameKind::kDirect, .length = row_->bytes()};
    out.payload.copy(own_);
    return out;
  }
  const Shard shard = ShardAt(options_.position);
  const std::size_t offset = shard.begin + own_next_ * options_.chunk_bytes;
  const std::size_t length = std::min(options_.chunk_bytes, shard.end - offset);
  out.to = (options_.position + 1) % members_;
  out.header = {.kind = FrameKind::kRing,
                .chunk = static_cast<std::uint32_t>(own_next_++),
                .offset = offset,
                .length = length};
  out.payload.rebuild(length);
  std::byte* to = Bytes(&out.payload);
  const Weight weight = weights_[options_.position];
  row_->ForEach(offset, length,
                [&](DType dtype, const std::byte* data, std::size_t run, std::size_t at) {
                  Scale(dtype, to + at, data, run, weight);
                });
  return out;
}

Status Reduction::OnFrame(std::size_t from, const FrameHeader& header, zmq::message_t payload,
                          std::vector<Outgoing>* out) {
  if (direct_ && header.kind == FrameKind::kDirect) {
    return OnDirect(from, header, std::move(payload));
  }
  if (!direct_ && header.kind == FrameKind::kRing && (from + 1) % members_ == options_.position) {
    return OnRing(header, std::move(payload), out);
  }
  return Status(Code::kDataLoss, "a frame that is not part of this reduction");
}

Status Reduction::OnDirect(std::size_t from, const FrameHeader& header, zmq::message_t payload) {
  if (header.length != row_->bytes() || from == options_.position || from >= members_ ||
      contributions_.empty() || contributions_[from].size() != 0) {
    return Status(Code::kDataLoss, "a direct frame of " + std::to_string(header.length) +
                                       " bytes where one of " + std::to_string(row_->bytes()) +
                                       " was expected, once");
  }
  contributions_[from] = std::move(payload);
  --missing_;
  return Status::Ok();
}

Status Reduction::OnRing(const FrameHeader& header, zmq::message_t payload,
                         std::vector<Outgoing>* out) {
  const std::size_t stage = header.stage;
  if (stage >= received_.size() || header.chunk >= received_[stage].size() ||
      received_[stage][header.chunk]) {
    return Status(Code::kDataLoss, "chunk " + std::to_string(header.chunk) + " of stage " +
                                       std::to_string(stage) + " is not expected (again)");
  }
  const Shard shard = ShardAt((options_.position + 2 * members_ - 1 - stage) % members_);
  const std::size_t offset = shard.begin + header.chunk * options_.chunk_bytes;
  const std::size_t length = std::min(options_.chunk_bytes, shard.end - offset);
  if (header.offset != offset || header.length != length) {
    return Status(Code::kDataLoss, "a chunk of " + std::to_string(header.length) + " bytes at " +
                                       std::to_string(header.offset) + " where " +
                                       std::to_string(length) + " at " + std::to_string(offset) +
                                       " were expected");
  }
  received_[stage][header.chunk] = true;
  --missing_;
  if (stage + 2 <= members_) {
    std::byte* acc = Bytes(&payload);
    const Weight weight = weights_[options_.position];
    row_->ForEach(offset, length,
                  [&](DType dtype, const std::byte* data, std::size_t run, std::size_t at) {
                    AddScaled(dtype, acc + at, data, run, weight);
                  });
  }
  const bool onwards = stage + 1 < received_.size();
  if (stage + 2 >= members_) std::memcpy(options_.staging + offset, payload.data(), length);
  if (onwards) {
    FrameHeader next = header;
    ++next.stage;
    out->push_back({(options_.position + 1) % members_, next, std::move(payload)});
  }
  return Status::Ok();
}

void Reduction::Commit() {
  PRD_CHECK(Complete());
  if (members_ == 1) return CommitAlone();
  if (direct_) return CommitDirect();
  row_->Write(0, row_->bytes(), options_.staging);
  AddInitial(0, row_->bytes());
}

void Reduction::CommitAlone() {
  row_->ForEach(0, row_->bytes(), [&](DType dtype, std::byte* data, std::size_t run, std::size_t) {
    Scale(dtype, data, data, run, weights_[0]);
  });
  AddInitial(0, row_->bytes());
}

void Reduction::CommitDirect() {
  if (row_->bytes() == 0) return;
  contributions_[options_.position] = std::move(own_);
  std::byte* sum = options_.staging;
  for (std::size_t position = 0; position < members_; ++position) {
    const std::byte* part = Bytes(&contributions_[position]);
    const Weight weight = weights_[position];
    row_->ForEach(0, row_->bytes(), [&](DType dtype, std::byte*, std::size_t run, std::size_t at) {
      if (position == 0) {
        Scale(dtype, sum + at, part + at, run, weight);
      } else {
        AddScaled(dtype, sum + at, part + at, run, weight);
      }
    });
  }
  row_->Write(0, row_->bytes(), sum);
  AddInitial(0, row_->bytes());
}

void Reduction::AddInitial(std::size_t offset, std::size_t length) {
  if (options_.initial_weight == 0) return;
  row_->ForEach(offset, length, [&](DType dtype, std::byte* data, std::size_t run, std::size_t at) {
    AddScaled(dtype, data, options_.initial + offset + at, run, weights_.back());
  });
}

}  // namespace prd
