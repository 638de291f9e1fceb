#pragma once

#include <memory>
#include <string>

#include "ddp/exchanges/exchange.h"

namespace ddp {

/// Forwards all calls to an inner exchange, except `checkpoint_scope`, which
/// stays per_rank_modulo. Base class of exchanges that add to another exchange
/// (timing, checks): override the calls that need the addition, and call the
/// inner exchange there.
///
/// All ranks need the same class of exchange, also of one that only measures:
/// `DistributedDataParallel` throws on all ranks if the classes differ.
///
/// Example: adds up the time that the host spends in `finish`. On the CPU this
/// is the wait for the exchange; with NCCL the host does not wait there.
/// @code
///   class Timed : public ddp::ForwardingExchange {
///    public:
///     using ForwardingExchange::ForwardingExchange;
///     void finish(const ddp::GradientBucket& bucket) override {
///       const auto start = std::chrono::steady_clock::now();
///       inner().finish(bucket);
///       waited += std::chrono::steady_clock::now() - start;
///     }
///     std::chrono::steady_clock::duration waited{};
///   };
/// @endcode
class ForwardingExchange : public Exchange {
 public:
  /// @param inner  receives the calls.
  /// @param what   the purpose of `inner` in the error message: "the
  ///   gradients".
  /// @throws c10::Error if `inner` is null, or if a model or another exchange
  ///   holds it.
  explicit ForwardingExchange(std::shared_ptr<Exchange> inner,
                              const char* what = "the gradients");

  double scale(int ranks) const override;
  int64_t multiple_of(int ranks) const override;
  at::Tensor allocate(int64_t numel, const at::TensorOptions& options) override;
  std::string refuses_sparse() const override;
  void start(const GradientBucket& bucket) override;
  void finish(const GradientBucket& bucket) override;
  void abandon() noexcept override;
  c10::IValue state_dict() const override;
  void check_state_dict(const c10::IValue& state) const override;
  void load_state_dict(const c10::IValue& state) override;

 protected:
  /// Returns the inner exchange.
  Exchange& inner() const { return *inner_; }

 private:
  detail::ExchangeClaim inner_;
};

}  // namespace ddp
