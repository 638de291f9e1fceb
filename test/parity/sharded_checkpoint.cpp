// The C++ side of sharded_checkpoint.py, run by several ranks:
//   save FOLDER        train with each optimizer; save FOLDER/OPTIMIZER, a
//                      folder, and FOLDER/OPTIMIZER.pt, a file
//   load FOLDER OUT    load each FOLDER/OPTIMIZER, save OUT/OPTIMIZER.pt
#include <memory>
#include <string>

#include <torch/nn.h>
#include <torch/optim.h>

#include "ddp/checkpoint.h"
#include "ddp/fully_sharded_data_parallel.h"
#include "ddp/process_group.h"
#include "test/parity/parity.h"

namespace parity {
namespace sharded_checkpoint_side {

/// Parts of the parameters begin within their rows.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("conv", conv);
    register_module("bn", bn);
    register_module("fc", fc);
    tied = register_parameter("tied", fc->weight);
    scale = register_parameter("scale", torch::ones({1}));
    const torch::NoGradGuard no_grad;
    conv->weight.set_data(
        conv->weight.contiguous(torch::MemoryFormat::ChannelsLast));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(bn(conv(x))).mean({2, 3});
    return torch::linear(fc(x), tied) * scale;
  }
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(3, 133, 5)};
  torch::nn::BatchNorm2d bn{133};
  torch::nn::Linear fc{133, 133};
  torch::Tensor tied, scale;
};
TORCH_MODULE(Net);

void run(const std::string& optimizer_name, const Arguments& args) {
  const auto input = args[1] + "/" + optimizer_name;
  Net net;
  ddp::FullyShardedDataParallel model(
      net, ddp::FullyShardedDataParallelOptions().unit_cap_mb(0.05));
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (optimizer_name == "sgd") {
    optimizer = std::make_unique<torch::optim::SGD>(
        model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  } else {
    optimizer = std::make_unique<torch::optim::AdamW>(
        model->parameters(), torch::optim::AdamWOptions(0.01));
  }
  ddp::Checkpoint checkpoint(model);
  checkpoint.add("optimizer", *optimizer);
  if (args[0] == "load") {
    checkpoint.load(input);
    checkpoint.save(args[2] + "/" + optimizer_name + ".pt");
    return;
  }
  for (int step = 0; step < 3; ++step) {
    optimizer->zero_grad();
    model(torch::randn({2, 3, 8, 8})).square().mean().backward();
    optimizer->step();
  }
  checkpoint.save_sharded(input);
  checkpoint.save(input + ".pt");
}

}  // namespace sharded_checkpoint_side

int sharded_checkpoint(const Arguments& args) {
  ddp::init_process_group(ddp::ProcessGroupOptions().backend("gloo"));
  for (const auto* optimizer : {"adamw", "sgd"}) {
    sharded_checkpoint_side::run(optimizer, args);
  }
  ddp::destroy_process_group();
  return 0;
}

}  // namespace parity
