// The processes that a measurement starts.
#ifndef PRD_TOOLS_PRDBENCH_PROCESSES_H_
#define PRD_TOOLS_PRDBENCH_PROCESSES_H_

#include <poll.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "prd/status.h"

namespace prd::bench {

// One process, and for some the pipes to and from it. It gets SIGTERM when this program dies.
// Not thread safe.
class Process {
 public:
  // What a process runs; returns its exit code. The descriptors are its ends of the pipes.
  using Body = std::function<int(int in, int out)>;

  // A fork of this program, which must have one thread. Messages call the process `name`.
  static Result<Process> Fork(std::string name, const Body& body);
  // The same, with pipes.
  static Result<Process> ForkWithPipes(std::string name, const Body& body);
  // A command as execvp has it. What it prints is appended to the file `log`.
  static Result<Process> Run(std::string name, const std::vector<std::string>& command,
                             const std::string& log);
  Process(Process&& other) noexcept { *this = std::move(other); }
  Process& operator=(Process&& other) noexcept;
  // Asks it to end with SIGTERM, and kills it after a few seconds.
  ~Process();

  const std::string& name() const { return name_; }
  // SIGKILL; its end is waited for.
  void Kill();
  void Terminate() const;  // sends SIGTERM

  // False once it has ended. Ok: it runs, or has ended with exit code 0; else how it has ended.
  bool running();
  Status Check();
  // Readable when it ends; -1: it has ended.
  int pidfd() const { return pidfd_; }
  // Processor time of all its threads until now, in us.
  double CpuUs() const;

  // Lines without their newline. kUnavailable: it is gone.
  Status WriteLine(const std::string& line);
  // kDeadlineExceeded after timeout_ms, kCancelled once InterruptedBy.
  Result<std::string> ReadLine(int timeout_ms);

 private:
  Process() = default;
  static Result<Process> Start(std::string name, bool pipes, const Body& body);
  void Ended(int status);

  std::string name_;
  pid_t pid_ = -1;  // -1: ended
  int pidfd_ = -1;
  int to_ = -1;  // -1: no pipe
  int from_ = -1;
  int status_ = 0;  // as waitpid has it, once it has ended
  std::string pending_;
};

// Commands that are watched together: that they run, how they ended, and that none is left behind.
class Crew {
 public:
  // What they print goes to the file `log`.
  explicit Crew(std::string log) : log_(std::move(log)) {}
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;
  // Ends those that run, all at once.
  ~Crew();

  Status Start(const std::string& name, const std::vector<std::string>& command);
  // Ok while all run or have ended with exit code 0; else which has not, how, and what was printed.
  Status Check();
  // As of the last Check.
  bool all_ended() const;
  // Readable when one ends.
  void AppendPollItems(std::vector<pollfd>* items) const;
  std::string Log() const;

 private:
  std::string log_;
  std::vector<Process> members_;
};

}  // namespace prd::bench

#endif  // PRD_TOOLS_PRDBENCH_PROCESSES_H_
