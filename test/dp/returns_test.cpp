#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <memory>

#include "dp/parameter_server.h"
#include "test/dp/local_world.h"
#include "test/support/catch.h"

namespace dp {
namespace returns_test {

using std::chrono::milliseconds;
using test::LocalWorld;
using Options = ParameterServerOptions;
using Tensors = std::vector<torch::Tensor>;
using Net = torch::nn::Sequential;

/// With a frozen parameter and buffers.
Net make_net(double value, int64_t columns = 3) {
  Net net(torch::nn::Linear(4, columns), torch::nn::BatchNorm1d(columns));
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) {
    parameter.copy_(torch::arange(parameter.numel())
                        .view(parameter.sizes())
                        .add(1)
                        .mul(value));
  }
  net[0]->as<torch::nn::Linear>()->bias.requires_grad_(false);
  for (auto& buffer : net->buffers()) {
    buffer.fill_(value);
  }
  return net;
}

std::unique_ptr<torch::optim::Optimizer> sgd(const Tensors& parameters) {
  return std::make_unique<torch::optim::SGD>(
      parameters, torch::optim::SGDOptions(0.01).momentum(0.9));
}

enum class Dies { never, before_push, after_push, twice };

struct Job {
  int servers = 1;
  UpdateMode mode = UpdateMode::synchronous;
  Dies dies = Dies::never;
};

/// Whether the worker, which was so many times gone, dies now.
bool dies_now(Dies dies, int64_t step, bool has_pushed, int gone) {
  switch (dies) {
    case Dies::never:
      return false;
    case Dies::before_push:
      return step == 2 && !has_pushed && gone == 0;
    case Dies::after_push:
      return step == 2 && has_pushed && gone == 0;
    case Dies::twice:
      return step >= 1 && !has_pushed && gone < 2;
  }
  return false;
}

/// Trains, and comes back with another net each time it has died.
void work(Dies dies, const Options& options, Tensors& trained) {
  constexpr int64_t kSteps = 5;
  auto net = make_net(9);
  auto client = std::make_unique<ParameterClient>(net, options);
  int gone = 0;
  const auto come_back = [&] {
    client.reset();
    net = make_net(20 + ++gone);
    client =
        std::make_unique<ParameterClient>(net, Options(options).returns(true));
    // Rank 0's.
    TORCH_CHECK(
        net[0]->as<torch::nn::Linear>()->bias.equal(torch::arange(3) + 1.0));
    TORCH_CHECK(net->buffers()[0].eq(1).all().item<bool>());
  };
  for (;;) {
    client->pull();
    const int64_t step = client->version();
    if (step == kSteps) {
      break;
    }
    net->zero_grad();
    (net[0]->as<torch::nn::Linear>()->forward(torch::ones({1, 4})) *
     static_cast<double>(step + 2 * client->worker() - 3))
        .pow(2)
        .sum()
        .backward();
    if (dies_now(dies, step, false, gone)) {
      come_back();
      continue;
    }
    client->push();
    if (dies_now(dies, step, true, gone)) {
      come_back();
    }
  }
  client->finish();
  trained = {net[0]->as<torch::nn::Linear>()->weight.detach().clone()};
}

Tensors train(const Job& job) {
  Tensors trained;
  const int workers = job.mode == UpdateMode::synchronous ? 2 : 1;
  const size_t times = job.dies == Dies::never   ? 0
                       : job.dies == Dies::twice ? 2
                                                 : 1;
  LocalWorld(job.servers + workers)
      .run_ranks(Options()
                     .servers(job.servers)
                     .mode(job.mode)
                     .await_return(test::kPatience),
                 [&](int rank, const Options& options) {
                   if (is_server(options)) {
                     auto net = make_net(rank + 1);
                     const auto report = serve(*net, sgd, options);
                     TORCH_CHECK(report.lost.empty());
                     TORCH_CHECK(report.returned ==
                                 std::vector<int>(times, workers - 1));
                     return;
                   }
                   Tensors own;
                   const bool is_last = rank == job.servers + workers - 1;
                   work(is_last ? job.dies : Dies::never, options, own);
                   if (is_last) {
                     trained = own;
                   }
                 });
  return trained;
}

TEST_CASE("a worker that comes back goes on where the training is",
          "[returns]") {
  Job job;
  job.servers = GENERATE(1, 2);
  job.mode = GENERATE(UpdateMode::synchronous, UpdateMode::asynchronous);
  const auto undisturbed = train(job);
  job.dies = GENERATE(Dies::before_push, Dies::after_push, Dies::twice);
  const auto trained = train(job);
  REQUIRE(trained.size() == undisturbed.size());
  CHECK(trained[0].equal(undisturbed[0]));
}

TEST_CASE("a worker that does not come back is lost", "[returns][errors]") {
  const auto errors = LocalWorld(3).try_ranks(
      Options().await_return(milliseconds(50)),
      [&](int, const Options& options) {
        auto net = make_net(1);
        if (is_server(options)) {
          serve(*net, sgd, options);
          return;
        }
        ParameterClient client(net, options);
        client.pull();
        TORCH_CHECK(client.worker() == 0, "out of memory");
        client.push();
        client.pull();
      });
  CHECK_THAT(errors[0], Catch::Contains("worker 1 (rank 2) is gone"));
  CHECK_THAT(errors[1], Catch::Contains("worker 1 (rank 2) is gone"));
  CHECK(errors[2] == "out of memory");
}

TEST_CASE("a worker that comes back with another module", "[returns][errors]") {
  const auto errors = LocalWorld(2).try_ranks(
      Options().await_return(test::kPatience),
      [&](int, const Options& options) {
        auto net = make_net(1);
        if (is_server(options)) {
          const auto report = serve(*net, sgd, options);
          TORCH_CHECK(report.returned == std::vector<int>{0});
          return;
        }
        std::make_unique<ParameterClient>(net, options).reset();
        const auto back = Options(options).returns(true);
        CHECK_THROWS_WITH(ParameterClient(make_net(1, 5), back),
                          Catch::Contains("does not take this worker back: "
                                          "parameter 0.weight has shape"));
        ParameterClient client(net, back);
        client.pull();
        client.finish();
      });
  CHECK(errors == std::vector<std::string>(2));
}

TEST_CASE("a worker that comes back to nobody", "[returns][errors]") {
  const auto errors = LocalWorld(2).try_ranks(
      Options().connect_timeout(milliseconds(100)),
      [&](int rank, const Options& options) {
        if (rank == 1) {
          ParameterClient client(make_net(1), Options(options).returns(true));
        }
      });
  CHECK_THAT(errors[1], Catch::Contains("set await_return() on them"));
}

}  // namespace returns_test
}  // namespace dp
