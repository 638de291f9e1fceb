#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/exchanges/detail/low_rank.h"
#include "ddp/exchanges/detail/seed_draws.h"
#include "ddp/exchanges/exchange.h"

namespace ddp {

/// Options of `PowerSGD`; the defaults are PyTorch's. The same on all ranks.
///
/// Example:
/// @code
///   auto exchange = std::make_shared<ddp::PowerSGD>(
///       ddp::process_group(), ddp::PowerSGDOptions().rank(2));
/// @endcode
struct PowerSGDOptions {
  /// Of the matrices that are sent, from 1: the higher, the more exact and the
  /// more bytes. 1 to 4 is usual, 32 for some language models.
  TORCH_ARG(int64_t, rank) = 1;
  /// Only a gradient that becomes smaller by more than this factor is
  /// compressed; positive. Vectors are sent as they are.
  TORCH_ARG(double, min_compression_rate) = 2;
  /// What a step has lost is added to the next step's gradient. Without it
  /// training mostly suffers. Costs memory as large as the compressed
  /// gradients.
  TORCH_ARG(bool, error_feedback) = true;
  /// Begin with the factor of the step before, not with random numbers: the
  /// steps then come closer to the best matrix of that rank.
  TORCH_ARG(bool, warm_start) = true;
  /// Added to the norms of columns, where the rank is 1 or 2; 1e-8, say, for
  /// gradients that are nearly zero. Those that are zero need none.
  TORCH_ARG(double, orthogonalization_epsilon) = 0;
  /// Of the random numbers. PyTorch's with the same seed.
  TORCH_ARG(uint32_t, seed) = 0;
};

/// Elements that `PowerSGD` has been given and has sent, over all passes.
struct PowerSGDStatistics {
  int64_t numel_before = 0;
  int64_t numel_after = 0;

  /// 0 before the first pass.
  double compression_rate() const {
    return numel_after == 0 ? 0
                            : static_cast<double>(numel_before) /
                                  static_cast<double>(numel_after);
  }
};

/// The mean of gradients, compressed: of a matrix M with n rows and m columns
/// the ranks exchange P (n x rank) and Q (m x rank), and take P Q^T for its
/// mean. What that leaves out on a rank is added to its next gradient. All
/// other gradients are averaged as they are. PyTorch's powerSGD_hook, number
/// for number.
///
/// A rank sends in a step 2(p-1)/p times the vectors and, for each matrix,
/// (n + m) rank elements. The second half of the exchange, from P to Q, is done
/// at the end of the pass; so it pays where the network is much slower than the
/// computation. The first steps of a training want exact gradients:
/// `SwitchExchange` gives them (PyTorch: start_powerSGD_iter).
///
/// A gradient with inf or NaN on any rank becomes NaN on all of them, and the
/// errors and factors of its parameter stay as they were: a `GradScaler` skips
/// the step and the training goes on. Errors are kept in the units of their
/// pass's scale; a change of the scale by 2 weighs the error of one pass by 2
/// or 1/2.
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
///           std::make_shared<ddp::SwitchExchange>(
///               std::make_shared<ddp::AllReduce>(group),
///               1000,
///               std::make_shared<ddp::PowerSGD>(group))));
/// @endcode
class PowerSGD : public Exchange {
 public:
  /// @throws c10::Error when an option makes no sense.
  explicit PowerSGD(c10::intrusive_ptr<c10d::Backend> group,
                    const PowerSGDOptions& options = {});

  double scale(int ranks) const override;
  int min_group_size() const override { return group_->getSize(); }
  /// @throws c10::Error on all ranks when their options differ, in the first
  ///   pass.
  void start(const GradientBucket& bucket) override;
  void finish(const GradientBucket& bucket) override;
  void abandon() noexcept override;

  PowerSGDStatistics statistics() const { return statistics_; }

  /// What a resumed training continues from: errors and factors by their
  /// parameters' names, and the random numbers that were drawn. Errors are this
  /// rank's own, so each rank saves its state.
  std::map<std::string, at::Tensor> state() const override;
  /// Between two passes, on all ranks. Errors and factors are taken when their
  /// buckets come.
  /// @throws c10::Error when it does not hold the number of draws, or, in the
  ///   pass, what a parameter needs.
  void check_state(
      const std::map<std::string, at::Tensor>& state) const override;
  void load_state(std::map<std::string, at::Tensor> state) override;

 private:
  struct Factor {
    std::string name;   // of the parameter
    at::Tensor matrix;  // [1, n, m]; the gradient's memory where it can be
    at::Tensor p;       // [1, n, rank], a part of sent
    at::Tensor q;       // [1, m, rank], a part of qs
    at::Tensor error;   // [1, n, m]; undefined without feedback
    at::Tensor is_bad;  // one bool, in finish: inf or NaN on a rank
  };
  struct Bucket {
    bool is_planned = false;
    detail::LowRankLayout layout;
    std::vector<Factor> factors;
    std::vector<at::Tensor> gradients;  // pieces of the payload
    at::Tensor sent;  // gradients that are not compressed, then all P
    at::Tensor qs;
    c10::intrusive_ptr<c10d::Work> work;
  };

  Bucket& begin(const GradientBucket& bucket);
  void add_errors(Bucket& bucket) const;
  void make_qs(Bucket& bucket);
  static std::vector<std::pair<at::Tensor, at::Tensor>> plain_pieces(
      const Bucket& bucket);
  static void take_product(Factor& factor,
                           const at::Tensor& q_before,
                           const at::Tensor& gradient);

  c10::intrusive_ptr<c10d::Backend> group_;
  PowerSGDOptions options_;
  std::vector<Bucket> buckets_;
  std::map<std::string, at::Tensor> loaded_;
  detail::SeedDraws draws_;
  PowerSGDStatistics statistics_;
};

}  // namespace ddp
