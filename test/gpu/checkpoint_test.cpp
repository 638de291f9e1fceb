#include "ddp/checkpoint.h"

#include <torch/cuda.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

namespace ddp {
namespace checkpoint_test {

const torch::Device kGpu(torch::kCUDA, 0);

/// A model and an optimizer with momentum, after three training steps.
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
    checkpoint.add("optimizer", *optimizer);
  }
  torch::nn::Linear net{3, 2};
  std::unique_ptr<torch::optim::SGD> optimizer;
  Checkpoint checkpoint;
};

/// Returns the CPU and all GPUs.
std::vector<torch::Device> all_devices() {
  std::vector<torch::Device> devices{torch::kCPU};
  for (c10::DeviceIndex i = 0; i < torch::cuda::device_count(); ++i) {
    devices.emplace_back(torch::kCUDA, i);
  }
  return devices;
}

torch::Device any_device() {
  const auto devices = all_devices();
  return devices[GENERATE_COPY(range(size_t{0}, devices.size()))];
}

TEST_CASE("a checkpoint moves between devices", "[gpu]") {
  const test::TemporaryFolder folder;
  const auto from = any_device();
  const auto devices = all_devices();
  const auto to = devices[GENERATE_COPY(range(size_t{0}, devices.size()))];
  INFO("from " << from << " to " << to);
  Training first(from);
  // The CPU generator, which every checkpoint saves.
  torch::manual_seed(7);
  first.checkpoint.save(folder / "a.pt");
  const auto expected = torch::randn({5});
  Training second(to);
  torch::manual_seed(8);
  second.checkpoint.load(folder / "a.pt");
  CHECK(torch::randn({5}).equal(expected));
  CHECK(second.net->weight.device() == to);
  CHECK(second.net->weight.cpu().equal(first.net->weight.cpu()));
  const auto buffer = [](const Training& training) {
    return static_cast<torch::optim::SGDParamState&>(
               *training.optimizer->state().at(
                   training.net->weight.unsafeGetTensorImpl()))
        .momentum_buffer();
  };
  CHECK(buffer(second).device() == to);
  CHECK(buffer(second).cpu().equal(buffer(first).cpu()));
}

TEST_CASE("a checkpoint keeps a GPU's random state", "[gpu]") {
  const test::TemporaryFolder folder;
  const auto device = any_device();
  if (device.is_cpu()) {
    return;
  }
  Training training(device);
  torch::manual_seed(7);
  torch::randn({5}, device);
  training.checkpoint.save(folder / "a.pt");
  const auto expected = torch::randn({5}, device);
  torch::manual_seed(8);
  training.checkpoint.load(folder / "a.pt");
  CHECK(torch::randn({5}, device).equal(expected));
}

TEST_CASE("a checkpoint keeps the random states of all GPUs", "[gpu]") {
  const test::TemporaryFolder folder;
  const auto device = any_device();
  if (device.is_cpu()) {
    return;
  }
  // Replicas of a DataParallel draw random numbers on GPUs without parameters.
  const auto drawn = [] {
    std::vector<torch::Tensor> all;
    for (int gpu = 0; gpu < torch::cuda::device_count(); ++gpu) {
      all.push_back(torch::randn({5}, torch::Device(torch::kCUDA, gpu)).cpu());
    }
    return torch::cat(all);
  };
  Training training(device);
  torch::cuda::manual_seed_all(7);
  drawn();
  training.checkpoint.save(folder / "a.pt");
  const auto expected = drawn();
  torch::cuda::manual_seed_all(8);
  training.checkpoint.load(folder / "a.pt");
  CHECK(drawn().equal(expected));
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

}  // namespace checkpoint_test
}  // namespace ddp
