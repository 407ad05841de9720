// A broken invariant ends a run at once: what comes after it would only hide its cause.
#ifndef PRD_ENGINES_VIOLATION_H_
#define PRD_ENGINES_VIOLATION_H_

#include <stdexcept>
#include <string>
#include <utility>

namespace prd {

// Thrown through the pure code under test; the run is over then and nothing is used again.
class Violation : public std::runtime_error {
 public:
  Violation(std::string invariant, const std::string& what)
      : std::runtime_error(invariant + ": " + what), invariant_(std::move(invariant)) {}
  const std::string& invariant() const { return invariant_; }

 private:
  std::string invariant_;
};

}  // namespace prd

#endif  // PRD_ENGINES_VIOLATION_H_
