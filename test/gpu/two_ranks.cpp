// Two NCCL ranks train together and check each other. Without RANK this program
// starts itself twice by ddprun: on two GPUs where there are two, else twice on
// one GPU, which NCCL takes for two hosts that talk over sockets.
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "ddp/ddp.h"
#include "ddp/detail/text_collectives.h"

namespace {

constexpr int kSkipped = 77;

void expect(bool condition, const std::string& what) {
  TORCH_CHECK(condition, "rank ", ddp::rank(), ": ", what);
}

/// NCCL refuses two ranks of one host on one GPU: give each a host name of its
/// own and allow only sockets between them.
std::vector<std::string> one_gpu_environment() {
  return {"NCCL_HOSTID=fakehost{rank}",
          "NCCL_NET=Socket",
          "NCCL_IB_DISABLE=1",
          "NCCL_SOCKET_IFNAME==lo",
          "NCCL_MNNVL_ENABLE=0",
          "NCCL_NVLS_ENABLE=0",
          "NCCL_CUMEM_ENABLE=0",
          "NCCL_RAS_ENABLE=0",
          "NCCL_ALGO=Ring",
          "NCCL_PROTO=Simple",
          "NCCL_MAX_CTAS=2",
          "CUDA_VISIBLE_DEVICES=0"};
}

int start(const char* self) {
  const auto gpus = torch::cuda::device_count();
  if (gpus == 0) {
    std::puts("skipped: LibTorch sees no GPU");
    return kSkipped;
  }
  std::printf("two ranks on %s\n", gpus > 1 ? "two GPUs" : "one GPU");
  std::vector<std::string> argv{
      DDPRUN_PATH, "--nproc-per-node=2", "--grace-period=10"};
  if (gpus == 1) {
    for (const auto& variable : one_gpu_environment()) {
      argv.push_back("--env-rank=" + variable);
    }
  }
  argv.push_back(self);
  std::vector<char*> raw;
  for (auto& argument : argv) {
    raw.push_back(argument.data());
  }
  raw.push_back(nullptr);
  std::fflush(stdout);
  ::execv(raw[0], raw.data());
  std::perror("cannot start ddprun");
  return 1;
}

torch::Tensor batch_of(int rank, int step) {
  return torch::randn({4, 1, 8, 8},
                      at::detail::createCPUGenerator(100 * step + rank));
}

torch::nn::Sequential make_net(int64_t seed) {
  torch::manual_seed(seed);
  return torch::nn::Sequential(torch::nn::Conv2d(1, 4, 3),
                               torch::nn::ReLU(),
                               torch::nn::Flatten(),
                               torch::nn::Linear(4 * 36, 3));
}

/// The mean of both ranks' gradients, worked out on this rank alone.
std::vector<torch::Tensor> expected_gradients(torch::nn::Sequential net,
                                              int step) {
  net->zero_grad();
  for (int rank = 0; rank < 2; ++rank) {
    const auto batch = batch_of(rank, step).to(ddp::local_device());
    (net->forward(batch).pow(2).mean() / 2).backward();
  }
  std::vector<torch::Tensor> result;
  for (const auto& parameter : net->parameters()) {
    result.push_back(parameter.grad().clone());
  }
  return result;
}

void check_training(bool as_view) {
  auto net = make_net(ddp::rank());
  net->to(ddp::local_device());
  ddp::DistributedDataParallel model(net,
                                     ddp::DistributedDataParallelOptions()
                                         .gradient_as_bucket_view(as_view)
                                         .bucket_cap_mb(0.001));
  torch::optim::SGD optimizer(model->parameters(),
                              torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 20; ++step) {
    const auto expected = expected_gradients(net, step);
    optimizer.zero_grad();
    const auto batch = batch_of(ddp::rank(), step).to(ddp::local_device());
    model->forward(batch).pow(2).mean().backward();
    for (size_t i = 0; i < expected.size(); ++i) {
      expect(net->parameters()[i].grad().allclose(expected[i], 1e-4, 1e-6),
             "gradient " + std::to_string(i) + " of step " +
                 std::to_string(step) + " is not the mean over ranks");
    }
    optimizer.step();
  }
  for (const auto& item : net->named_parameters()) {
    const auto largest = ddp::reduce_tensor(item.value(), ddp::Reduction::max);
    const auto smallest = ddp::reduce_tensor(item.value(), ddp::Reduction::min);
    expect(largest.equal(smallest), item.key() + " differs between ranks");
  }
}

void check_collectives() {
  const auto mine = torch::full({2}, ddp::rank() + 1.0, ddp::local_device());
  expect(ddp::reduce_tensor(mine).eq(1.5).all().item<bool>(), "mean");
  const auto on_cpu = torch::full({1}, ddp::rank(), torch::kLong);
  expect(ddp::reduce_tensor(on_cpu, ddp::Reduction::sum).item<int64_t>() == 1,
         "sum of CPU integers");
  ddp::barrier();
}

void check_missing_gradient() {
  struct TwoImpl : torch::nn::Module {
    TwoImpl() {
      a = register_parameter("a", torch::ones({3}));
      b = register_parameter("b", torch::ones({3}));
    }
    torch::Tensor forward(bool with_b) {
      return with_b ? (a + b).sum() : a.sum();
    }
    torch::Tensor a, b;
  };
  auto two = std::make_shared<TwoImpl>();
  two->to(ddp::local_device());
  ddp::DistributedDataParallel model(two);
  std::string error;
  try {
    model->forward(ddp::rank() == 0).backward();
  } catch (const c10::Error& caught) {
    error = caught.what_without_backtrace();
  }
  torch::cuda::synchronize();
  expect(
      (error.find("on rank 1: b;") != std::string::npos) == (ddp::rank() == 1),
      "the rank that missed the gradient says so; got: " + error);
}

int work() {
  const int gpus = static_cast<int>(torch::cuda::device_count());
  const auto index = static_cast<c10::DeviceIndex>(
      std::atoi(std::getenv("LOCAL_RANK")) % gpus);
  ddp::init_process_group(ddp::ProcessGroupOptions()
                              .backend("nccl")
                              .device(torch::Device(torch::kCUDA, index))
                              .timeout(std::chrono::seconds(60)));
  check_collectives();
  check_training(/*as_view=*/false);
  check_training(/*as_view=*/true);
  check_missing_gradient();
  ddp::destroy_process_group();
  std::printf("rank %s is right\n", std::getenv("RANK"));
  return 0;
}

}  // namespace

int main(int, char** argv) {
  try {
    return std::getenv("RANK") == nullptr ? start(argv[0]) : work();
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
    return 1;
  }
}
