// The tensors of a replica as one row of bytes, which reductions and copies cut into shards and
// chunks.
//
// The row has the tensors by dtype (f64, f32, f16, bf16), then in the caller's order. So a cut at a
// multiple of 8 bytes never splits an element, and all elements of a dtype are in one piece. Equal
// tensors give equal rows on every worker.
#ifndef PRD_WORKER_MEMORY_LAYOUT_H_
#define PRD_WORKER_MEMORY_LAYOUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "prd/replica.h"

namespace prd {

class Layout {
 public:
  Layout() = default;  // empty
  // The memory stays the caller's.
  explicit Layout(const std::vector<Tensor>& tensors);

  std::size_t bytes() const { return bytes_; }

  struct Piece {
    std::size_t begin, end;  // in the row
    std::byte* data;
    DType dtype;
    std::size_t tensor = 0;  // its place in the caller's order
  };
  // In the order of the row, without gaps; none is empty.
  const std::vector<Piece>& pieces() const { return pieces_; }
  // The same with all tensors of one dtype in one; their `data` is null, and `tensor` has no
  // meaning.
  std::vector<Piece> Runs() const;

  // One element: the caller's tensor, and its place in there.
  struct Element {
    std::size_t tensor = 0;
    std::size_t index = 0;
    friend bool operator==(const Element&, const Element&) = default;
  };
  // That of the row's byte `at`. REQUIRES: inside the row.
  Element ElementAt(std::size_t at) const;

  // The same row where it stands in one piece, in the bytes() bytes at `row`.
  Layout Over(std::byte* row) const;

  // Calls f(dtype, data, length, at) for each run of memory that makes up [offset, offset + length)
  // of the row; `at` is the run's distance from `offset`. REQUIRES: inside the row, both ends
  // multiples of 8 or the row's end.
  template <typename F>
  void ForEach(std::size_t offset, std::size_t length, F&& f) const {
    auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), offset,
                                  [](std::size_t at, const Piece& p) { return at < p.end; });
    std::size_t at = 0;
    for (; at < length; ++piece) {
      const std::size_t from = offset + at - piece->begin;
      const std::size_t run = std::min(length - at, piece->end - piece->begin - from);
      f(piece->dtype, piece->data + from, run, at);
      at += run;
    }
  }

  // Copies [offset, offset + length) of the row to `to`, or `from` into it.
  void Read(std::size_t offset, std::size_t length, std::byte* to) const;
  void Write(std::size_t offset, std::size_t length, const std::byte* from) const;

 private:
  std::vector<Piece> pieces_;
  std::size_t bytes_ = 0;
};

// A hash of number, order, dtypes and sizes, for state also whether it is averaged, and of the tag;
// never 0.
std::uint64_t ModelHash(const std::vector<Tensor>& tensors,
                        const std::vector<StateTensor>& state = {}, const std::string& tag = "");

}  // namespace prd

#endif  // PRD_WORKER_MEMORY_LAYOUT_H_
