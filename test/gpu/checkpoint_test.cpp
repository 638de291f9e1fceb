#include "ddp/checkpoint.h"

#include <torch/torch.h>

#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

namespace ddp {
namespace {

const torch::Device kGpu(torch::kCUDA, 0);

/// A model with momentum, three steps into its training.
struct Training {
  explicit Training(torch::Device device) : checkpoint(net) {
    net->to(device);
    optimizer = std::make_unique<torch::optim::SGD>(
        net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 3; ++step) {
      optimizer->zero_grad();
      net->forward(torch::randn({8, 3}, device)).pow(2).mean().backward();
      optimizer->step();
    }
    checkpoint.optimizer(*optimizer);
  }
  torch::nn::Linear net{3, 2};
  std::unique_ptr<torch::optim::SGD> optimizer;
  Checkpoint checkpoint;
};

TEST_CASE("a checkpoint moves between GPU and CPU", "[gpu]") {
  const test::TemporaryFolder folder;
  const bool from_gpu = GENERATE(false, true);
  const bool to_gpu = GENERATE(false, true);
  Training first(from_gpu ? kGpu : torch::kCPU);
  first.checkpoint.save(folder / "a.pt");
  Training second(to_gpu ? kGpu : torch::kCPU);
  second.checkpoint.load(folder / "a.pt");
  CHECK(second.net->weight.is_cuda() == to_gpu);
  CHECK(second.net->weight.cpu().equal(first.net->weight.cpu()));
  const auto buffer = [](const Training& training) {
    return static_cast<torch::optim::SGDParamState&>(
               *training.optimizer->state().at(
                   training.net->weight.unsafeGetTensorImpl()))
        .momentum_buffer();
  };
  CHECK(buffer(second).is_cuda() == to_gpu);
  CHECK(buffer(second).cpu().equal(buffer(first).cpu()));
}

TEST_CASE("a checkpoint keeps the GPU's random state", "[gpu]") {
  const test::TemporaryFolder folder;
  Training training(kGpu);
  torch::manual_seed(7);
  torch::randn({5}, kGpu);
  training.checkpoint.save(folder / "a.pt");
  const auto expected = torch::randn({5}, kGpu);
  torch::manual_seed(8);
  training.checkpoint.load(folder / "a.pt");
  CHECK(torch::randn({5}, kGpu).equal(expected));
}

TEST_CASE("tensors on a GPU that share memory are stored once", "[gpu]") {
  const test::TemporaryFolder folder;
  struct Tied : torch::nn::Module {
    Tied() {
      a = register_parameter("a", torch::randn({4, 4}, kGpu));
      b = register_buffer("b", a.detach().t());
    }
    torch::Tensor a;
    torch::Tensor b;
  };
  const Tied saved;
  save_state_dict(saved, folder / "a.pt");
  CHECK(test::read_file(folder / "a.pt").find("data/1") == std::string::npos);
  Tied loaded;
  load_state_dict(loaded, folder / "a.pt");
  CHECK(loaded.a.equal(saved.a));
  CHECK(loaded.b.equal(saved.b));
}

}  // namespace
}  // namespace ddp
