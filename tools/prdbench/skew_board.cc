#include "tools/prdbench/skew_board.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <utility>

namespace prd::bench {
namespace {

constexpr std::uint64_t kMagic = 0x7072642d736b6577;  // "prd-skew"

// From the last process's arrival to the start: time for the kernel to wake all the others, so that
// the first turn does not come before a process can take it.
constexpr std::int64_t kLeadNs = 5'000'000;

// Between processes: the waits of std::atomic are for one process's threads.
long Futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value) {
  return syscall(SYS_futex, word, operation, value, nullptr, nullptr, 0);
}

void SleepUntil(std::int64_t at_ns) {
  const timespec at{at_ns / 1'000'000'000, at_ns % 1'000'000'000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) == EINTR) {
  }
}

Status Failed(const std::string& what) {
  return Status(Code::kUnavailable, what + ": " + std::strerror(errno));
}

}  // namespace

struct Board::Header {
  std::uint64_t magic = kMagic;
  std::int32_t processes = 0;
  std::int32_t iterations = 0;
  std::int64_t skew_ns = 0;
  std::atomic<std::int64_t> start_ns{0};
  std::atomic<std::uint32_t> arrived{0};
  std::atomic<std::uint32_t> met{0};  // a futex
  char library[64] = {};
};

Result<Board> Board::Map(int fd, std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return Failed("cannot map the shared board");
  Board board;
  board.header_ = static_cast<Header*>(memory);
  board.bytes_ = bytes;
  return board;
}

Result<Board> Board::Create(const std::string& name, int processes, int iterations,
                            std::int64_t skew_ns) {
  const std::size_t samples =
      static_cast<std::size_t>(processes) * static_cast<std::size_t>(iterations);
  const std::size_t bytes = sizeof(Header) + samples * sizeof(Sample);
  const int fd = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return Failed("cannot create shared memory " + name);
  // Reserved now: a full /dev/shm is an error here, and not a SIGBUS later.
  errno = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  Result<Board> board = errno == 0 ? Map(fd, bytes) : Failed("cannot reserve shared memory");
  close(fd);
  if (!board.ok()) {
    shm_unlink(name.c_str());
    return board;
  }
  board->owned_ = name;
  board->header_ = new (board->header_) Header;
  board->header_->processes = processes;
  board->header_->iterations = iterations;
  board->header_->skew_ns = skew_ns;
  return board;
}

Result<Board> Board::Open(const std::string& name) {
  const int fd = shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) return Failed("cannot open shared memory " + name);
  struct stat info {};
  const bool sized =
      fstat(fd, &info) == 0 && static_cast<std::size_t>(info.st_size) > sizeof(Header);
  Result<Board> board = sized ? Map(fd, static_cast<std::size_t>(info.st_size))
                              : Status(Code::kInvalidArgument, name + " is not a board");
  close(fd);
  if (board.ok() && board->header_->magic != kMagic) {
    return Status(Code::kInvalidArgument, name + " is not a board");
  }
  return board;
}

Board& Board::operator=(Board&& other) noexcept {
  std::swap(header_, other.header_);
  std::swap(bytes_, other.bytes_);
  std::swap(owned_, other.owned_);
  return *this;
}

Board::~Board() {
  if (header_ != nullptr) munmap(header_, bytes_);
  if (!owned_.empty()) shm_unlink(owned_.c_str());
}

int Board::processes() const { return header_->processes; }
int Board::iterations() const { return header_->iterations; }
int Board::met() const { return static_cast<int>(header_->met.load()); }

void Board::Meet() {
  const std::uint32_t before = header_->met.load();
  if (header_->arrived.fetch_add(1) + 1 == static_cast<std::uint32_t>(header_->processes)) {
    header_->arrived.store(0);
    header_->start_ns.store(MonotonicNow() + kLeadNs);
    header_->met.store(before + 1);
    Futex(&header_->met, FUTEX_WAKE, INT_MAX);
    return;
  }
  while (header_->met.load() == before) Futex(&header_->met, FUTEX_WAIT, before);
}

std::int64_t Board::MeetAndAwaitTurn(int process) {
  Meet();
  SleepUntil(header_->start_ns.load() + (process + 1) * header_->skew_ns);
  return MonotonicNow();
}

Board::Sample& Board::at(int iteration, int process) {
  const std::size_t index =
      static_cast<std::size_t>(iteration) * static_cast<std::size_t>(header_->processes) +
      static_cast<std::size_t>(process);
  return reinterpret_cast<Sample*>(header_ + 1)[index];
}

void Board::SetLibrary(const std::string& name) {
  const std::size_t length = std::min(name.size(), sizeof header_->library - 1);
  std::memcpy(header_->library, name.data(), length);
  header_->library[length] = '\0';
}

std::string Board::library() const { return header_->library; }

std::int64_t MonotonicNow() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

}  // namespace prd::bench
