// `prd --ephemeral`: a controller for one job, run by the job's user and gone with the job. It has
// keys and a folder of its own; nothing of it is shared with other jobs, and it needs no rights.
#ifndef PRD_SERVER_EPHEMERAL_H_
#define PRD_SERVER_EPHEMERAL_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "common/io/curve.h"
#include "config/config.h"
#include "prd/status.h"

namespace prd {

class Ephemeral {
 public:
  struct Options {
    std::string listen = "tcp://0.0.0.0:*";
    std::string address;  // of this host, for workers, where `listen` is every one; empty: its name
    std::string folder;   // where the daemon's own folder is made; empty: $TMPDIR, or /tmp
    // What workers need goes there, and their secret key to a file of this name and ".key". Neither
    // may be another prd's that lives. Empty: all of it to the standard output.
    std::string env_file;
    bool keep = false;  // the folder stays, with the history
  };

  // Makes the folder and the keys, and removes the folders that prds of this user have left beside
  // it on this host when they were killed. What they replace in config->daemon, and the identities,
  // do not count.
  static Result<std::unique_ptr<Ephemeral>> Make(const Options& options, Config* config);
  ~Ephemeral();  // removes what was made
  Ephemeral(const Ephemeral&) = delete;
  Ephemeral& operator=(const Ephemeral&) = delete;

  // Tells the job's launcher the environment of its workers, as lines for a shell, once the daemon
  // listens at this endpoint. The file is there at once and whole.
  Status Tell(const std::string& endpoint);

 private:
  explicit Ephemeral(Options options) : options_(std::move(options)) {}
  Status WriteForWorkers(const std::string& file, const std::string& text);

  const Options options_;
  std::string folder_;
  int lock_ = -1;            // held as long as this process lives
  std::string environment_;  // but for PRD_CONTROLLER and the secret key
  CurveKeys workers_;
  struct Written {
    std::string path;
    dev_t device = 0;
    ino_t inode = 0;
    int lock = -1;  // held as long as this process lives
  };
  std::vector<Written> files_;  // for the workers
};

}  // namespace prd

#endif  // PRD_SERVER_EPHEMERAL_H_
