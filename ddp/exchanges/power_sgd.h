#pragma once

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/exchanges/exchange.h"

namespace ddp {

namespace detail {

/// Makes the columns of the matrices [batch, rows, columns] orthonormal, in
/// place. Uses Gram-Schmidt for up to two columns and in half precision; a
/// column that is zero or depends on the columns before it then becomes zero.
/// Otherwise uses QR.
/// @param epsilon  added to the norms that Gram-Schmidt divides by.
void orthogonalize(const at::Tensor& matrices, double epsilon);

/// Draws a sequence of seeds below 1e9. Equals numpy's
/// RandomState(seed).randint(1'000'000'000), with which PyTorch's PowerSGD
/// seeds the random matrices of its steps.
class SeedDraws {
 public:
  explicit SeedDraws(uint32_t seed) : random_(seed) {}

  uint32_t next();

  /// Returns the number of seeds drawn so far.
  int64_t count() const { return count_; }

 private:
  std::mt19937 random_;
  int64_t count_ = 0;
};

}  // namespace detail

/// Options of `PowerSGD`, the same on all ranks. The defaults are PyTorch's.
///
/// Example:
/// @code
///   auto exchange = std::make_shared<ddp::PowerSGD>(
///       ddp::process_group(), ddp::PowerSGDOptions().rank(2));
/// @endcode
struct PowerSGDOptions {
  /// Rank of the matrices that are sent, at least 1. A higher rank is more
  /// exact and needs more bytes. Usual values are 1 to 4, and 32 for some
  /// language models.
  TORCH_ARG(int64_t, rank) = 1;
  /// A gradient is compressed only if it becomes smaller by more than this
  /// factor. Must be positive. Vectors are sent uncompressed, unless the factor
  /// is below 1.
  TORCH_ARG(double, min_compression_rate) = 2;
  /// Whether the compression error of a step is added to the next step's
  /// gradient. Without it training mostly suffers. Costs memory as large as the
  /// compressed gradients.
  TORCH_ARG(bool, error_feedback) = true;
  /// Whether a step begins with the factor of the previous step instead of
  /// random numbers, so that the steps converge to the best matrix of that
  /// rank.
  TORCH_ARG(bool, warm_start) = true;
  /// Added to the norms of columns if the rank is 1 or 2, or the gradients are
  /// in half precision; for example 1e-8 for gradients that are nearly zero.
  /// Columns that are exactly zero need no epsilon. Must not be negative.
  TORCH_ARG(double, orthogonalization_epsilon) = 0;
  /// Seed of the random numbers, which equal PyTorch's with the same seed.
  TORCH_ARG(uint32_t, seed) = 0;
  /// Number of reduced passes at the beginning in which gradients are averaged
  /// uncompressed (PyTorch's start_powerSGD_iter), because a compression harms
  /// the first steps of a training. Must not be negative.
  TORCH_ARG(int64_t, start_after) = 1000;
};

/// Numbers of elements before and after compression, over all passes but the
/// first `start_after`.
struct PowerSGDStatistics {
  int64_t numel_before = 0;  ///< elements of gradients
  int64_t numel_after = 0;   ///< elements sent

  /// Returns numel_before / numel_after; 0 before the first pass.
  double compression_rate() const {
    return numel_after == 0 ? 0
                            : static_cast<double>(numel_before) /
                                  static_cast<double>(numel_after);
  }
};

/// Averages gradients in compressed form: of a matrix M with n rows and m
/// columns the ranks exchange the factors P (n x rank) and Q (m x rank), and
/// use P Q^T as its mean. The compression error of a rank is added to its next
/// gradient. All other dense gradients are averaged uncompressed. Sparse ones
/// are refused: the model's constructor throws c10::Error. The results equal
/// the results of PyTorch's powerSGD_hook up to rounding, except that a
/// gradient of zeros does not become NaN, and a gradient of lower rank than
/// `rank` does not become noise.
///
/// In a step the ranks all-reduce the elements of all uncompressed gradients
/// and (n + m) rank elements for each compressed matrix; over p ranks, each
/// rank sends 2(p-1)/p times as many elements. The second half of the exchange,
/// from P to Q, runs at the end of the pass, so this exchange is worthwhile if
/// the network is much slower than the computation.
///
/// A compressed gradient with inf or NaN on any rank becomes NaN as a whole on
/// all ranks, and the error and factors of its parameter keep their values. In
/// an uncompressed gradient only these elements are not finite. So a
/// `GradScaler` skips the step and the training continues. Errors are stored
/// multiplied by the loss scale of their pass; if the loss scale changes by a
/// factor of 2, the error of one pass gets the weight 2 or 1/2.
///
/// Source: Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression
/// for Distributed Optimization", NeurIPS 2019.
///
/// Example:
/// @code
///   auto group = ddp::process_group();
///   ddp::DistributedDataParallel model(
///       net,
///       ddp::DistributedDataParallelOptions().exchange(
///           std::make_shared<ddp::PowerSGD>(
///               group, ddp::PowerSGDOptions().rank(2).start_after(100))));
/// @endcode
class PowerSGD : public Exchange {
 public:
  /// @throws c10::Error if `group` is null or an option is out of range.
  explicit PowerSGD(c10::intrusive_ptr<c10d::Backend> group,
                    const PowerSGDOptions& options = {});
  ~PowerSGD() override;

  double scale(int ranks) const override;
  /// @throws c10::Error on this rank if an entry of a loaded state is missing
  ///   for a parameter or has other sizes.
  void start(const GradientBucket& bucket) override;
  /// @throws c10::Error on all ranks, in the first pass, if the ranks' options
  ///   differ.
  void finish(const GradientBucket& bucket) override;
  void abandon() noexcept override;

  /// Returns the numbers of elements since construction.
  PowerSGDStatistics statistics() const { return statistics_; }

  /// Returns the state for a resumed training: errors and factors by the names
  /// of their parameters, and the numbers of random draws and of passes. The
  /// errors belong to this rank, so each rank saves its own state.
  c10::IValue state_dict() const override;
  /// @throws c10::Error if the number of draws is missing, or an entry is no
  ///   tensor under a parameter's name.
  void check_state_dict(const c10::IValue& state) const override;
  /// Continues from a state that `state_dict` returned. Call it between two
  /// passes, on all ranks. Errors and factors are restored in the next pass,
  /// which throws if an entry for a parameter is missing or has other sizes.
  /// @throws c10::Error as `check_state_dict`.
  void load_state_dict(const c10::IValue& state) override;

 private:
  struct Factor;
  struct Bucket;

  /// Returns true in the first passes, which compress nothing.
  bool is_warming_up() const { return passes_ < options_.start_after(); }
  void begin(Bucket& bucket, const GradientBucket& given);
  void compress(Bucket& bucket, const GradientBucket& given);
  void send(Bucket& bucket);
  void verify_options(c10::Device device);
  void plan(Bucket& bucket) const;
  void add_errors(Bucket& bucket) const;
  void make_qs(Bucket& bucket);
  static std::vector<std::pair<at::Tensor, at::Tensor>> plain_pieces(
      const Bucket& bucket);
  static void store_product(Factor& factor,
                            const at::Tensor& q_before,
                            const at::Tensor& gradient);

  c10::intrusive_ptr<c10d::Backend> group_;
  PowerSGDOptions options_;
  bool is_verified_ = false;  // the ranks' options are equal
  std::vector<Bucket> buckets_;
  c10::IValue loaded_;  // state that no pass has used yet; else None
  detail::SeedDraws draws_;
  int64_t passes_ = 0;  // finished
  PowerSGDStatistics statistics_;
};

}  // namespace ddp
