// A list that is made once and copied often: its copies share the items. The announcement of a
// group lists all members, goes to each of them, and is kept until acknowledged. Deep copies of it
// were most of the controller's work in a round of many workers.
#ifndef PRD_COMMON_BASE_SHARED_LIST_H_
#define PRD_COMMON_BASE_SHARED_LIST_H_

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/archive.h"

namespace prd {

// Reads like a vector. A copy that is changed while others share its items gets its own items
// first. Several threads may read several copies; one object is for one thread at a time.
template <typename T>
class SharedList {
 public:
  using value_type = T;
  using const_iterator = typename std::vector<T>::const_iterator;

  SharedList() = default;
  SharedList(std::initializer_list<T> items) : SharedList(std::vector<T>(items)) {}
  explicit SharedList(std::vector<T> items)
      : items_(std::make_shared<std::vector<T>>(std::move(items))) {}

  const std::vector<T>& get() const { return items_ ? *items_ : Empty(); }
  const_iterator begin() const { return get().begin(); }
  const_iterator end() const { return get().end(); }
  std::size_t size() const { return get().size(); }
  bool empty() const { return get().empty(); }
  const T& operator[](std::size_t index) const { return get()[index]; }
  const T& front() const { return get().front(); }
  const T& back() const { return get().back(); }

  std::vector<T>& Mutable() {
    if (!items_) {
      items_ = std::make_shared<std::vector<T>>();
    } else if (items_.use_count() > 1) {
      items_ = std::make_shared<std::vector<T>>(*items_);
    }
    return *items_;
  }
  void push_back(T item) { Mutable().push_back(std::move(item)); }
  void reserve(std::size_t count) { Mutable().reserve(count); }

  void Archive(StateArchive& ar) {
    if (ar.saving()) {
      std::vector<T> items = get();
      ar(items);
    } else {
      ar(Mutable());
    }
  }

  friend bool operator==(const SharedList& a, const SharedList& b) {
    return a.items_ == b.items_ || a.get() == b.get();
  }

 private:
  static const std::vector<T>& Empty() {
    static const std::vector<T> empty;
    return empty;
  }
  std::shared_ptr<std::vector<T>> items_;
};

}  // namespace prd

#endif  // PRD_COMMON_BASE_SHARED_LIST_H_
