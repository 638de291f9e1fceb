#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ddp/exchanges/exchange.h"

namespace ddp {

/// One exchange for the first backward passes, another one from then on: for
/// compressions that would harm the beginning of a training, and for local SGD,
/// which averages gradients at first and parameters later.
///
/// Example, PowerSGD after 1,000 steps (PyTorch's start_powerSGD_iter), and
/// post-local SGD (its post_localSGD_hook) within hosts or, with `NoExchange`,
/// within ranks:
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
  /// @param passes  reduced backward passes that `first` has; `passes_left()`
  ///   of the interrupted training where one is resumed without `Checkpoint`.
  ///   The same on all ranks.
  /// @throws c10::Error when one is missing or passes is negative.
  SwitchExchange(std::shared_ptr<Exchange> first,
                 int64_t passes,
                 std::shared_ptr<Exchange> later);

  double scale(int ranks) const override;
  int64_t multiple_of(int ranks) const override;
  /// Either may be over some of the ranks alone.
  bool sums_every_element() const override { return false; }
  int min_group_size() const override;
  bool is_replica_consistent(int ranks) const override;
  std::string refuses_sparse() const override;
  void start(const GradientBucket& bucket) override;
  void finish(const GradientBucket& bucket) override;
  void abandon() noexcept override;
  /// The passes left, and the states of both exchanges.
  std::map<std::string, at::Tensor> state() const override;
  void check_state(
      const std::map<std::string, at::Tensor>& state) const override;
  void load_state(std::map<std::string, at::Tensor> state) override;
  std::vector<Exchange*> inner_exchanges() const override {
    return {first_.get(), later_.get()};
  }

  /// Number of reduced passes that `first` still has.
  int64_t passes_left() const { return passes_; }

 private:
  Exchange& current() const { return passes_ > 0 ? *first_ : *later_; }

  std::shared_ptr<Exchange> first_;
  std::shared_ptr<Exchange> later_;
  int64_t passes_;  // left
};

}  // namespace ddp
