#include "tools/spectrum/spectrum.h"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <functional>

namespace prd {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

}  // namespace

bool SquareMatrix::IsSymmetric() const {
  for (std::size_t i = 0; i < n_; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (std::abs((*this)(i, j) - (*this)(j, i)) >= 1e-9) return false;
    }
  }
  return true;
}

std::optional<std::vector<std::complex<double>>> Eigenvalues(const SquareMatrix& matrix) {
  const auto n = static_cast<Eigen::Index>(matrix.size());
  const Eigen::MatrixXd copy = Eigen::Map<const RowMajor>(matrix.data(), n, n);
  std::vector<std::complex<double>> values;
  if (matrix.IsSymmetric()) {
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(copy, Eigen::EigenvaluesOnly);
    if (solver.info() != Eigen::Success) return std::nullopt;
    for (Eigen::Index i = 0; i < n; ++i) values.emplace_back(solver.eigenvalues()(i));
    return values;
  }
  const Eigen::EigenSolver<Eigen::MatrixXd> solver(copy, false);
  if (solver.info() != Eigen::Success) return std::nullopt;
  for (Eigen::Index i = 0; i < n; ++i) values.push_back(solver.eigenvalues()(i));
  return values;
}

std::vector<double> EigenvalueModuli(const SquareMatrix& matrix) {
  std::vector<double> moduli;
  const auto values = Eigenvalues(matrix);
  if (!values) return moduli;
  for (const std::complex<double>& value : *values) moduli.push_back(std::abs(value));
  std::sort(moduli.begin(), moduli.end(), std::greater<>());
  return moduli;
}

}  // namespace prd
