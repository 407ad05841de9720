#include "worker/mesh/copied_rows.h"

#include <algorithm>
#include <new>
#include <utility>

#include "worker/memory/meanwhile.h"

namespace prd {

void CopiedRows::SetStanding(CopiedRow row, Layout layout) {
  Row& to = rows_[static_cast<std::size_t>(row)];
  to.bytes = layout.bytes();
  to.standing = std::move(layout);
  stands_ = true;
}

void CopiedRows::SetCopy(CopiedRow row, std::shared_ptr<Buffer> copy) {
  Row& to = rows_[static_cast<std::size_t>(row)];
  to.bytes = copy->size();
  to.copy = std::move(copy);
}

std::uint64_t CopiedRows::Ready(std::size_t row) const {
  const Row& from = rows_[row];
  if (stands() || from.copy == nullptr) return from.bytes;
  return from.copied_from + from.copy->ready();
}

SharedBytes CopiedRows::Read(std::size_t row, std::uint64_t offset, std::uint64_t length) {
  Row& from = rows_[row];
  if (from.copy != nullptr) return Within(from.copy, offset - from.copied_from, length);
  const std::shared_ptr<Buffer> chunk = buffers_.Get(length);
  from.standing.Read(offset, length, chunk->data());
  from.read = offset + length;
  return Within(chunk, 0, length);
}

void CopiedRows::CopyRest() {
  if (!stands()) return;
  try {
    for (Row& row : rows_) CopyRestOf(&row);
  } catch (const std::bad_alloc&) {  // a peer's copy is not worth this worker's training
    lost_ = true;
  }
  stands_.store(false, std::memory_order_release);
}

void CopiedRows::CopyRestOf(Row* row) {
  const Layout standing = std::exchange(row->standing, Layout());
  if (standing.bytes() == 0) return;
  const std::uint64_t from = readers_ == 1 ? row->read : 0;
  row->copied_from = from;
  row->copy = buffers_.Get(row->bytes - from);
  for (std::uint64_t at = from; at < row->bytes; at += Meanwhile::kBytes) {
    const std::uint64_t length = std::min<std::uint64_t>(Meanwhile::kBytes, row->bytes - at);
    standing.Read(at, length, row->copy->data() + (at - from));
    Meanwhile::Do();
  }
}

}  // namespace prd
