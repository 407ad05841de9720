// Keeps a socket to this process alone. A child that is forked, as PyTorch's DataLoader forks its
// workers, gets a copy of every descriptor; while it lives, the kernel does not end the connection
// of a parent that was killed, and nobody would notice the death.
#ifndef PRD_WORKER_OWN_PROCESS_H_
#define PRD_WORKER_OWN_PROCESS_H_

namespace prd {

// One socket at a time. Not thread-safe but for fork(2).
class OwnProcess {
 public:
  OwnProcess();
  ~OwnProcess();
  OwnProcess(const OwnProcess&) = delete;
  OwnProcess& operator=(const OwnProcess&) = delete;

  // From now on children close their copy of this socket, instead of one before. What has its
  // number once it is closed stays theirs. Of the first 256 that there are in a process.
  void Keep(int socket);

 private:
  int slot_ = -1;
};

}  // namespace prd

#endif  // PRD_WORKER_OWN_PROCESS_H_
