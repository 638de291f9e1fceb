#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ddp/exchanges/exchange.h"

namespace ddp {

/// Uses one exchange for the first backward passes and another one afterwards.
/// For compressions that would harm the beginning of a training, and for local
/// SGD, which averages gradients at first and parameters later. If an exchange
/// covers only some of the ranks, a `GradScaler` needs the group of all ranks
/// (`GradScalerOptions::process_group`), so that all ranks skip the same steps.
/// CPU ranks use Gloo, also within a `SharedMemoryAllReduce`.
///
/// Example: PowerSGD after 1,000 steps (PyTorch's start_powerSGD_iter), and
/// post-local SGD (PyTorch's post_localSGD_hook) within hosts or, with
/// `NoExchange`, within ranks.
/// @code
///   auto all = ddp::process_group();
///   auto compressed = std::make_shared<ddp::SwitchExchange>(
///       std::make_shared<ddp::AllReduce>(all),
///       1000,
///       std::make_shared<ddp::PowerSGD>(all));
///   auto local = std::make_shared<ddp::SwitchExchange>(
///       std::make_shared<ddp::AllReduce>(all),
///       100,
///       std::make_shared<ddp::AllReduce>(ranks_of_this_host));
/// @endcode
class SwitchExchange : public Exchange {
 public:
  /// @param first   exchange of the first passes.
  /// @param passes  number of reduced backward passes for `first`, the same on
  ///   all ranks. To resume a training without `Checkpoint`, pass the value of
  ///   `passes_left()` after its last pass.
  /// @param later   exchange of all later passes.
  /// @throws c10::Error if an exchange is null or held by a model or another
  ///   exchange, or if `passes` is negative.
  SwitchExchange(std::shared_ptr<Exchange> first,
                 int64_t passes,
                 std::shared_ptr<Exchange> later);

  double scale(int ranks) const override;
  int64_t multiple_of(int ranks) const override;
  /// Returns the smaller number of both exchanges that is not 0, else 0.
  int min_group_size() const override;
  std::string refuses_sparse() const override;
  void start(const GradientBucket& bucket) override;
  void finish(const GradientBucket& bucket) override;
  void abandon() noexcept override;
  /// Returns the number of passes left and the states of both exchanges.
  c10::IValue state_dict() const override;
  void check_state_dict(const c10::IValue& state) const override;
  void load_state_dict(const c10::IValue& state) override;

  /// Returns the number of reduced passes that `first` will still exchange.
  int64_t passes_left() const { return passes_; }

 private:
  Exchange& current() const { return passes_ > 0 ? *first_ : *later_; }

  detail::ExchangeClaim first_;
  detail::ExchangeClaim later_;
  int64_t passes_;  // left for `first_`
};

}  // namespace ddp
