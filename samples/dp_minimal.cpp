// The training of minimal.cpp in one process, with a replica of the network on
// each device. Only the wrapper differs from a training on one device: the
// optimizer trains the network itself. LibTorch and dp/dp.h are all it needs.
//
//   dp_minimal                 # all GPUs, or the plain network on the CPU
//   dp_minimal cuda:0 cuda:1
//   dp_minimal cpu cpu cpu
#include <ddp/ddp.h>
#include <dp/dp.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <iostream>
#include <optional>
#include <vector>

constexpr int64_t epochs = 20;

// Points on two spirals, one rotated by 180 degrees against the other. The
// label is the spiral of the point.
struct Spirals : torch::data::datasets::Dataset<Spirals> {
  torch::data::Example<> get(size_t index) override {
    const auto spiral = static_cast<int64_t>(index % 2);
    const double way = static_cast<double>(index / 2) / 512;  // from 0 to 1
    const double angle = 7 * way + M_PI * static_cast<double>(spiral);
    const double radius = 0.1 + 1.2 * way;
    return {torch::tensor({radius * std::cos(angle), radius * std::sin(angle)},
                          torch::kFloat32),
            torch::tensor(spiral)};
  }
  std::optional<size_t> size() const override { return 1024; }
};

// DataParallel clones the network, so it is a torch::nn::Cloneable.
struct NetImpl : torch::nn::Cloneable<NetImpl> {
  torch::nn::Sequential layers{nullptr};

  NetImpl() { reset(); }
  void reset() override {
    // Braces draw the layers' random weights in this order with any compiler.
    layers = register_module("layers",
                             torch::nn::Sequential{torch::nn::Linear(2, 64),
                                                   torch::nn::Tanh(),
                                                   torch::nn::Linear(64, 64),
                                                   torch::nn::Tanh(),
                                                   torch::nn::Linear(64, 2)});
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::log_softmax(layers->forward(x), 1);
  }
};
TORCH_MODULE(Net);

int train(const std::vector<torch::Device>& devices) {
  const auto usual = torch::cuda::is_available() ? torch::kCUDA : torch::kCPU;
  torch::manual_seed(0);

  Net net;
  net->to(devices.empty() ? torch::Device(usual) : devices[0]);
  dp::DataParallel model(net, dp::DataParallelOptions().devices(devices));
  torch::optim::Adam optimizer(model->parameters(), 0.01);

  auto dataset = Spirals().map(torch::data::transforms::Stack<>());
  ddp::DistributedSampler sampler(dataset.size().value());
  auto loader = torch::data::make_data_loader(dataset, sampler, 16);
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    sampler.set_epoch(epoch);
    torch::Tensor loss;
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      const auto scores = model->forward(batch.data);  // scatter and gather
      loss = torch::nll_loss(scores, batch.target.to(scores.device()));
      loss.backward();  // the replicas' gradients are added to the network's
      optimizer.step();
    }
    std::cout << "epoch " << epoch << ": loss " << loss.item<double>() << "\n";
  }
  for (const auto& replica : model->traffic()) {
    std::cout << replica.device << ": " << replica.state_bytes
              << " bytes of parameters to it, " << replica.gradient_bytes
              << " bytes of gradients from it\n";
  }
  return 0;
}

int main(int argc, char** argv) {
  return ddp::record_errors([&] {
    std::vector<torch::Device> devices;
    for (int i = 1; i < argc; ++i) {
      devices.emplace_back(std::string(argv[i]));
    }
    return train(devices);
  });
}
