#include "worker/memory/layout.h"

#include <cstring>
#include <string>

#include "common/base/archive.h"

namespace prd {

Layout::Layout(const std::vector<Tensor>& tensors) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Tensor& tensor = tensors[i];
      if (tensor.dtype != dtype || tensor.count == 0) continue;
      const std::size_t end = bytes_ + tensor.count * DTypeSize(dtype);
      pieces_.push_back({bytes_, end, static_cast<std::byte*>(tensor.data), tensor.dtype, i});
      bytes_ = end;
    }
  }
}

std::vector<Layout::Piece> Layout::Runs() const {
  std::vector<Piece> runs;
  for (const Piece& piece : pieces_) {
    if (runs.empty() || runs.back().dtype != piece.dtype) {
      runs.push_back({piece.begin, piece.end, nullptr, piece.dtype});
    }
    runs.back().end = piece.end;
  }
  return runs;
}

Layout::Element Layout::ElementAt(std::size_t at) const {
  const auto piece =
      std::upper_bound(pieces_.begin(), pieces_.end(), at,
                       [](std::size_t byte, const Piece& p) { return byte < p.end; });
  return {piece->tensor, (at - piece->begin) / DTypeSize(piece->dtype)};
}

Layout Layout::Over(std::byte* row) const {
  Layout over = *this;
  for (Piece& piece : over.pieces_) piece.data = row + piece.begin;
  return over;
}

void Layout::Read(std::size_t offset, std::size_t length, std::byte* to) const {
  ForEach(offset, length, [to](DType, const std::byte* data, std::size_t run, std::size_t at) {
    std::memcpy(to + at, data, run);
  });
}

void Layout::Write(std::size_t offset, std::size_t length, const std::byte* from) const {
  ForEach(offset, length, [from](DType, std::byte* data, std::size_t run, std::size_t at) {
    std::memcpy(data, from + at, run);
  });
}

std::uint64_t ModelHash(const std::vector<Tensor>& tensors, const std::vector<StateTensor>& state,
                        const std::string& tag) {
  std::string text;
  const auto add = [&text](const auto& tensor) {
    text += std::to_string(static_cast<int>(tensor.dtype)) + ":" + std::to_string(tensor.count);
  };
  for (const Tensor& tensor : tensors) {
    add(tensor);
    text += ";";
  }
  for (const StateTensor& tensor : state) {
    add(tensor);
    text += tensor.average ? "=" : "~";
  }
  if (!tag.empty()) text += "#" + tag;
  const std::uint64_t hash = HashBytes(text);
  return hash == 0 ? 1 : hash;
}

}  // namespace prd
