// Whether this process takes more memory than before. Not thread safe.
#ifndef PRD_COMMON_IO_PROCESS_GROWTH_H_
#define PRD_COMMON_IO_PROCESS_GROWTH_H_

namespace prd {

class ProcessGrowth {
 public:
  // By so many bytes it has grown.
  explicit ProcessGrowth(long bytes);
  ~ProcessGrowth();
  ProcessGrowth(const ProcessGrowth&) = delete;
  ProcessGrowth& operator=(const ProcessGrowth&) = delete;

  // Since the last call that said so, or found less. True where the system does not say.
  bool Grown();

 private:
  const long growth_;  // in pages
  const int memory_;   // /proc/self/statm
  long pages_ = 0;
};

}  // namespace prd

#endif  // PRD_COMMON_IO_PROCESS_GROWTH_H_
