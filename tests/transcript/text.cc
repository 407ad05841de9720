#include "tests/transcript/text.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace prd::transcript {

namespace {

[[noreturn]] void Refuse(const std::string& what) { throw std::invalid_argument(what); }

double ParseReal(const std::string& text, std::string* rest) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end == text.c_str()) Refuse("'" + text + "' is not a number");
  *rest = end;
  return value;
}

// At spaces outside of quotes, which are dropped.
std::vector<std::string> Words(const std::string& line) {
  std::vector<std::string> words;
  bool quoted = false;
  bool inside = false;
  for (const char c : line) {
    if (c == ' ' && !quoted) {
      inside = false;
      continue;
    }
    if (!inside) words.emplace_back();
    inside = true;
    if (c == '"') {
      quoted = !quoted;
    } else {
      words.back() += c;
    }
  }
  if (quoted) Refuse("a quote is not closed");
  return words;
}

std::string Read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// "golden line 3: x, now: y" for the first difference.
std::string FirstDifference(const std::string& golden, const std::string& now) {
  std::istringstream a(golden);
  std::istringstream b(now);
  for (int line = 1;; ++line) {
    std::string was;
    std::string is;
    const bool more_a = !std::getline(a, was).fail();
    const bool more_b = !std::getline(b, is).fail();
    if (!more_a && !more_b) return "differs in its line ends";
    if (more_a && more_b && was == is) continue;
    return "line " + std::to_string(line) + "\n  golden: " + (more_a ? was : "(the end)") +
           "\n  now:    " + (more_b ? is : "(the end)");
  }
}

}  // namespace

DurationNs ParseTime(const std::string& text) {
  std::string unit;
  const double value = ParseReal(text, &unit);
  const auto ns = Choose<DurationNs>(
      unit, {{"ns", 1}, {"us", kMicrosecond}, {"ms", kMillisecond}, {"s", kSecond}});
  return static_cast<DurationNs>(value * static_cast<double>(ns));
}

std::int64_t ParseNumber(const std::string& text) {
  char* end = nullptr;
  errno = 0;
  const std::int64_t value = std::strtoll(text.c_str(), &end, 10);
  if (end == text.c_str() || *end != '\0' || errno != 0)
    Refuse("'" + text + "' is not a whole number");
  return value;
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

std::vector<Rank> ParseRanks(const std::vector<std::string>& words) {
  std::vector<Rank> ranks;
  for (const std::string& word : words) ranks.push_back(static_cast<Rank>(ParseNumber(word)));
  return ranks;
}

Command::Command(const std::string& line) {
  for (const std::string& word : Words(line)) {
    const std::size_t equals = word.find('=');
    if (name_.empty()) {
      name_ = word;
    } else if (equals == std::string::npos) {
      words_.push_back(word);
    } else if (!keys_.emplace(word.substr(0, equals), word.substr(equals + 1)).second) {
      Refuse("key " + word.substr(0, equals) + " stands twice");
    }
  }
}

const std::string& Command::Word(std::size_t index) const {
  if (index >= words_.size()) Refuse(name_ + " needs " + std::to_string(index + 1) + " words");
  return words_[index];
}

std::string Command::Take(const std::string& key, const std::string& otherwise) {
  known_.insert(key);
  const auto found = keys_.find(key);
  if (found == keys_.end()) return otherwise;
  std::string value = found->second;
  keys_.erase(found);
  return value;
}

std::int64_t Command::TakeNumber(const std::string& key, std::int64_t otherwise) {
  const std::string text = Take(key);
  return text.empty() ? otherwise : ParseNumber(text);
}

bool Command::TakeFlag(const std::string& key, bool otherwise) {
  return Choose<bool>(Take(key, otherwise ? "1" : "0"), {{"0", false}, {"1", true}});
}

double Command::TakeReal(const std::string& key, double otherwise) {
  const std::string text = Take(key);
  std::string rest;
  const double value = text.empty() ? otherwise : ParseReal(text, &rest);
  if (!rest.empty()) Refuse("'" + text + "' is not a number");
  return value;
}

DurationNs Command::TakeTime(const std::string& key, DurationNs otherwise) {
  const std::string text = Take(key);
  return text.empty() ? otherwise : ParseTime(text);
}

std::vector<Rank> Command::TakeRanks(const std::string& key) {
  return ParseRanks(Split(Take(key)));
}

void Command::CheckAllTaken() const {
  if (keys_.empty()) return;
  std::string allowed;
  for (const std::string& key : known_) allowed += (allowed.empty() ? "" : ", ") + key;
  Refuse("unknown key " + keys_.begin()->first + "; " +
         (allowed.empty() ? name_ + " has no keys" : "allowed: " + allowed));
}

std::string Replay(const std::string& text,
                   const std::function<std::vector<std::string>(Command*)>& run) {
  std::istringstream in(text);
  std::string result;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.starts_with("> ")) continue;
    result += line + "\n";
    if (line.empty() || line[0] == '#') continue;
    try {
      Command command(line);
      const std::vector<std::string> output = run(&command);
      command.CheckAllTaken();
      for (const std::string& said : output) result += "> " + said + "\n";
    } catch (const std::exception& error) {
      Refuse("line " + std::to_string(number) + ", '" + line + "': " + error.what());
    }
  }
  return result;
}

std::vector<std::string> TranscriptsIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".txt") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string CompareGolden(const std::string& path, const std::string& now) {
  const std::string golden = Read(path);
  if (now == golden) return "";
  if (std::getenv("PRD_REWRITE") == nullptr) {
    return path + ": " + FirstDifference(golden, now) + "\nPRD_REWRITE=1 rewrites it.";
  }
  std::ofstream(path) << now;
  return "";
}

std::string CheckGolden(const std::string& path,
                        const std::function<std::string(const std::string&)>& replay) {
  std::string now;
  try {
    now = replay(Read(path));
  } catch (const std::invalid_argument& error) {
    return path + ": " + error.what();
  }
  if (now.find("\n> ") == std::string::npos) return path + ": no command has any output";
  return CompareGolden(path, now);
}

}  // namespace prd::transcript
