// A ddp::Checkpoint of a training over replicas is the module's own.
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <string>
#include <vector>

#include "ddp/checkpoint.h"
#include "dp/dp.h"
#include "test/dp/nets.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

namespace dp {
namespace checkpoint_test {

using ddp::test::TemporaryFolder;
using test::Net;
using test::on_cpus;

/// A training of a net over replicas.
struct Training {
  explicit Training(size_t replicas) : model(net, on_cpus(replicas)) {
    checkpoint.add("optimizer", optimizer);
  }

  /// Makes the steps `begin` to `end`, each with a batch of its own.
  void run(int begin, int end) {
    for (int step = begin; step < end; ++step) {
      torch::manual_seed(step);
      const auto batch = torch::randn({7, 1, 8, 8});
      optimizer.zero_grad();
      model(batch).pow(2).mean().backward();
      optimizer.step();
    }
    checkpoint.step(end);
  }

  Net net;
  DataParallel<test::NetImpl> model;
  torch::optim::SGD optimizer{net->parameters(),
                              torch::optim::SGDOptions(0.05).momentum(0.9)};
  ddp::Checkpoint checkpoint{net};
};

/// Returns the names of the parameters and buffers that differ in a bit.
std::vector<std::string> unequal(const torch::nn::Module& a,
                                 const torch::nn::Module& b) {
  return test::differences(a, b, /*relative=*/0, /*absolute=*/0);
}

TEST_CASE("a training over replicas goes on from a checkpoint, bit for bit",
          "[dp][checkpoint]") {
  const TemporaryFolder folder;
  Training whole(2);
  whole.run(0, 3);
  whole.checkpoint.save(folder / "half.pt");
  whole.run(3, 6);

  Training resumed(2);
  REQUIRE_FALSE(unequal(*resumed.net, *whole.net).empty());
  resumed.checkpoint.load(folder / "half.pt");
  CHECK(resumed.checkpoint.step() == 3);
  resumed.run(3, 6);
  CHECK(unequal(*resumed.net, *whole.net).empty());
}

TEST_CASE("a plain module and other numbers of replicas load its checkpoint",
          "[dp][checkpoint]") {
  const TemporaryFolder folder;
  Training trained(2);
  trained.run(0, 3);
  trained.checkpoint.save(folder / "two.pt");
  trained.model->eval();
  const auto images = torch::randn({5, 1, 8, 8});
  const auto expected = trained.model(images);

  Net plain;
  ddp::Checkpoint(plain).load(folder / "two.pt");
  plain->eval();
  CHECK(unequal(*plain, *trained.net).empty());
  CHECK(test::close(plain(images), expected));

  Training three(3);
  three.model(images);  // the replicas have the values before
  three.checkpoint.load(folder / "two.pt");
  three.model->eval();
  CHECK(unequal(*three.net, *trained.net).empty());
  CHECK(test::close(three.model(images), expected));
}

}  // namespace checkpoint_test
}  // namespace dp
