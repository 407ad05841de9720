// A directory of its own for a test, gone afterwards.
#ifndef PRD_TESTS_SERVER_SCRATCH_DIR_H_
#define PRD_TESTS_SERVER_SCRATCH_DIR_H_

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace prd {

class ScratchDir {
 public:
  ScratchDir() {
    std::string name = (std::filesystem::temp_directory_path() / "prd-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      std::perror(name.c_str());
      std::abort();
    }
    path_ = name;
  }
  ~ScratchDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace prd

#endif  // PRD_TESTS_SERVER_SCRATCH_DIR_H_
