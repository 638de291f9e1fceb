#include "ddp/graphed_step.h"

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "ddp/distributed_data_parallel.h"
#include "ddp/optim/fused.h"
#include "test/support/catch.h"
#include "test/support/warnings.h"

// Steps on the CPU, which has no graphs; test/gpu has the others.
namespace ddp {
namespace graphed_step_test {

using Catch::Contains;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

TEST_CASE("a step on the CPU is eager, and says so once", "[graph]") {
  const auto train = [](bool is_graphed) {
    torch::manual_seed(1);
    torch::nn::Linear net(3, 2);
    DistributedDataParallel model(net);
    FusedAdam optimizer(model->parameters(), 0.125);
    const auto loss_of = [&](const Tensors& in) {
      return model(in[0]).pow(2).sum();
    };
    GraphedStep graphed(model, optimizer, loss_of);
    const test::Warnings warnings;
    const Tensors in{torch::ones({4, 3})};
    for (int i = 0; i < 8; ++i) {
      if (is_graphed) {
        CHECK_FALSE(graphed(in).requires_grad());
        continue;
      }
      optimizer.zero_grad();
      loss_of(in).backward();
      optimizer.step();
    }
    if (is_graphed) {
      CHECK_FALSE(graphed.is_recorded());
      CHECK_THAT(graphed.refusal(), Contains("a model on a GPU, but got one"));
      REQUIRE(warnings.texts().size() == 1);
      CHECK_THAT(warnings.texts()[0],
                 Contains("makes every step eagerly: Expected a model on"));
      graphed.reset();
      CHECK(graphed.refusal().empty());
    }
    return net->weight.detach().clone();
  };
  CHECK(train(true).equal(train(false)));
}

TEST_CASE("steps that GraphedStep refuses", "[graph][errors]") {
  torch::nn::Linear net(3, 2);
  FusedSGD fused(net->parameters(), 0.125);
  torch::optim::SGD plain(net->parameters(), 0.125);
  const auto loss = [&](const Tensors& in) { return net(in[0]).sum(); };
  auto two = GraphedStepOptions().warmup(2);
  CHECK_NOTHROW(GraphedStep(net, fused, loss, two));
  CHECK_THROWS_WITH(GraphedStep(net, fused, loss, two.warmup(1)),
                    Contains("at least 2 steps of warm-up"));
  CHECK_THROWS_WITH(GraphedStep(net, plain, loss),
                    Contains("ddp::FusedSGD, FusedAdam or FusedAdamW"));
  CHECK_THROWS_WITH(GraphedStep(net, fused, nullptr),
                    Contains("an empty function"));
  CHECK_THROWS_WITH(GraphedStep(nullptr, fused, loss),
                    Contains("an empty model"));
  CHECK_THROWS_WITH(
      GraphedStep(std::make_shared<torch::nn::Module>(), fused, loss),
      Contains("a model with parameters"));
}

}  // namespace graphed_step_test
}  // namespace ddp
