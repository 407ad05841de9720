// StandInGpu's kernels: what host memory does (worker/memory/memory.h), on the bytes behind the
// addresses.
#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/standin/standin_gpu.h"
#include "worker/memory/memory.h"

namespace prd::testing {

using Place = StandInDevice::Place;

struct StandInGpu::TheTable : Gpu::Table {
  explicit TheTable(std::shared_ptr<StandInDevice> on) : device(std::move(on)) {}
  ~TheTable() override {
    if (in_use.use_count() > 1) device->problems().Add("a table is gone that queued work uses");
  }
  std::shared_ptr<StandInDevice> device;
  std::shared_ptr<int> in_use = std::make_shared<int>(0);  // shared with queued work
  Layout layout;                                           // with the addresses
  Layout resolved;                                         // with where the bytes are
};

namespace {

struct Range {
  const std::byte* begin;
  std::size_t bytes;
};

bool Overlap(const std::vector<Range>& a, const std::vector<Range>& b) {
  return std::any_of(a.begin(), a.end(), [&](const Range& x) {
    return std::any_of(b.begin(), b.end(), [&](const Range& y) {
      return x.begin < y.begin + y.bytes && y.begin < x.begin + x.bytes;
    });
  });
}

}  // namespace

Result<std::shared_ptr<Gpu::Table>> StandInGpu::MakeTable(const Layout& layout) {
  PRD_RETURN_IF_ERROR(device_->Call());
  std::vector<Tensor> tensors;
  for (const Layout::Piece& piece : layout.pieces()) {
    const Result<std::byte*> data =
        device_->Operand("a tensor", piece.data, piece.end - piece.begin, Place::kDevice);
    if (!data.ok()) return data.status();
    tensors.push_back({*data, (piece.end - piece.begin) / DTypeSize(piece.dtype), piece.dtype});
  }
  auto table = std::make_shared<TheTable>(device_);
  table->layout = layout;
  table->resolved = Layout(tensors);
  return std::shared_ptr<Table>(std::move(table));
}

// The operands of one launch: checked, and where their bytes are.
struct StandInGpu::Touched {
  StandInDevice* device;
  const Combine& combine;
  const TheTable& table;
  std::vector<Use> uses;
  std::vector<std::vector<Range>> ranges;  // of each operand

  Result<Memory::Place> Add(const std::byte* data, bool writes) {
    std::vector<Range> own;
    if (data != nullptr) {
      own.push_back({data, combine.length});
    } else {
      table.layout.ForEach(combine.offset, combine.length,
                           [&](DType, const std::byte* tensor, std::size_t run, std::size_t) {
                             own.push_back({tensor, run});
                           });
    }
    std::byte* resolved = nullptr;
    for (const Range& range : own) {
      const Result<std::byte*> at =
          device->Operand("Launch's operand", range.begin, range.bytes, Place::kDevice);
      if (!at.ok()) return at.status();
      resolved = *at;
      uses.push_back({range.begin, range.bytes, writes});
    }
    ranges.push_back(std::move(own));
    return data == nullptr ? Memory::Tensors() : Memory::In(resolved);
  }
};

Status StandInGpu::Launch(const Combine& combine, Stream stream) {
  PRD_RETURN_IF_ERROR(device_->Call());
  const auto* table = dynamic_cast<const TheTable*>(combine.table);
  if (table == nullptr) return device_->Wrong("Launch without a table");
  const std::size_t row = table->layout.bytes();
  const std::size_t end = combine.offset + combine.length;
  const std::vector<Layout::Piece> runs = table->layout.Runs();
  const auto cuts = [&](std::size_t at) {
    return at % 8 == 0 || at == row ||
           std::any_of(runs.begin(), runs.end(), [at](const auto& run) { return run.begin == at; });
  };
  if (end > row || !cuts(combine.offset) || !cuts(end)) {
    return device_->Wrong("Launch over what is no range of the layout");
  }
  if (combine.from.size() > kMaxInputs || combine.to.size() > kMaxOutputs) {
    return device_->Wrong("Launch with more operands than it can have");
  }
  Touched touched{device_.get(), combine, *table, {}, {}};
  std::vector<Memory::Place> to;
  for (std::byte* data : combine.to) {
    const Result<Memory::Place> place = touched.Add(data, true);
    if (!place.ok()) return place.status();
    to.push_back(*place);
  }
  std::vector<Memory::Input> from;
  for (const Input& input : combine.from) {
    if (input.weight.exact == 0) return device_->Wrong("Launch with an input of weight 0");
    const Result<Memory::Place> place = touched.Add(input.data, false);
    if (!place.ok()) return place.status();
    from.push_back({*place, input.weight});
  }
  for (std::size_t i = 0; i < to.size(); ++i) {
    for (std::size_t j = i + 1; j < touched.ranges.size(); ++j) {
      const bool first_input =
          j == to.size() && combine.to[i] == combine.from.front().data;  // null: the tensors
      if (!first_input && Overlap(touched.ranges[i], touched.ranges[j])) {
        return device_->Wrong("Launch whose output overlaps another operand");
      }
    }
  }
  const std::byte* skip = nullptr;
  if (combine.skip != nullptr) {
    const Result<std::byte*> word =
        device_->Operand("Launch's word", combine.skip, sizeof *combine.skip, Place::kDevice);
    if (!word.ok()) return word.status();
    skip = *word;
    touched.uses.push_back({combine.skip, sizeof *combine.skip, false});
  }
  if (to.empty() || combine.length == 0) return Status::Ok();
  return device_->Enqueue(
      stream, {.what = "Launch",
               .ready = nullptr,
               .run =
                   [layout = table->resolved, offset = combine.offset, length = combine.length,
                    to = std::move(to), from = std::move(from), factor = combine.factor, skip,
                    in_use = table->in_use] {
                     std::uint32_t word = 0;
                     if (skip != nullptr) std::memcpy(&word, skip, sizeof word);
                     if (word == 0) HostMemory().Combine(layout, offset, length, to, from, factor);
                   },
               .uses = std::move(touched.uses)});
}

}  // namespace prd::testing
