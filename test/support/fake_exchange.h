#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ddp/exchange.h"

namespace ddp::test {

/// Records its calls, "start 0" and so on, and runs `on_start` and `on_finish`.
/// Leaves the data unchanged.
class FakeExchange : public Exchange {
 public:
  using Action = std::function<void(const GradientBucket&)>;

  double scale(int /*ranks*/) const override { return 1; }
  std::string refuses_sparse() const override { return ""; }

  void start(const GradientBucket& bucket) override {
    calls_.push_back("start " + std::to_string(bucket.index));
    on_start(bucket);
  }
  void finish(const GradientBucket& bucket) override {
    calls_.push_back("finish " + std::to_string(bucket.index));
    on_finish(bucket);
  }
  void abandon() noexcept override { calls_.emplace_back("abandon"); }

  std::vector<std::string> take_calls() { return std::exchange(calls_, {}); }

  Action on_start = [](const GradientBucket&) {};
  Action on_finish = [](const GradientBucket&) {};

 private:
  std::vector<std::string> calls_;
};

}  // namespace ddp::test
