#include <torch/cuda.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <c10/cuda/CUDAFunctions.h>

#include <cstdio>
#include <utility>
#include <vector>

#include "ddp/exchanges/all_reduce.h"
#include "ddp/exchanges/cast_exchange.h"
#include "ddp/exchanges/power_sgd.h"
#include "ddp/exchanges/quantized_exchange.h"
#include "ddp/job/collectives.h"
#include "ddp/job/process_group.h"
#include "test/fake_gpu/control.h"
#include "test/gpu/two_ranks.h"

namespace ddp::test {
namespace {

using Options = DistributedDataParallelOptions;
using torch::Tensor;

constexpr int kFirstSteps = 5;
constexpr int kSteps = 50;
// Tolerances of exchanges that round gradients to bfloat16, or compress them.
constexpr double kRounded = 2e-4;
constexpr double kCompressed = 1e-3;

/// Makes the functions of LibTorch throw that make the host wait for the GPU,
/// such as item().
class NoHostWaits {
 public:
  NoHostWaits() { set(c10::cuda::SyncDebugMode::L_ERROR); }
  NoHostWaits(const NoHostWaits&) = delete;
  NoHostWaits& operator=(const NoHostWaits&) = delete;
  ~NoHostWaits() { set(c10::cuda::SyncDebugMode::L_DISABLED); }

 private:
  static void set(c10::cuda::SyncDebugMode mode) {
    c10::cuda::warning_state().set_sync_debug_mode(mode);
  }
};

struct Way {
  const char* name;
  std::function<Options()> options;
  /// Greatest difference of a parameter from a training without an option.
  double tolerance = 1e-5;
};

Options with(std::shared_ptr<Exchange> exchange) {
  return Options().exchange(std::move(exchange));
}

/// Returns the options to try.
const std::vector<Way>& ways() {
  static const std::vector<Way> all{
      {"no option", [] { return Options(); }},
      {"gradient_as_bucket_view",
       [] { return Options().gradient_as_bucket_view(true); }},
      {"find_unused_parameters",
       [] { return Options().find_unused_parameters(true); }},
      {"static_graph", [] { return Options().static_graph(true); }},
      {"CastExchange",
       [] {
         return with(
             std::make_shared<CastExchange>(process_group(), torch::kBFloat16));
       },
       kRounded},
      {"QuantizedExchange",
       [] {
         return with(std::make_shared<QuantizedExchange>(process_group(), 64));
       },
       kCompressed},
      {"PowerSGD, before its start",
       [] { return with(std::make_shared<PowerSGD>(process_group())); }},
      {"PowerSGD",
       [] {
         return with(std::make_shared<PowerSGD>(
             process_group(), PowerSGDOptions().start_after(0)));
       },
       kCompressed}};
  return all;
}

/// Returns the parameters after the training, which must be equal on all ranks.
Tensor check_way(const Way& way) {
  const auto device = local_device();
  torch::manual_seed(1);
  torch::nn::Sequential net(
      torch::nn::Linear(32, 32), torch::nn::Tanh(), torch::nn::Linear(32, 4));
  net->to(device);
  torch::optim::SGD optimizer(net->parameters(), 0.01);
  DistributedDataParallel model(net, way.options());
  const auto x = torch::ones({8, 32}, device) * (rank() + 1);
  const auto train = [&](int steps) {
    for (int step = 0; step < steps; ++step) {
      model->forward(x).pow(2).mean().backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  };
  train(kFirstSteps);
  torch::cuda::synchronize();
  fake_gpu::reset_counts();
  const auto error = error_of([&] {
    const NoHostWaits no_host_waits;
    train(kSteps);
  });
  const auto waits = fake_gpu::counts().host_synchronizes();
  expect(error.empty(), std::string(way.name) + ": " + error);
  expect(waits == 0,
         std::string(way.name) + ": the host waits " + std::to_string(waits) +
             " times");
  torch::cuda::synchronize();
  std::printf("rank %d: %s: no wait in %d steps\n", rank(), way.name, kSteps);
  const auto trained =
      torch::nn::utils::parameters_to_vector(net->parameters()).detach();
  expect(reduce_tensor(trained, Reduction::max)
             .equal(reduce_tensor(trained, Reduction::min)),
         std::string(way.name) + ": parameters differ between ranks");
  return trained;
}

}  // namespace

void check_host_waits() {
  join();
  const auto number = torch::ones({1}, local_device());
  const auto error = error_of([&] {
    const NoHostWaits no_host_waits;
    number.item<float>();
  });
  expect(error.find("synchronizing") != std::string::npos,
         "item() is no error while host waits are; got: " + error);
  Tensor expected;  // of the first way: no option
  for (const auto& way : ways()) {
    const auto trained = check_way(way);
    expected = expected.defined() ? expected : trained;
    const auto difference = (trained - expected).abs().max().item<double>();
    std::printf("rank %d: %s: %g\n", rank(), way.name, difference);
    expect(difference < way.tolerance,
           std::string(way.name) + ": parameters differ by " +
               std::to_string(difference) + " from those without an option");
  }
  destroy_process_group();
}

}  // namespace ddp::test
