#include "test/ddp/random_programs/program_exchange.h"

#include "ddp/exchanges/all_reduce.h"
#include "ddp/exchanges/cast_exchange.h"
#include "ddp/exchanges/check_finite.h"
#include "ddp/exchanges/coded_exchange.h"
#include "ddp/exchanges/hook_exchange.h"
#include "ddp/exchanges/no_exchange.h"
#include "ddp/exchanges/power_sgd.h"
#include "ddp/exchanges/switch_exchange.h"

namespace ddp::test {
namespace {

std::shared_ptr<Exchange> sum_over(const Group& group) {
  return std::make_shared<AllReduce>(group, AllReduceOptions().mean(false));
}

std::shared_ptr<Exchange> hook_over(const Group& group) {
  return std::make_shared<HookExchange>([group](const auto& bucket) {
    auto payload = bucket.payload;
    payload.div_(group->getSize());
    std::vector<at::Tensor> tensors{payload};
    return group->allreduce(tensors);
  });
}

}  // namespace

std::shared_ptr<Exchange> make_exchange(const Program& program,
                                        const Group& group) {
  switch (program.combine) {
    case Combine::mean:
      return nullptr;
    case Combine::sum:
      return sum_over(group);
    case Combine::checked:
      return std::make_shared<CheckFinite>(group);
    case Combine::hook:
      return hook_over(group);
    case Combine::narrow:
      return std::make_shared<CastExchange>(group, torch::kBFloat16);
    case Combine::coded:
      return std::make_shared<CodedExchange>(
          group, std::make_shared<NarrowCode>(torch::kBFloat16));
    case Combine::quantized:
      return std::make_shared<CodedExchange>(
          group, std::make_shared<QuantizedCode>(8));
    case Combine::low_rank:
      return std::make_shared<PowerSGD>(
          group, PowerSGDOptions().min_compression_rate(1));
    case Combine::switched:
      return std::make_shared<SwitchExchange>(
          std::make_shared<AllReduce>(group), kPassesOfFirst, sum_over(group));
    case Combine::weights:
      return std::make_shared<WeightedMean>(group);
    case Combine::none:
      return std::make_shared<NoExchange>();
  }
  return nullptr;
}

}  // namespace ddp::test
