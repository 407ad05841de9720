// What the interpreters of test transcripts share: a text of commands, one per line, each followed
// by what it led to ("> ..." lines).
//
//   # a comment
//   name word... key=value...        key="two words" where a value has spaces
//   > a line of output
//
// Errors are std::invalid_argument. Replay says in which line they are.
#ifndef PRD_TESTS_TRANSCRIPT_TEXT_H_
#define PRD_TESTS_TRANSCRIPT_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/time.h"

namespace prd::transcript {

// "3ms", "1.5s", "20us", "7ns".
DurationNs ParseTime(const std::string& text);
std::int64_t ParseNumber(const std::string& text);
// "1,2,3" at `separator`. Of "": nothing.
std::vector<std::string> Split(const std::string& text, char separator = ',');
std::vector<Rank> ParseRanks(const std::vector<std::string>& words);

// The value that `names` has for `word`. The error says which words are allowed.
template <typename Value>
Value Choose(const std::string& word, const std::map<std::string, Value>& names) {
  const auto found = names.find(word);
  if (found != names.end()) return found->second;
  std::string allowed;
  for (const auto& [name, value] : names) allowed += (allowed.empty() ? "" : ", ") + name;
  throw std::invalid_argument("'" + word + "' is not one of: " + allowed);
}

// One line. A key that is not taken is an error of the line.
class Command {
 public:
  explicit Command(const std::string& line);

  const std::string& name() const { return name_; }
  const std::vector<std::string>& words() const { return words_; }
  const std::string& Word(std::size_t index) const;
  std::vector<Rank> Ranks() const { return ParseRanks(words_); }

  bool Has(const std::string& key) const { return keys_.contains(key); }
  // Each takes the value of the key, or `otherwise` where the line has no such key.
  std::string Take(const std::string& key, const std::string& otherwise = "");
  std::int64_t TakeNumber(const std::string& key, std::int64_t otherwise = 0);
  bool TakeFlag(const std::string& key, bool otherwise = false);  // 1 or 0
  double TakeReal(const std::string& key, double otherwise = 0);
  DurationNs TakeTime(const std::string& key, DurationNs otherwise = 0);
  std::vector<Rank> TakeRanks(const std::string& key);  // "1,2"

  // Throws for keys that were not taken.
  void CheckAllTaken() const;

 private:
  std::string name_;
  std::vector<std::string> words_;
  std::map<std::string, std::string> keys_;
  std::set<std::string> known_;  // every key that was asked for
};

// The transcript of the commands in `text`. Its "> " lines are ignored and made anew from what
// `run` returns for each command.
std::string Replay(const std::string& text,
                   const std::function<std::vector<std::string>(Command*)>& run);

// Names without ".txt" of the transcripts in a folder, sorted.
std::vector<std::string> TranscriptsIn(const std::string& folder);

// What is wrong with the golden file in `path`, if `now` should be in it: "" if it is, byte for
// byte. With PRD_REWRITE=1 in the environment the file is rewritten.
std::string CompareGolden(const std::string& path, const std::string& now);

// The same for the transcript in `path`, replayed by `replay`.
std::string CheckGolden(const std::string& path,
                        const std::function<std::string(const std::string&)>& replay);

}  // namespace prd::transcript

#endif  // PRD_TESTS_TRANSCRIPT_TEXT_H_
