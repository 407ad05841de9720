// Eigenvalues of small matrices: how fast averages spread among workers. Eigen does the work, and
// is compiled in spectrum.cc alone.
#ifndef PRD_TOOLS_SPECTRUM_SPECTRUM_H_
#define PRD_TOOLS_SPECTRUM_SPECTRUM_H_

#include <complex>
#include <cstddef>
#include <optional>
#include <vector>

namespace prd {

// n x n, zero but for the diagonal.
class SquareMatrix {
 public:
  explicit SquareMatrix(std::size_t n, double diagonal = 0) : n_(n), values_(n * n) {
    for (std::size_t i = 0; i < n; ++i) (*this)(i, i) = diagonal;
  }
  double& operator()(std::size_t row, std::size_t column) { return values_[row * n_ + column]; }
  double operator()(std::size_t row, std::size_t column) const {
    return values_[row * n_ + column];
  }
  std::size_t size() const { return n_; }
  const double* data() const { return values_.data(); }  // row by row
  bool IsSymmetric() const;                              // to 1e-9

 private:
  std::size_t n_;
  std::vector<double> values_;
};

// In no order. nullopt: the iteration did not converge.
std::optional<std::vector<std::complex<double>>> Eigenvalues(const SquareMatrix& matrix);

// The moduli of the eigenvalues, the largest first; none: it did not converge.
std::vector<double> EigenvalueModuli(const SquareMatrix& matrix);

}  // namespace prd

#endif  // PRD_TOOLS_SPECTRUM_SPECTRUM_H_
