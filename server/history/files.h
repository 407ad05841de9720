// The files of the history, where the process may run out of descriptors.
//
// RocksDB takes no more writes after it could not open a file of its own. So some descriptors are
// kept for it: when no other is left, one of these is given up, and the file is opened again. If
// none of them is left either, the file is waited for.
#ifndef PRD_SERVER_HISTORY_FILES_H_
#define PRD_SERVER_HISTORY_FILES_H_

#include <rocksdb/file_system.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace prd::history {

class PatientFiles final : public rocksdb::FileSystemWrapper {
 public:
  static constexpr std::size_t kReserve = 64;

  PatientFiles();
  ~PatientFiles() override;
  const char* Name() const override { return "prd"; }

  // Whether enough descriptors are kept. Tries to get the missing ones.
  bool Ready();

  rocksdb::IOStatus NewSequentialFile(const std::string& name, const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSSequentialFile>* file,
                                      rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NewRandomAccessFile(const std::string& name,
                                        const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                                        rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus ReopenWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                       std::unique_ptr<rocksdb::FSWritableFile>* file,
                                       rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus ReuseWritableFile(const std::string& name, const std::string& old_name,
                                      const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSWritableFile>* file,
                                      rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NewDirectory(const std::string& name, const rocksdb::IOOptions& options,
                                 std::unique_ptr<rocksdb::FSDirectory>* directory,
                                 rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus GetChildren(const std::string& directory, const rocksdb::IOOptions& options,
                                std::vector<std::string>* names,
                                rocksdb::IODebugContext* debug) override;

 private:
  template <typename Open>
  rocksdb::IOStatus Patiently(Open open);
  bool GiveUpOne();

  std::mutex mutex_;  // RocksDB has threads of its own
  std::vector<int> kept_;
};

}  // namespace prd::history

#endif  // PRD_SERVER_HISTORY_FILES_H_
