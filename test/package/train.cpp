// Trains y = 3 x with only the installed headers and libraries. Does not
// include torch/torch.h, because all of it takes longer to compile than the
// rest.
#include <ddp/ddp.h>
#include <dp/dp.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/version.h>

#include <cmath>
#include <cstdio>

// LibTorch 2.11 requires C++17, 2.15 requires C++20; ddp requires no more.
constexpr long kWanted = CONSUMER_STANDARD == 17 ? 201703L : 202002L;
constexpr bool kHasStandard =
    TORCH_VERSION_MINOR > 11 ? __cplusplus >= kWanted : __cplusplus == kWanted;

int main() {
  ddp::init_process_group(ddp::ProcessGroupOptions().backend("gloo"));
  torch::nn::Linear line(1, 1);
  ddp::DistributedDataParallel model(line);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const auto x = torch::linspace(-1, 1, 32).unsqueeze(1);
  for (int step = 0; step < 200; ++step) {
    optimizer.zero_grad();
    torch::mse_loss(model->forward(x), 3 * x).backward();
    optimizer.step();
  }
  const auto slope = line->weight.item<double>();
  std::printf("C++ %ld, slope %.4f\n", __cplusplus, slope);
  dp::DataParallel replicas(
      line, dp::DataParallelOptions().devices({torch::kCPU, torch::kCPU}));
  const bool equal = replicas->forward(x).allclose(line(x));
  ddp::destroy_process_group();
  return kHasStandard && std::abs(slope - 3) < 1e-2 && equal ? 0 : 1;
}
