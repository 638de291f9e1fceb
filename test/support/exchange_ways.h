#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/exchanges/all_reduce.h"
#include "ddp/exchanges/cast_exchange.h"
#include "ddp/exchanges/check_finite.h"
#include "ddp/exchanges/coded_exchange.h"
#include "ddp/exchanges/desync_guard.h"
#include "ddp/exchanges/hook_exchange.h"
#include "ddp/exchanges/power_sgd.h"
#include "ddp/exchanges/switch_exchange.h"
#include "ddp/exchanges/weighted_mean.h"

namespace ddp::test {

/// An exchange, for tests that try all of them on several devices and streams.
struct ExchangeWay {
  using Group = c10::intrusive_ptr<c10d::Backend>;

  const char* name;
  std::function<std::shared_ptr<Exchange>(const Group&)> make;
  /// The result over two ranks is the gradient times this number if rank r
  /// contributes r + 1 times the gradient.
  double factor = 1.5;
};

inline std::shared_ptr<CodedExchange> coded_exchange(
    const ExchangeWay::Group& group, bool is_narrow) {
  if (is_narrow) {
    return std::make_shared<CodedExchange>(
        group, std::make_shared<NarrowCode>(torch::kBFloat16));
  }
  return std::make_shared<CodedExchange>(group,
                                         std::make_shared<QuantizedCode>(4));
}

/// All exchanges. Over GPUs the host waits in some of them.
inline const std::vector<ExchangeWay>& exchange_ways() {
  using Group = ExchangeWay::Group;
  const auto weighted = [](std::shared_ptr<WeightedMean> mean,
                           const Group& group) {
    mean->set_weight(group->getRank() + 1);
    return mean;
  };
  static const std::vector<ExchangeWay> all{
      {"AllReduce",
       [](const Group& group) { return std::make_shared<AllReduce>(group); }},
      {"CastExchange",
       [](const Group& group) {
         return std::make_shared<CastExchange>(group, torch::kBFloat16);
       }},
      {"CheckFinite",
       [](const Group& group) { return std::make_shared<CheckFinite>(group); }},
      {"CodedExchange, narrow",
       [](const Group& group) { return coded_exchange(group, true); }},
      {"CodedExchange, quantized",
       [](const Group& group) { return coded_exchange(group, false); }},
      {"DesyncGuard",
       [](const Group& group) {
         return std::make_shared<DesyncGuard>(group,
                                              DesyncGuardOptions().every(1));
       }},
      {"HookExchange",
       [](const Group& group) {
         return std::make_shared<HookExchange>(
             [group](const GradientBucket& bucket) {
               std::vector<at::Tensor> tensors{bucket.payload.div_(2)};
               return group->allreduce(tensors);
             });
       }},
      {"HookExchange with a tensor of its own",
       [](const Group& group) {
         return std::make_shared<HookExchange>(
             [group](const GradientBucket& bucket) {
               std::vector<at::Tensor> own{bucket.payload / group->getSize()};
               group->allreduce(own)->wait();
               return own[0];
             });
       }},
      {"PowerSGD",
       [](const Group& group) { return std::make_shared<PowerSGD>(group); }},
      {"SwitchExchange",
       [](const Group& group) {
         return std::make_shared<SwitchExchange>(
             std::make_shared<AllReduce>(group),
             2,
             coded_exchange(group, true));
       }},
      {"WeightedMean",
       [weighted](const Group& group) {
         return weighted(std::make_shared<WeightedMean>(group), group);
       },
       5.0 / 3},
      {"WeightedMean over CastExchange",
       [weighted](const Group& group) {
         return weighted(
             std::make_shared<WeightedMean>(
                 std::make_shared<CastExchange>(group, torch::kBFloat16),
                 group),
             group);
       },
       5.0 / 3},
  };
  return all;
}

}  // namespace ddp::test
