// The processes of a measurement, watched together: that they run, how they ended, and that none is
// left behind.
#ifndef PRD_TOOLS_PRDBENCH_SKEW_CREW_H_
#define PRD_TOOLS_PRDBENCH_SKEW_CREW_H_

#include <poll.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "prd/status.h"

namespace prd::bench {

// Not thread safe; the program that uses it has one thread.
class Crew {
 public:
  // What they print goes to the file `log`.
  explicit Crew(std::string log) : log_(std::move(log)) {}
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;
  // Ends those that run: asks with SIGTERM, and after a few seconds does not ask.
  ~Crew();

  // `command` as execvp has it; what is written of it in messages is `name`. It gets SIGTERM when
  // this program dies.
  Status Start(const std::string& name, const std::vector<std::string>& command);

  // Ok while all run or have ended with exit code 0; else who has not, how, and what was printed.
  Status Check();
  // As of the last Check.
  bool all_ended() const;
  // Readable when one ends.
  void AppendPollItems(std::vector<pollfd>* items) const;

  std::string Log() const;

 private:
  struct Member {
    std::string name;
    pid_t pid = -1;  // -1: ended
    int pidfd = -1;
  };
  static void Forget(Member* member);
  void Signal(int number);
  void Reap();

  std::string log_;
  std::vector<Member> members_;
};

}  // namespace prd::bench

#endif  // PRD_TOOLS_PRDBENCH_SKEW_CREW_H_
