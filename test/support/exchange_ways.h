#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/exchanges/all_reduce.h"
#include "ddp/exchanges/cast_exchange.h"
#include "ddp/exchanges/hook_exchange.h"
#include "ddp/exchanges/no_exchange.h"
#include "ddp/exchanges/power_sgd.h"
#include "ddp/exchanges/quantized_exchange.h"
#include "ddp/exchanges/shared_memory_all_reduce.h"

namespace ddp::test {

/// An exchange, for the tests on several devices and on the streams of GPUs,
/// and for random programs.
struct ExchangeWay {
  using Group = c10::intrusive_ptr<c10d::Backend>;

  /// The result on a rank for the gradients of all ranks.
  enum class Result {
    mean,         ///< in a `Join` of the ranks that the program chooses
    mean_of_all,  ///< always divided by the number of all ranks
    sum,
    own  ///< the rank's own gradient
  };

  const char* name;
  std::function<std::shared_ptr<Exchange>(const Group&)> make;
  Result result = Result::mean;
  bool is_narrow = false;         ///< sends bfloat16, which has 8 bits
  bool spreads_infinity = false;  ///< other elements become NaN, too
  bool takes_sparse = true;       ///< embeddings may have sparse gradients
  bool only_matrices = false;     ///< changes the gradients of matrices alone
  /// Bound of an element's error in a pass: the sum over ranks of the largest
  /// share, times (coding_error + roundings * the dtype's rounding error). Both
  /// are 0 for an exchange that is exact for small integers.
  double coding_error = 0;
  double roundings = 0;
  bool adds_last_error = false;  ///< a pass adds the error of the last one
  bool on_devices = true;        ///< in the tests of devices and streams
  bool in_programs = true;       ///< in the random programs
  bool waits_in_start = false;   ///< as its hook does

  bool is_lossy() const { return coding_error > 0 || roundings > 0; }
};

template <class Way>
std::shared_ptr<Exchange> over(const ExchangeWay::Group& group) {
  return std::make_shared<Way>(group);
}

inline std::shared_ptr<AllReduce> sum_over(const ExchangeWay::Group& group) {
  return std::make_shared<AllReduce>(group, AllReduceOptions().mean(false));
}

/// Returns the exchanges of the tests. Over GPUs the host waits in some of
/// them.
inline const std::vector<ExchangeWay>& exchange_ways() {
  using Group = ExchangeWay::Group;
  using Result = ExchangeWay::Result;
  static const std::vector<ExchangeWay> all{
      {.name = "AllReduce", .make = over<AllReduce>},
      {.name = "AllReduce, sum", .make = sum_over, .result = Result::sum},
      {.name = "CastExchange",
       .make =
           [](const Group& group) {
             return std::make_shared<CastExchange>(group, torch::kBFloat16);
           },
       .is_narrow = true},
      // Rounds each rank's share and the mean to 1/127 of the largest element
      // of a block.
      {.name = "QuantizedExchange",
       .make =
           [](const Group& group) {
             return std::make_shared<QuantizedExchange>(group, 4);
           },
       .spreads_infinity = true,
       .takes_sparse = false,
       .coding_error = 2.0 / 254,
       .roundings = 1},
      {.name = "HookExchange",
       .make =
           [](const Group& group) {
             return std::make_shared<HookExchange>(
                 [group](const GradientBucket& bucket) {
                   auto payload = bucket.payload;
                   payload.div_(group->getSize());
                   std::vector<at::Tensor> tensors{payload};
                   return group->allreduce(tensors);
                 });
           },
       .result = Result::mean_of_all},
      {.name = "HookExchange with a tensor of its own",
       .make =
           [](const Group& group) {
             return std::make_shared<HookExchange>(
                 [group](const GradientBucket& bucket) {
                   std::vector<at::Tensor> own{bucket.payload /
                                               group->getSize()};
                   group->allreduce(own)->wait();
                   return own[0];
                 });
           },
       .result = Result::mean_of_all,
       .in_programs = false,  // HookExchange is in them
       .waits_in_start = true},
      {.name = "NoExchange",
       .make = [](const Group&) { return std::make_shared<NoExchange>(); },
       .result = Result::own,
       .on_devices = false},
      // A gradient of rank one is only rounded: two products, and the factor
      // between them.
      {.name = "PowerSGD",
       .make =
           [](const Group& group) {
             return std::make_shared<PowerSGD>(
                 group,
                 PowerSGDOptions().min_compression_rate(1).start_after(0));
           },
       .takes_sparse = false,
       .only_matrices = true,
       .roundings = 2,
       .adds_last_error = true},
      {.name = "SharedMemoryAllReduce",
       .make = over<SharedMemoryAllReduce>,
       .on_devices = false,
       .in_programs = false},  // as the default exchange
  };
  return all;
}

/// Returns the exchanges for several devices or GPUs' streams, over two ranks.
/// In these tests rank r contributes r + 1 times a gradient.
inline std::vector<ExchangeWay> device_ways() {
  std::vector<ExchangeWay> ways;
  for (const auto& way : exchange_ways()) {
    if (way.on_devices) {
      ways.push_back(way);
    }
  }
  return ways;
}

/// Returns the result of a device test, as a multiple of the gradient.
inline double device_factor(const ExchangeWay& way) {
  return way.result == ExchangeWay::Result::sum ? 3 : 1.5;
}

}  // namespace ddp::test
