// The newest entries of a map that would grow without end.
#ifndef PRD_COMMON_BASE_NEWEST_H_
#define PRD_COMMON_BASE_NEWEST_H_

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <variant>

namespace prd {

// At most `most` keys with a value each; without a Value, a set. The oldest key makes room.
template <typename Key, typename Value = std::monostate>
class Newest {
 public:
  explicit Newest(std::size_t most) : most_(most) {}

  bool contains(const Key& key) const { return values_.contains(key); }
  std::size_t size() const { return values_.size(); }
  // nullptr: the key is not here, or no longer.
  const Value* Find(const Key& key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : &found->second;
  }
  // A key that is here stays as it is. Returns the oldest value, if it had to go.
  std::optional<Value> Add(const Key& key, Value value = {}) {
    if (!values_.try_emplace(key, std::move(value)).second) return std::nullopt;
    order_.push_back(key);
    if (order_.size() <= most_) return std::nullopt;
    std::optional<Value> oldest = std::move(values_.extract(order_.front()).mapped());
    order_.pop_front();
    return oldest;
  }

 private:
  std::size_t most_;
  std::map<Key, Value> values_;
  std::deque<Key> order_;  // of coming
};

}  // namespace prd

#endif  // PRD_COMMON_BASE_NEWEST_H_
