#include "worker/mesh/reduction.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "common/base/check.h"

namespace prd {
namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kMaxCells = 64;  // of a chunk: FrameHeader::done has so many bits

// A multiple of 8, of which chunks of a row are multiples; at most kMaxCells are in one.
std::size_t CellBytes(std::size_t row_bytes, std::size_t chunk_bytes) {
  while (chunk_bytes / 2 >= row_bytes && chunk_bytes % 16 == 0) chunk_bytes /= 2;
  std::size_t cells = kMaxCells;
  while (chunk_bytes % (8 * cells) != 0) --cells;
  return chunk_bytes / cells;
}

}  // namespace

Reduction::Reduction(const Layout* row, Options options)
    : row_(row), options_(std::move(options)), members_(options_.weights.size()) {
  PRD_CHECK(options_.position < members_ && options_.chunk_bytes >= 8 &&
            options_.chunk_bytes % 8 == 0);
  std::vector<double> shares = options_.weights;
  shares.push_back(options_.initial_weight);
  weights_ = RoundWeights(shares);
  ring_.resize(members_);
  std::iota(ring_.begin(), ring_.end(), 0);
  const auto nulls = std::stable_partition(ring_.begin(), ring_.end(), [&](std::size_t position) {
    return options_.weights[position] != 0;
  });
  contributors_ = static_cast<std::size_t>(nulls - ring_.begin());
  if (options_.ring_only && contributors_ > 0) {
    std::iota(ring_.begin(), ring_.end(), 0);
    contributors_ = members_;
  }
  place_ = PlaceOf(options_.position);
  if (row_->bytes() <= options_.direct_bytes && !options_.ring_only) {
    way_ = members_ <= kDirectMembers ? Way::kDirect : Way::kTree;
    options_.done = nullptr;
  }
  if (row_->bytes() == 0) return;
  cell_bytes_ = CellBytes(row_->bytes(), options_.chunk_bytes);
  if (options_.done != nullptr) options_.done->resize(CellsIn(row_->bytes()));
  if (alone()) {
    own_count_ = 1;
    return;
  }
  if (way_ == Way::kDirect) {
    own_count_ = contributes() ? members_ - 1 : 0;
    missing_ = contributors_ - (contributes() ? 1 : 0);
    contributions_.resize(members_);
    return;
  }
  if (way_ == Way::kTree) {
    const Shard children = ChildrenBelow(contributors_);
    own_count_ = contributes() ? 1 : 0;
    missing_ = children.end - children.begin + (place_ == 0 ? 0 : 1);
    contributions_.resize(members_);
    return;
  }
  // Shards begin at cells of the row, and so never inside an element.
  const std::size_t even = (row_->bytes() + contributors_ - 1) / contributors_;
  const std::size_t align = (kCacheLine + cell_bytes_ - 1) / cell_bytes_ * cell_bytes_;
  shard_bytes_ = (even + align - 1) / align * align;
  own_count_ = contributes() ? ChunksOf(ShardAt(place_)) : 0;
  received_.resize(contributors_ + members_ - 2);
  for (std::size_t stage = 0; stage < received_.size(); ++stage) {
    const std::optional<std::size_t> shard = ReceivedAt(stage);
    if (!shard) continue;
    received_[stage].resize(ChunksOf(ShardAt(*shard)));
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

// The shard whose chunks come at this stage.
std::optional<std::size_t> Reduction::ReceivedAt(std::size_t stage) const {
  if (Sums(stage)) {
    if (!contributes()) return std::nullopt;
    return (place_ + contributors_ - 1 - stage) % contributors_;
  }
  const std::size_t hop = stage + 1 - contributors_;
  const std::size_t final_at = (place_ + members_ - 1 - hop) % members_;
  if (final_at >= contributors_) return std::nullopt;
  return (final_at + 1) % contributors_;
}

// The position that this stage's chunks come from.
std::size_t Reduction::Before(std::size_t stage) const {
  const std::size_t around = Sums(stage) ? contributors_ : members_;
  return ring_[(place_ + around - 1) % around];
}

// The position that this stage's chunks go to.
std::size_t Reduction::After(std::size_t stage) const {
  return ring_[(place_ + 1) % (Sums(stage) ? contributors_ : members_)];
}

bool Reduction::Needs(std::size_t position) const {
  if (position == options_.position || alone() || row_->bytes() == 0) return false;
  if (way_ == Way::kDirect) return contributes() || options_.weights[position] != 0;
  if (way_ == Way::kTree) {
    const std::size_t other = PlaceOf(position);
    return ParentOf(place_) == other || ParentOf(other) == place_;
  }
  const std::size_t passing = contributors_ - 1;  // any stage that does not sum
  if (position == After(passing) || (contributes() && position == After(0))) return true;
  // The member before the lost one looks out for it, too, but a contributor may be through when
  // nulls are still passing the result on.
  return position == Before(passing) && !(contributes() && PlaceOf(position) < contributors_);
}

bool Reduction::AwaitsChunks(std::size_t position) const {
  for (std::size_t stage = 0; stage < received_.size(); ++stage) {
    const std::vector<bool>& chunks = received_[stage];
    if (!chunks.empty() && Before(stage) == position &&
        std::find(chunks.begin(), chunks.end(), false) != chunks.end()) {
      return true;
    }
  }
  return false;
}

bool Reduction::Awaits(std::size_t position) const {
  if (position == options_.position || alone() || row_->bytes() == 0) return false;
  if (way_ == Way::kRing) return OwnTo() == position || AwaitsChunks(position);
  if (way_ == Way::kDirect) {
    return options_.weights[position] != 0 && contributions_[position].size() == 0;
  }
  const std::size_t place = PlaceOf(position);
  const Shard children = ChildrenBelow(contributors_);
  const bool child = place >= children.begin && place < children.end;
  const bool parent = place_ != 0 && place == ParentOf(place_);
  return (child || parent) && contributions_[place].size() == 0;
}

std::optional<std::size_t> Reduction::OwnTo() const {
  if (way_ != Way::kRing || alone() || own_next_ == own_count_) return std::nullopt;
  return After(0);
}

bool Reduction::Complete() const {
  return missing_ == 0 && own_next_ == own_count_ && ready_.empty();
}

std::optional<Reduction::Outgoing> Reduction::NextOwn() {
  if (own_next_ < own_count_) {
    if (alone()) {
      ReduceAlone();
      ++own_next_;
      return std::nullopt;
    }
    if (way_ == Way::kRing) return NextRing();
    if (way_ == Way::kDirect) {
      Outgoing out = NextDirect();
      if (Complete()) SumDirect();
      return out;
    }
    TakeOwn();
  }
  if (ready_.empty()) return std::nullopt;
  Outgoing out = std::move(ready_.back());
  ready_.pop_back();
  return out;
}

// Tree: the member's own weighted part, to which those of its children are added.
void Reduction::TakeOwn() {
  ++own_next_;
  own_ = SharedBytes(row_->bytes());
  std::byte* to = own_.data();
  const Weight weight = weights_[options_.position];
  row_->ForEach(0, row_->bytes(),
                [&](DType dtype, const std::byte* data, std::size_t run, std::size_t at) {
                  Scale(dtype, to + at, data, run, weight);
                });
  SendUpIfSummed(&ready_);
}

Reduction::Outgoing Reduction::NextDirect() {
  if (own_next_ == 0) {
    own_ = SharedBytes(row_->bytes());
    row_->Read(0, row_->bytes(), own_.data());
  }
  Outgoing out;
  out.to = (options_.position + 1 + own_next_++) % members_;
  out.header = {.kind = FrameKind::kDirect, .length = row_->bytes()};
  out.payload = own_;
  return out;
}

Reduction::Outgoing Reduction::NextRing() {
  const Shard shard = ShardAt(place_);
  const std::size_t offset = shard.begin + own_next_ * options_.chunk_bytes;
  const std::size_t length = std::min(options_.chunk_bytes, shard.end - offset);
  Outgoing out;
  out.to = After(0);
  out.header = {.kind = FrameKind::kRing,
                .chunk = static_cast<std::uint32_t>(own_next_++),
                .offset = offset,
                .length = length};
  out.payload = SharedBytes(length);
  out.header.done = AddOwn(offset, length, out.payload.data(), true, 0);
  if (contributors_ == 1) {
    Keep(offset, length, out.payload, out.header.done);
    OmitZeros(&out.payload);
    out.header.length = out.payload.size();
    if (!options_.settles) out.header.done = 0;
  }
  return out;
}

// The cells of a chunk that are the result here, as FrameHeader::done.
std::uint64_t Reduction::DoneIn(std::size_t offset, std::size_t length) const {
  std::uint64_t done = 0;
  if (options_.done == nullptr) return done;
  for (std::size_t i = 0; i < CellsIn(length); ++i) {
    if ((*options_.done)[offset / cell_bytes_ + i]) done |= std::uint64_t{1} << i;
  }
  return done;
}

// What this member has of a run of the row, unweighted. Until the next call.
const std::byte* Reduction::OwnPart(DType dtype, const std::byte* data, std::size_t offset,
                                    std::size_t run) {
  if (options_.base == nullptr) return data;
  scratch_.resize(std::max(scratch_.size(), run));
  std::memcpy(scratch_.data(), data, run);
  AddScaled(dtype, scratch_.data(), options_.base + offset, run, {-1, -1});
  return scratch_.data();
}

// This member's weighted part of what stands at `offset` in the row.
void Reduction::AddPart(std::size_t offset, std::size_t length, std::byte* sum, bool first) {
  if (!adds() && first) std::memset(sum, 0, length);
  if (!adds()) return;
  const Weight weight = weights_[options_.position];
  row_->ForEach(offset, length,
                [&](DType dtype, const std::byte* data, std::size_t run, std::size_t at) {
                  const std::byte* const part = OwnPart(dtype, data, offset + at, run);
                  (first ? Scale : AddScaled)(dtype, sum + at, part, run, weight);
                });
}

// The same of a chunk, of which some cells are the result already: in `sum`, as `done` says, or
// here. Returns which are now.
std::uint64_t Reduction::AddOwn(std::size_t offset, std::size_t length, std::byte* sum, bool first,
                                std::uint64_t done) {
  const std::uint64_t here = DoneIn(offset, length) & ~done;
  if ((here | done) == 0) {
    AddPart(offset, length, sum, first);
    return 0;
  }
  for (std::size_t i = 0; i < CellsIn(length); ++i) {
    const std::size_t at = i * cell_bytes_;
    const std::size_t bytes = std::min(cell_bytes_, length - at);
    if ((here >> i & 1) != 0) {
      row_->Read(offset + at, bytes, sum + at);
    } else if ((done >> i & 1) == 0) {
      AddPart(offset + at, bytes, sum + at, first);
    }
  }
  return here | done;
}

Status Reduction::OnFrame(std::size_t from, const FrameHeader& header, SharedBytes payload,
                          std::vector<Outgoing>* out) {
  if (way_ == Way::kDirect && header.kind == FrameKind::kDirect) {
    return OnDirect(from, header, std::move(payload));
  }
  if (way_ == Way::kRing && header.kind == FrameKind::kRing) {
    return OnRing(from, header, std::move(payload), out);
  }
  if (way_ == Way::kTree && header.kind == FrameKind::kTree) {
    return OnTree(from, header, std::move(payload), out);
  }
  return Status(Code::kDataLoss, "a frame that is not part of this reduction");
}

Status Reduction::OnDirect(std::size_t from, const FrameHeader& header, SharedBytes payload) {
  if (header.length != row_->bytes() || from == options_.position || from >= members_ ||
      contributions_.empty() || options_.weights[from] == 0 || contributions_[from].size() != 0) {
    return Status(Code::kDataLoss, "a direct frame of " + std::to_string(header.length) +
                                       " bytes where one of " + std::to_string(row_->bytes()) +
                                       " was expected, once, of a contributor");
  }
  contributions_[from] = std::move(payload);
  --missing_;
  if (Complete()) SumDirect();
  return Status::Ok();
}

std::size_t Reduction::PlaceOf(std::size_t position) const {
  return static_cast<std::size_t>(std::find(ring_.begin(), ring_.end(), position) - ring_.begin());
}

Reduction::Shard Reduction::ChildrenBelow(std::size_t limit) const {
  const std::size_t first = place_ * kTreeFanOut + 1;
  return {std::min(first, limit), std::min(first + kTreeFanOut, limit)};
}

Status Reduction::OnTree(std::size_t from, const FrameHeader& header, SharedBytes payload,
                         std::vector<Outgoing>* out) {
  const std::size_t place = PlaceOf(from);
  const Shard children = ChildrenBelow(contributors_);
  const bool up = header.stage == 0 && place >= children.begin && place < children.end;
  // A contributor's part is in every result.
  const bool down =
      header.stage == 1 && place_ != 0 && place == ParentOf(place_) && (summed_ || !contributes());
  if (alone() || !(up || down) || header.chunk != 0 || header.offset != 0 ||
      header.length != row_->bytes() || contributions_[place].size() != 0) {
    return Status(Code::kDataLoss, "a frame of " + std::to_string(header.length) +
                                       " bytes, stage " + std::to_string(header.stage) +
                                       ", is not expected in the tree (again)");
  }
  --missing_;
  if (up) {
    contributions_[place] = std::move(payload);
    SendUpIfSummed(out);
  } else {
    SendDown(payload, out);
    contributions_[place] = std::move(payload);
  }
  return Status::Ok();
}

void Reduction::SendUpIfSummed(std::vector<Outgoing>* out) {
  const Shard children = ChildrenBelow(contributors_);
  if (missing_ > (place_ == 0 ? 0u : 1u) || own_next_ < own_count_) return;
  std::byte* sum = own_.data();
  const Weight one{1, 1};
  for (std::size_t child = children.begin; child < children.end; ++child) {
    const std::byte* part = contributions_[child].data();
    row_->ForEach(0, row_->bytes(),
                  [&](DType dtype, const std::byte*, std::size_t run, std::size_t at) {
                    AddScaled(dtype, sum + at, part + at, run, one);
                  });
  }
  summed_ = true;
  if (place_ == 0) return SendDown(own_, out);
  Outgoing up;
  up.to = ring_[ParentOf(place_)];
  up.header = {.kind = FrameKind::kTree, .stage = 0, .length = row_->bytes()};
  up.payload = std::move(own_);
  out->push_back(std::move(up));
}

void Reduction::SendDown(const SharedBytes& sum, std::vector<Outgoing>* out) {
  Keep(0, sum.size(), sum, 0);
  const Shard children = ChildrenBelow(members_);
  for (std::size_t child = children.begin; child < children.end; ++child) {
    Outgoing down;
    down.to = ring_[child];
    down.header = {.kind = FrameKind::kTree, .stage = 1, .length = row_->bytes()};
    down.payload = sum;
    out->push_back(std::move(down));
  }
}

Status Reduction::OnRing(std::size_t from, const FrameHeader& header, SharedBytes payload,
                         std::vector<Outgoing>* out) {
  const std::size_t stage = header.stage;
  if (stage >= received_.size() || header.chunk >= received_[stage].size() ||
      received_[stage][header.chunk] || from != Before(stage)) {
    return Status(Code::kDataLoss, "chunk " + std::to_string(header.chunk) + " of stage " +
                                       std::to_string(stage) + " is not expected (again)");
  }
  const Shard shard = ShardAt(*ReceivedAt(stage));
  const std::size_t offset = shard.begin + header.chunk * options_.chunk_bytes;
  const std::size_t length = std::min(options_.chunk_bytes, shard.end - offset);
  const bool zeros = header.length == 0 && !Sums(stage);
  if (header.offset != offset || (header.length != length && !zeros)) {
    return Status(Code::kDataLoss, "a chunk of " + std::to_string(header.length) + " bytes at " +
                                       std::to_string(header.offset) + " where " +
                                       std::to_string(length) + " at " + std::to_string(offset) +
                                       " were expected");
  }
  const std::size_t cells = Sums(stage) || options_.settles ? CellsIn(length) : 0;
  if (cells < kMaxCells && header.done >> cells != 0) {
    return Status(Code::kDataLoss, "a chunk of stage " + std::to_string(stage) + " in which " +
                                       std::to_string(cells) +
                                       " cells may be done at most says that others are");
  }
  received_[stage][header.chunk] = true;
  --missing_;
  FrameHeader next = header;
  if (Sums(stage)) next.done = AddOwn(offset, length, payload.data(), false, header.done);
  if (!Sums(stage + 1)) Keep(offset, length, payload, next.done);
  if (Sums(stage) && !Sums(stage + 1)) OmitZeros(&payload);
  if (stage + 1 < received_.size()) {
    ++next.stage;
    if (!Sums(next.stage) && !options_.settles) next.done = 0;
    next.length = payload.size();
    out->push_back({After(next.stage), next, std::move(payload)});
  }
  return Status::Ok();
}

void Reduction::ReduceAlone() {
  if (options_.into == Into::kNowhere) return;
  const std::size_t bytes = row_->bytes();
  for (std::size_t offset = 0; offset < bytes; offset += options_.chunk_bytes) {
    SharedBytes chunk(std::min(options_.chunk_bytes, bytes - offset));
    std::uint64_t done = 0;
    if (adds()) {
      done = AddOwn(offset, chunk.size(), chunk.data(), true, 0);
    } else {
      AddPart(offset, chunk.size(), chunk.data(), true);  // zeros, on all members
    }
    Keep(offset, chunk.size(), chunk, done);
  }
}

void Reduction::SumDirect() {
  if (contributes()) contributions_[options_.position] = std::move(own_);
  SharedBytes sum(row_->bytes());
  for (std::size_t place = 0; place < contributors_; ++place) {
    const std::size_t position = ring_[place];
    const std::byte* part = contributions_[position].data();
    row_->ForEach(0, row_->bytes(),
                  [&](DType dtype, const std::byte*, std::size_t run, std::size_t at) {
                    (place == 0 ? Scale : AddScaled)(dtype, sum.data() + at, part + at, run,
                                                     weights_[position]);
                  });
  }
  Keep(0, sum.size(), sum, 0);
}

// A chunk of a result that is all zeros is sent without its bytes.
void Reduction::OmitZeros(SharedBytes* chunk) {
  if (IsZero(chunk->data(), chunk->size())) *chunk = SharedBytes();
}

// What is final comes to rest; what is passed on stays as it came. Without bytes, it is zeros.
void Reduction::Keep(std::size_t offset, std::size_t length, const SharedBytes& chunk,
                     std::uint64_t done) {
  if (options_.into == Into::kNowhere) return;
  if (!landed_ && options_.before_landing) options_.before_landing();
  landed_ = true;
  const std::size_t first = offset / cell_bytes_;
  if (options_.done != nullptr) {
    const auto cell = options_.done->begin() + static_cast<std::ptrdiff_t>(first);
    std::fill_n(cell, CellsIn(length), true);
  }
  const std::byte* const values = chunk.size() == 0 ? nullptr : chunk.data();
  if (!options_.settles || done == 0) return KeepPart(offset, length, values, false);
  for (std::size_t i = 0; i < CellsIn(length); ++i) {
    const std::size_t at = i * cell_bytes_;
    const bool settled = (done >> i & 1) != 0;
    KeepPart(offset + at, std::min(cell_bytes_, length - at),
             values == nullptr ? nullptr : values + at, settled);
    if (!settled || options_.into == Into::kBase) continue;
    settled_.resize(CellsIn(row_->bytes()));
    settled_[first + i] = true;
  }
}

// `values` null: zeros. `settled`: they are what the base is to become.
void Reduction::KeepPart(std::size_t offset, std::size_t length, const std::byte* values,
                         bool settled) {
  row_->ForEach(offset, length, [&](DType dtype, std::byte* own, std::size_t run, std::size_t at) {
    const bool staged = options_.into == Into::kStaging;
    std::byte* const to = staged ? options_.staging + offset + at : own;
    const bool base = options_.into == Into::kBase && !settled;
    if (base || options_.into == Into::kChange) {  // zeros are added, too: to -0
      const std::vector<std::byte> none(values == nullptr ? run : 0);
      const std::byte* const part = values == nullptr ? none.data() : values + at;
      if (base) std::memcpy(to, options_.base + offset + at, run);
      if (!base) Scale(dtype, to, to, run, {-1, -1});
      const Weight weight = base ? options_.share : Weight{1, 1};
      if (weight.exact != 0) AddScaled(dtype, to, part, run, weight);
    } else if (values == nullptr) {
      ZeroOver(to, run);
    } else {
      std::memcpy(to, values + at, run);
    }
    if (options_.initial_weight == 0 || options_.initial == nullptr) return;
    AddScaled(dtype, to, options_.initial + offset + at, run, weights_.back());
  });
}

}  // namespace prd
