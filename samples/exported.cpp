// Trains a network that was written in Python, and saves it for Python:
//
//   python samples/export_spirals.py spirals.pt2
//   ddprun --nproc-per-node=4 exported spirals.pt2 trained.pt2
#include <ddp/ddp.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <iostream>

constexpr int64_t epochs = 20;
constexpr int64_t points = 1024;

// Points on two spirals, one rotated by 180 degrees against the other. The
// label is the spiral of the point.
torch::Tensor labels_of(const torch::Tensor& indices) {
  return indices % 2;
}
torch::Tensor points_of(const torch::Tensor& indices) {
  const auto way = indices.div(2, "floor").to(torch::kFloat) / (points / 2);
  const auto angle = 7 * way + M_PI * labels_of(indices);
  const auto radius = 0.1 + 1.2 * way;
  return torch::stack({radius * angle.cos(), radius * angle.sin()}, 1);
}

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: exported FILE.pt2 TRAINED.pt2\n";
    return 2;
  }
  ddp::init_process_group();
  const torch::Device device = ddp::local_device();
  ddp::seed_everything(0);

  ddp::ExportedModule net(argv[1]);
  net->to(device);
  ddp::DistributedDataParallel model(net);
  torch::optim::Adam optimizer(model->parameters(), 0.01);

  ddp::DistributedSampler sampler(points);
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    sampler.set_epoch(epoch);
    sampler.reset();
    while (const auto batch = sampler.next(16)) {
      const auto indices =
          torch::tensor(std::vector<int64_t>(batch->begin(), batch->end()));
      optimizer.zero_grad();
      const auto out = model->forward(points_of(indices).to(device)).toTensor();
      torch::nll_loss(out, labels_of(indices).to(device)).backward();
      optimizer.step();
    }
  }
  if (ddp::rank() == 0) {
    net->eval();
    const torch::NoGradGuard no_grad;
    const auto all = torch::arange(points);
    const auto guess =
        net->forward(points_of(all).to(device)).toTensor().argmax(1).cpu();
    std::cout
        << "accuracy "
        << (guess == labels_of(all)).to(torch::kFloat).mean().item<float>()
        << "\n";
    net->save(argv[2]);
  }
  ddp::destroy_process_group();
}
