// Messages and records as text, and back, by the fields that common/base/visit.h lists:
// "worker_left rank=1 incarnation=101 why=lost (its lease of 2000 ms ran out)".
#ifndef PRD_TESTS_ENGINES_BODY_TEXT_H_
#define PRD_TESTS_ENGINES_BODY_TEXT_H_

#include <concepts>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/visit.h"
#include "tests/transcript/text.h"

namespace prd::body_text {

// What a worker of a transcript says in its Hello unless it is told otherwise. It is not shown.
inline constexpr const char* kHostName = "host";
inline constexpr std::uint32_t kPid = 42;

template <typename E>
using Names = std::map<std::string, E>;
inline const Names<GroupKind>& NamesOf(GroupKind) {
  static const Names<GroupKind> names = {{"train", GroupKind::kTrain},
                                         {"initial", GroupKind::kInitial},
                                         {"final", GroupKind::kFinal},
                                         {"round", GroupKind::kRound},
                                         {"average", GroupKind::kAverage}};
  return names;
}
inline const Names<Outcome>& NamesOf(Outcome) {
  static const Names<Outcome> names = {
      {"ok", Outcome::kOk}, {"failed", Outcome::kFailed}, {"aborted", Outcome::kAborted}};
  return names;
}
inline const Names<LeftReason>& NamesOf(LeftReason) {
  static const Names<LeftReason> names = {
      {"finished", LeftReason::kFinished}, {"left", LeftReason::kLeft},
      {"lost", LeftReason::kLost},         {"evicted", LeftReason::kEvicted},
      {"paused", LeftReason::kPaused},     {"failed", LeftReason::kFailed}};
  return names;
}
inline const Names<HasGradients>& NamesOf(HasGradients) {
  static const Names<HasGradients> names = {{"here", HasGradients::kHere},
                                            {"none", HasGradients::kNone},
                                            {"later", HasGradients::kLater}};
  return names;
}
inline const Names<OnNonfinite>& NamesOf(OnNonfinite) {
  static const Names<OnNonfinite> names = {
      {"pass", OnNonfinite::kPass}, {"drop", OnNonfinite::kDrop}, {"stop", OnNonfinite::kStop}};
  return names;
}
// The first `count` values, by the names that the product has for them.
template <typename E>
Names<E> NamesBy(int count, const char* (*name_of)(E)) {
  Names<E> names;
  for (int value = 0; value < count; ++value) {
    std::string name = name_of(static_cast<E>(value));
    for (char& c : name) c = c == ' ' ? '_' : c;
    names[name] = static_cast<E>(value);
  }
  return names;
}
inline const Names<OperatorVerb>& NamesOf(OperatorVerb) {
  static const auto names = NamesBy(static_cast<int>(OperatorVerb::kSwitch) + 1, VerbName);
  return names;
}
inline const Names<Code>& NamesOf(Code) {
  static const auto names = NamesBy(static_cast<int>(Code::kInternal) + 1, CodeName);
  return names;
}

// ---- values to text ----

inline std::string Quoted(const std::string& text) {
  return text.empty() || text.find(' ') != std::string::npos ? '"' + text + '"' : text;
}
inline std::string AsText(const std::string& value) { return Quoted(value); }
inline std::string AsText(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}
template <std::integral T>
std::string AsText(T value) {
  return std::to_string(value);
}
template <typename E>
requires std::is_enum_v<E> std::string AsText(E value) {
  for (const auto& [name, of] : NamesOf(value)) {
    if (of == value) return name;
  }
  return "unknown";
}
inline std::string AsText(const RunIdentity& value) {
  return std::to_string(value.high) + "/" + std::to_string(value.low);
}
inline std::string AsText(const MeshKey& value) { return value.known() ? "known" : "none"; }
// "2*0.25@7": rank 2 has the weight 0.25, and is at iteration 7. "+" of passive members.
inline std::string AsText(const GroupShare& value) {
  return std::to_string(value.rank) + "*" + AsText(value.weight) +
         (value.iteration == 0 ? "" : "@" + std::to_string(value.iteration)) +
         (value.passive ? "+" : "");
}
inline std::string AsText(const InEdge& value) {
  return std::to_string(value.rank) + "*" + AsText(value.weight) + "@" + std::to_string(value.from);
}
// "2:40+8": rank 2 computes 8 samples from the one of number 40 on.
inline std::string AsText(const ShareGiven& value) {
  return std::to_string(value.rank) + ":" + std::to_string(value.first) + "+" +
         std::to_string(value.samples);
}
template <typename T>
std::string Show(std::string name, const T& value);
template <typename T>
std::string AsText(const std::vector<T>& values);
template <typename T>
std::string AsText(const SharedList<T>& values) {
  return AsText(values.get());
}
template <Described T>
std::string AsText(const T& value) {
  return "{" + Show("", value) + "}";
}
template <typename T>
std::string AsText(const std::vector<T>& values) {
  std::string text;
  for (const T& value : values) text += (text.empty() ? "" : ",") + AsText(value);
  return text.empty() ? "none" : text;
}

// Passes fields on under the names that tools have for them: "goal_*" and "steps" are "goal_steps".
template <typename Visitor>
class PrefixedFields {
 public:
  PrefixedFields(Visitor& to, std::string prefix, FieldTraits traits)
      : to_(to), prefix_(prefix.substr(0, prefix.size() - 1)), traits_(traits) {}
  PrefixedFields& operator()(const char* name, auto& value, FieldTraits traits = kPlain,
                             const char* = nullptr) {
    const std::string key = prefix_ + name;
    to_(key.c_str(), value, traits | traits_);
    return *this;
  }

