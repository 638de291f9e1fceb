// The smallest complete training: LibTorch, ddp/ddp.h and a synthetic data set,
// independent of the other samples. Runs on one process or on several:
//
//   minimal
//   ddprun --nproc-per-node=4 minimal
#include <ddp/ddp.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <iostream>
#include <optional>

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

struct NetImpl : torch::nn::Module {
  torch::nn::Sequential layers{torch::nn::Linear(2, 64),
                               torch::nn::Tanh(),
                               torch::nn::Linear(64, 64),
                               torch::nn::Tanh(),
                               torch::nn::Linear(64, 2)};

  NetImpl() { register_module("layers", layers); }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::log_softmax(layers->forward(x), 1);
  }
};
TORCH_MODULE(Net);

// Prints the loss of the last batch, averaged over all ranks.
void report(int64_t epoch, const torch::Tensor& loss) {
  const auto mean = ddp::reduce_tensor(loss).item<double>();
  if (ddp::rank() == 0) {
    std::cout << "epoch " << epoch << ": loss " << mean << "\n";
  }
}

int main() {
  ddp::init_process_group();  // NCCL if the rank has a GPU, else Gloo
  const torch::Device device = ddp::local_device();
  ddp::seed_everything(0);

  Net net;
  net->to(device);
  ddp::DistributedDataParallel model(net);
  torch::optim::Adam optimizer(model->parameters(), 0.01);

  auto dataset = Spirals().map(torch::data::transforms::Stack<>());
  ddp::DistributedSampler sampler(dataset.size().value());
  auto loader = torch::data::make_data_loader(dataset, sampler, 16);
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    sampler.set_epoch(epoch);
    torch::Tensor loss;
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      loss = torch::nll_loss(model->forward(batch.data.to(device)),
                             batch.target.to(device));
      loss.backward();  // gradients are averaged over ranks here
      optimizer.step();
    }
    report(epoch, loss.detach());
  }
  ddp::destroy_process_group();
}
