// A folder for one test, removed with it.
#ifndef PRD_TESTS_WORKER_EXAMPLES_TEMP_DIR_H_
#define PRD_TESTS_WORKER_EXAMPLES_TEMP_DIR_H_

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

class TempDir {
 public:
  TempDir() {
    std::string path = (std::filesystem::temp_directory_path() / "prd-example-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = path;
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

#endif  // PRD_TESTS_WORKER_EXAMPLES_TEMP_DIR_H_
