#include "server/history/files.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace prd::history {
namespace {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOStatus;

constexpr int kWaitMs = 10;
constexpr int kWaits = 1000;

// RocksDB tells the error of open(2) in words alone.
bool NoDescriptor(const IOStatus& status) {
  if (!status.IsIOError()) return false;
  const std::string text = status.ToString();
  return text.find(std::strerror(EMFILE)) != std::string::npos ||
         text.find(std::strerror(ENFILE)) != std::string::npos;
}

}  // namespace

PatientFiles::PatientFiles() : FileSystemWrapper(rocksdb::FileSystem::Default()) { (void)Ready(); }

PatientFiles::~PatientFiles() {
  for (const int fd : kept_) ::close(fd);
}

bool PatientFiles::Ready() {
  const std::lock_guard lock(mutex_);
  while (kept_.size() < kReserve) {
    const int fd = ::eventfd(0, EFD_CLOEXEC);  // of no file, so nothing but the limit can be wrong
    if (fd < 0) break;
    kept_.push_back(fd);
  }
  return kept_.size() >= kReserve / 2;
}

bool PatientFiles::GiveUpOne() {
  const std::lock_guard lock(mutex_);
  if (kept_.empty()) return false;
  ::close(kept_.back());
  kept_.pop_back();
  return true;
}

template <typename Open>
IOStatus PatientFiles::Patiently(Open open) {
  for (int waits = 0;;) {
    IOStatus status = open();
    if (!NoDescriptor(status)) return status;
    if (GiveUpOne()) continue;
    if (++waits > kWaits) return status;
    (void)::poll(nullptr, 0, kWaitMs);
  }
}

IOStatus PatientFiles::NewSequentialFile(const std::string& name, const FileOptions& options,
                                         std::unique_ptr<rocksdb::FSSequentialFile>* file,
                                         IODebugContext* debug) {
  return Patiently([&] { return target()->NewSequentialFile(name, options, file, debug); });
}

IOStatus PatientFiles::NewRandomAccessFile(const std::string& name, const FileOptions& options,
                                           std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                                           IODebugContext* debug) {
  return Patiently([&] { return target()->NewRandomAccessFile(name, options, file, debug); });
}

IOStatus PatientFiles::NewWritableFile(const std::string& name, const FileOptions& options,
                                       std::unique_ptr<rocksdb::FSWritableFile>* file,
                                       IODebugContext* debug) {
  return Patiently([&] { return target()->NewWritableFile(name, options, file, debug); });
}

IOStatus PatientFiles::ReopenWritableFile(const std::string& name, const FileOptions& options,
                                          std::unique_ptr<rocksdb::FSWritableFile>* file,
                                          IODebugContext* debug) {
  return Patiently([&] { return target()->ReopenWritableFile(name, options, file, debug); });
}

IOStatus PatientFiles::ReuseWritableFile(const std::string& name, const std::string& old_name,
                                         const FileOptions& options,
                                         std::unique_ptr<rocksdb::FSWritableFile>* file,
                                         IODebugContext* debug) {
  return Patiently(
      [&] { return target()->ReuseWritableFile(name, old_name, options, file, debug); });
}

IOStatus PatientFiles::NewDirectory(const std::string& name, const rocksdb::IOOptions& options,
                                    std::unique_ptr<rocksdb::FSDirectory>* directory,
                                    IODebugContext* debug) {
  return Patiently([&] { return target()->NewDirectory(name, options, directory, debug); });
}

IOStatus PatientFiles::GetChildren(const std::string& directory, const rocksdb::IOOptions& options,
                                   std::vector<std::string>* names, IODebugContext* debug) {
  return Patiently([&] { return target()->GetChildren(directory, options, names, debug); });
}

}  // namespace prd::history
