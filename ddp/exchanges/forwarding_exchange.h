#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ddp/exchanges/exchange.h"

namespace ddp {

/// An exchange that adds to another one (times it, checks its input): hands on
/// all its calls. Override those in which something is added, and call the
/// inner one there.
///
/// One that changes what the inner one's result means, as a conversion or a
/// division does, also overrides `sums_every_element` to say false.
///
/// Example, the time until a pass has been exchanged:
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
  /// @param inner  what the calls are handed on to.
  /// @param what   it is for, in the error: "the gradients".
  /// @throws c10::Error for null.
  explicit ForwardingExchange(std::shared_ptr<Exchange> inner,
                              const char* what = "the gradients");

  double scale(int ranks) const override;
  int64_t multiple_of(int ranks) const override;
  bool sums_every_element() const override;
  int min_group_size() const override;
  bool is_replica_consistent(int ranks) const override;
  std::string refuses_sparse() const override;
  void start(const GradientBucket& bucket) override;
  void finish(const GradientBucket& bucket) override;
  void abandon() noexcept override;
  std::map<std::string, at::Tensor> state() const override;
  void check_state(
      const std::map<std::string, at::Tensor>& state) const override;
  void load_state(std::map<std::string, at::Tensor> state) override;
  std::vector<Exchange*> inner_exchanges() const override {
    return {inner_.get()};
  }

 protected:
  Exchange& inner() const { return *inner_; }

 private:
  std::shared_ptr<Exchange> inner_;
};

}  // namespace ddp