 private:
  Visitor& to_;
  const std::string prefix_;
  const FieldTraits traits_;
};

// Visits the fields of one message, or is given them one by one.
class Shower {
 public:
  explicit Shower(std::string name) : text_(std::move(name)) {}
  template <typename T>
  Shower& operator()(const std::string& name, const T& value, FieldTraits traits = kPlain,
                     const char* shown = nullptr) {
    const std::string key = shown != nullptr ? shown : name;
    if constexpr (Described<T>) {
      if (key.ends_with('*')) {
        Visit(value, PrefixedFields(*this, key, traits));
        return *this;
      }
    }
    bool hides = (traits & (kHidden | kUnlessZero)) != 0 && value == T{};
    if constexpr (std::is_same_v<T, std::string>) {
      hides = hides || (key == "host_name" && value == kHostName);
      if (key == "reason") {
        reason_ = value;
        return *this;
      }
    }
    if constexpr (std::is_same_v<T, double>) hides = hides || value == 0;
    if constexpr (std::is_same_v<T, std::uint32_t>)
      hides = hides || (key == "pid" && value == kPid);
    if constexpr (requires { AsText(value); }) {  // tokens, and messages in messages, are not shown
      if (!hides) text_ += (text_.empty() ? "" : " ") + key + "=" + AsText(value);
    }
    return *this;
  }
  const std::string& reason() const { return reason_; }
  std::string Text() const { return text_ + (reason_.empty() ? "" : " (" + reason_ + ")"); }

 private:
  std::string text_;
  std::string reason_;
};
template <typename T>
std::string Show(std::string name, const T& value) {
  Shower shower(std::move(name));
  Visit(value, shower);
  return shower.Text();
}

// ---- text to values ----

inline void Parse(const std::string& text, std::string* value) { *value = text; }
inline void Parse(const std::string& text, bool* value) { *value = text == "1"; }
// "0.5", "1/3".
inline void Parse(const std::string& text, double* value) {
  const std::size_t slash = text.find('/');
  *value = std::stod(text);
  if (slash != std::string::npos) *value /= std::stod(text.substr(slash + 1));
}
template <std::integral T>
void Parse(const std::string& text, T* value) {
  *value = static_cast<T>(transcript::ParseNumber(text));
}
template <typename E>
requires std::is_enum_v<E>
void Parse(const std::string& text, E* value) { *value = transcript::Choose(text, NamesOf(E{})); }
inline void Parse(const std::string& text, RunIdentity* value) {
  const std::vector<std::string> parts = transcript::Split(text, '/');
  Parse(parts.at(0), &value->high);
  Parse(parts.at(1), &value->low);
}
inline void Parse(const std::string& text, MeshKey*) {
  throw std::invalid_argument("no key can be told: " + text);
}
inline void Parse(const std::string& text, GroupShare*) {
  throw std::invalid_argument("members are words, not " + text);
}
inline void Parse(const std::string& text, ShareGiven*) {
  throw std::invalid_argument("shares are decided, not told: " + text);
}
inline void Parse(const std::string& text, InEdge* value) {
  long long from = 0;
  const int found = std::sscanf(text.c_str(), "%d*%lf@%lld", &value->rank, &value->weight, &from);
  if (found != 3) throw std::invalid_argument("'" + text + "' is not RANK*WEIGHT@FROM");
  value->from = from;
}
// "2+0": rank 2 owns the shard, rank 0 has a copy of it.
inline void Parse(const std::string& text, ShardPlace* value) {
  const std::vector<std::string> parts = transcript::Split(text, '+');
  Parse(parts.at(0), &value->owner);
  value->holders = transcript::ParseRanks({parts.begin() + 1, parts.end()});
}
template <typename T>
void Parse(const std::string& text, std::vector<T>* values) {
  values->clear();
  for (const std::string& part : transcript::Split(text)) Parse(part, &values->emplace_back());
}
template <typename T>
void Parse(const std::string& text, SharedList<T>* values) {
  std::vector<T> items;
  Parse(text, &items);
  *values = SharedList<T>(std::move(items));
}

// Visits the fields of a message and takes those that the command names.
class Taker {
 public:
  explicit Taker(transcript::Command* command) : command_(command) {}
  template <typename T>
  Taker& operator()(const char* name, T& value, FieldTraits traits = kPlain,
                    const char* shown = nullptr) {
    const std::string key = shown != nullptr ? shown : name;
    if constexpr (Described<T>) {
      if (key.ends_with('*')) {
        Visit(value, PrefixedFields(*this, key, traits));
        return *this;
      }
      if constexpr (!requires { Parse(key, &value); }) return *this;
    }
    if constexpr (requires { Parse(key, &value); }) {
      if (command_->Has(key)) Parse(command_->Take(key), &value);
    }
    return *this;
  }

 private:
  transcript::Command* command_;
};

// The alternative of this name, with the fields that the command names; none has the name.
template <typename Body>
std::optional<Body> Take(const std::string& name, transcript::Command* command) {
  std::optional<Body> body;
  const auto look = [&]<typename T>(T of) {
    if (name != T::kName) return;
    Visit(of, Taker(command));
    body = of;
  };
  [&]<typename... T>(std::variant<T...>*) {
    (look(T{}), ...);
  }(static_cast<typename Body::Variant*>(nullptr));
  return body;
}

}  // namespace prd::body_text

#endif  // PRD_TESTS_ENGINES_BODY_TEXT_H_
