#include "worker/examples/snapshot.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <tuple>

namespace example {
namespace {

constexpr char kMagic[8] = {'P', 'R', 'D', 'S', 'N', 'A', 'P', '1'};
constexpr std::string_view kPrefix = "snapshot-";
constexpr std::string_view kSuffix = ".bin";

struct FileHeader {
  char magic[8];
  std::uint64_t count;  // parameters that follow
  SnapshotHeader header;
};

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

[[noreturn]] void Fail(const std::string& path, const std::string& what) {
  throw std::runtime_error(path + ": " + what);
}

// Null if there is no such file.
File OpenChecked(const std::string& path, std::size_t parameters, SnapshotHeader* header) {
  File file(std::fopen(path.c_str(), "rb"));
  if (!file) {
    if (errno == ENOENT) return nullptr;
    Fail(path, std::strerror(errno));
  }
  FileHeader head;
  if (std::fread(&head, sizeof head, 1, file.get()) != 1) Fail(path, "is shorter than its header");
  if (std::memcmp(head.magic, kMagic, sizeof kMagic) != 0) Fail(path, "is not a snapshot");
  if (head.count != parameters) {
    Fail(path, "is of another model: it holds " + std::to_string(head.count) +
                   " parameters, this model has " + std::to_string(parameters));
  }
  *header = head.header;
  return file;
}

// Takes a number that begins `text` off it.
template <typename T>
bool TakeNumber(std::string_view* text, T* number) {
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *number);
  if (error != std::errc()) return false;
  text->remove_prefix(static_cast<std::size_t>(end - text->data()));
  return true;
}

bool ParseName(std::string_view name, SnapshotFile* file) {
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  if (!TakeNumber(&name, &file->rank) || !name.starts_with('-')) return false;
  name.remove_prefix(1);
  return TakeNumber(&name, &file->time_ns) && name == kSuffix;
}

}  // namespace

std::int64_t MonotonicNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void WriteSnapshot(const std::string& dir, const Snapshot& snapshot) {
  const std::string path = dir + "/" + std::string(kPrefix) + std::to_string(snapshot.header.rank) +
                           "-" + std::to_string(snapshot.header.time_ns) + std::string(kSuffix);
  const std::string unfinished = path + ".part";
  File file(std::fopen(unfinished.c_str(), "wb"));
  if (!file) Fail(unfinished, std::strerror(errno));
  FileHeader head{.magic = {}, .count = snapshot.parameters.size(), .header = snapshot.header};
  std::memcpy(head.magic, kMagic, sizeof kMagic);
  const bool written =
      std::fwrite(&head, sizeof head, 1, file.get()) == 1 &&
      std::fwrite(snapshot.parameters.data(), sizeof(float), snapshot.parameters.size(),
                  file.get()) == snapshot.parameters.size() &&
      std::fflush(file.get()) == 0;
  if (!written) Fail(unfinished, std::strerror(errno));
  file.reset();
  if (std::rename(unfinished.c_str(), path.c_str()) != 0) Fail(path, std::strerror(errno));
}

std::optional<SnapshotHeader> ReadSnapshotHeader(const std::string& path, std::size_t parameters) {
  SnapshotHeader header;
  if (!OpenChecked(path, parameters, &header)) return std::nullopt;
  return header;
}

std::optional<Snapshot> ReadSnapshot(const std::string& path, std::size_t parameters) {
  Snapshot snapshot;
  const File file = OpenChecked(path, parameters, &snapshot.header);
  if (!file) return std::nullopt;
  snapshot.parameters.resize(parameters);
  if (std::fread(snapshot.parameters.data(), sizeof(float), parameters, file.get()) != parameters) {
    Fail(path, "ends early");
  }
  return snapshot;
}

std::vector<SnapshotFile> ListSnapshots(const std::string& dir) {
  std::vector<SnapshotFile> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error)) {
    SnapshotFile file;
    if (!ParseName(entry.path().filename().string(), &file)) continue;
    file.path = entry.path().string();
    files.push_back(std::move(file));
  }
  if (error) Fail(dir, error.message());
  std::sort(files.begin(), files.end(), [](const SnapshotFile& a, const SnapshotFile& b) {
    return std::tie(a.rank, a.time_ns) < std::tie(b.rank, b.time_ns);
  });
  return files;
}

}  // namespace example
