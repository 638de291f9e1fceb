// Two NCCL ranks train together and check each other.
//   gpu_two_ranks [SCENARIO]     default: train; see the end of this file
// Without RANK this program starts itself twice by ddprun: on two GPUs if there
// are two, otherwise twice on one GPU, which NCCL treats as two hosts connected
// by sockets. The scenarios that end by a fault are started by gpu_day.py.
#include <torch/cuda.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <ATen/cuda/Sleep.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddp/ddp.h"
#include "ddp/job/text_collectives.h"
#include "test/gpu/two_ranks.h"
#include "test/support/number_from.h"

namespace ddp::test {

void expect(bool condition, const std::string& message) {
  TORCH_CHECK(condition, "rank ", rank(), ": ", message);
}

void join(int shift) {
  const int gpus = static_cast<int>(torch::cuda::device_count());
  const auto index = static_cast<c10::DeviceIndex>(
      (std::atoi(std::getenv("LOCAL_RANK")) + shift) % gpus);
  const std::chrono::seconds timeout(number_from("DDP_TEST_TIMEOUT", 60));
  init_process_group(ProcessGroupOptions()
                         .backend("nccl")
                         .device(torch::Device(torch::kCUDA, index))
                         .connect_timeout(std::chrono::seconds(60))
                         .timeout(timeout));
}

void delay_gradients(const torch::nn::Module& module) {
  const uint64_t milliseconds = number_from("DDP_TEST_DELAY_MS", 0);
  if (milliseconds == 0) {
    return;
  }
  constexpr uint64_t kCyclesPerMillisecond = 1'500'000;  // roughly
  const auto cycles =
      static_cast<int64_t>(milliseconds * kCyclesPerMillisecond);
  for (const auto& parameter : module.parameters()) {
    parameter.register_hook(
        [cycles](const torch::Tensor& /*grad*/) { at::cuda::sleep(cycles); });
  }
}

Known::Known(bool as_view) {
  net->to(local_device());
  delay_gradients(*net);
  model = std::make_unique<DistributedDataParallel<torch::nn::LinearImpl>>(
      net, DistributedDataParallelOptions().gradient_as_bucket_view(as_view));
}

void Known::step() {
  net->zero_grad();
  const auto x = torch::full({1, 5}, rank() + 1.0).to(local_device());
  (*model)->forward(x).sum().backward();
}

bool Known::is_right() const {
  return net->weight.grad().cpu().allclose(torch::full({3, 5}, 1.5)) &&
         net->bias.grad().cpu().allclose(torch::ones({3}));
}

namespace {

constexpr int kSkipped = 77;

/// Lets both ranks use one GPU. NCCL refuses two ranks of one host on one GPU,
/// so each rank gets its own host name, and only sockets are allowed between
/// them.
void share_one_gpu(const std::string& rank) {
  const std::pair<const char*, std::string> variables[] = {
      {"NCCL_HOSTID", "fakehost" + rank},
      {"NCCL_NET", "Socket"},
      {"NCCL_IB_DISABLE", "1"},
      {"NCCL_SOCKET_IFNAME", "=lo"},
      {"NCCL_MNNVL_ENABLE", "0"},
      {"NCCL_NVLS_ENABLE", "0"},
      {"NCCL_CUMEM_ENABLE", "0"},
      {"NCCL_RAS_ENABLE", "0"},
      {"NCCL_ALGO", "Ring"},
      {"NCCL_PROTO", "Simple"},
      {"NCCL_MAX_CTAS", "2"}};
  for (const auto& [name, value] : variables) {
    ::setenv(name, value.c_str(), /*overwrite=*/0);
  }
}

int start(const char* self, const char* scenario) {
  const auto gpus = torch::cuda::device_count();
  if (gpus == 0) {
    std::puts("skipped: LibTorch sees no GPU");
    return kSkipped;
  }
  std::printf("two ranks on %s\n", gpus > 1 ? "two GPUs" : "one GPU");
  std::vector<std::string> argv{
      DDPRUN_PATH, "--nproc-per-node=2", "--grace-period=10", self, scenario};
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

/// Returns the mean of both ranks' gradients, computed on this rank alone.
std::vector<torch::Tensor> expected_gradients(
    DistributedDataParallel<torch::nn::SequentialImpl>& model, int step) {
  const NoSyncGuard no_sync(*model);
  const auto& net = model->module();
  net->zero_grad();
  for (int rank = 0; rank < 2; ++rank) {
    const auto batch = batch_of(rank, step).to(local_device());
    (net->forward(batch).pow(2).mean() / 2).backward();
  }
  std::vector<torch::Tensor> result;
  for (const auto& parameter : net->parameters()) {
    result.push_back(parameter.grad().clone());
  }
  return result;
}

void check_training(bool as_view) {
  auto net = make_net(rank());
  net->to(local_device());
  delay_gradients(*net);
  DistributedDataParallel model(net,
                                DistributedDataParallelOptions()
                                    .gradient_as_bucket_view(as_view)
                                    .bucket_cap_mb(0.001));
  torch::optim::SGD optimizer(model->parameters(),
                              torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 20; ++step) {
    const auto expected = expected_gradients(model, step);
    optimizer.zero_grad();
    const auto batch = batch_of(rank(), step).to(local_device());
    model->forward(batch).pow(2).mean().backward();
    for (size_t i = 0; i < expected.size(); ++i) {
      expect(net->parameters()[i].grad().allclose(expected[i], 1e-4, 1e-6),
             "gradient " + std::to_string(i) + " of step " +
                 std::to_string(step) + " is not the mean over ranks");
    }
    optimizer.step();
  }
  for (const auto& item : net->named_parameters()) {
    const auto largest = reduce_tensor(item.value(), Reduction::max);
    const auto smallest = reduce_tensor(item.value(), Reduction::min);
    expect(largest.equal(smallest), item.key() + " differs between ranks");
  }
}

void check_collectives() {
  const auto mine = torch::full({2}, rank() + 1.0, local_device());
  expect(reduce_tensor(mine).eq(1.5).all().item<bool>(), "mean");
  const auto on_cpu = torch::full({1}, rank(), torch::kLong);
  expect(reduce_tensor(on_cpu, Reduction::sum).item<int64_t>() == 1,
         "sum of CPU integers");
  barrier();
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
  two->to(local_device());
  DistributedDataParallel model(two);
  barrier();  // or rank 1 may leave while rank 0 still wraps its module
  const auto error = error_of([&] {
    model->forward(rank() == 0).backward();
    torch::cuda::synchronize();
    barrier();  // rank 0 hears of rank 1 here at the latest
  });
  expect(error.find("got none on rank 1: b;") != std::string::npos,
         "the rank that missed the gradient tells the other; got: " + error);
}

/// The module is constructed on the CPU, on rank 0 alone with values.
void check_sharded() {
  const auto make = [] {
    torch::manual_seed(7);
    torch::nn::Sequential net;
    for (int i = 0; i < 4; ++i) {
      net->push_back(torch::nn::Linear(600, 600));
    }
    net->register_buffer("mask", torch::ones({300}));
    return net;
  };
  auto plain = make();
  plain->to(local_device());
  DistributedDataParallel a(plain);
  FullyShardedDataParallel<torch::nn::SequentialImpl> b(
      make, FullyShardedDataParallelOptions().unit_cap_mb(1.5));
  for (const auto& item : b->module()->named_parameters()) {
    expect(item.value().device() == local_device(), item.key() + " has moved");
  }
  expect(b->module()->buffers()[0].device() == local_device(), "buffer");
  FusedAdamW of_a(a->parameters(), torch::optim::AdamWOptions(0.01));
  FusedAdamW of_b(b->parameters(), torch::optim::AdamWOptions(0.01));
  for (int step = 1; step <= 3; ++step) {
    const auto x = torch::sin(torch::arange(1200.0) * step + rank())
                       .view({2, 600})
                       .to(local_device(), torch::kFloat);
    const auto train = [&](auto& model, auto& optimizer) {
      optimizer.zero_grad();
      auto loss = model->forward(x).square().mean();
      loss.backward();
      optimizer.step();
      return loss.detach();
    };
    expect(train(a, of_a).equal(train(b, of_b)),
           "loss of step " + std::to_string(step) + " differs");
  }
  // The second unit was gathered early, and rank 1 gathers the third one.
  const auto error = error_of([&] {
    b->call(
        [](torch::nn::SequentialImpl& net, torch::Tensor x) {
          x = net[0]->as<torch::nn::Linear>()->forward(x);
          const c10::AutoGradMode with_gradients(rank() == 1);
          for (size_t i = 1; i < net.size(); ++i) {
            x = net[i]->as<torch::nn::Linear>()->forward(x);
          }
        },
        torch::ones({2, 600}, local_device()));
  });
  expect(error.find("rank 0 uses 1.weight to 1.bias in a forward without") !=
             std::string::npos,
         "a rank that evaluates alone; got: " + error);
}

void train() {
  join();
  check_collectives();
  check_training(/*as_view=*/false);
  check_training(/*as_view=*/true);
  check_sharded();
  check_missing_gradient();
  error_of([] { destroy_process_group(); });
}

/// Runs several jobs in one process, every second one on the other GPU. Each
/// model outlives its job.
void life_cycle() {
  std::unique_ptr<Known> known;
  for (int job = 0; job < 3; ++job) {
    join(/*shift=*/job % 2);
    check_collectives();
    known = std::make_unique<Known>(/*as_view=*/job == 1);
    const auto turned = new_group({1, 0});
    expect(turned->getRank() == 1 - rank(), "the group has another order");
    for (int step = 0; step < 3; ++step) {
      known->step();
    }
    barrier(turned);
    expect(known->is_right(), "wrong in job " + std::to_string(job));
    destroy_process_group();
    expect(!is_initialized(), "the job has not ended");
  }
  const torch::NoGradGuard no_grad;
  const auto x = torch::ones({1, 5}, known->net->weight.device());
  expect((*known->model)->forward(x).cpu().numel() == 3,
         "a model without its job computes nothing");
}

/// Ends jobs while a model's last pass is still queued. For the stand-in, which
/// runs no work early.
void leave_queued() {
  for (int job = 0; job < 5; ++job) {
    join();
    Known known;
    known.step();
    torch::cuda::synchronize();
    known.step();
    destroy_process_group();
    expect(known.is_right(), "destroy_process_group() waits for the GPU");
  }
}

const std::map<std::string, void (*)()> kScenarios{
    {"train", train},
    {"life_cycle", life_cycle},
    {"leave_queued", leave_queued},
    {"host_waits", check_host_waits},
    {"share_a_gpu", share_a_gpu},
    {"train_on", train_on},
    {"out_of_memory", run_out_of_memory},
    {"fail_on_device", fail_on_device},
    {"abort_group", abort_group}};

int run(int argc, char** argv) {
  const std::string scenario = argc > 1 ? argv[1] : "train";
  const auto found = kScenarios.find(scenario);
  if (found == kScenarios.end()) {
    std::fprintf(stderr, "unknown scenario: %s\n", scenario.c_str());
    return 2;
  }
  // A failed collective shall end its rank quickly.
  ::setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "100", 0);
  try {
    const char* rank = std::getenv("RANK");
    if (rank == nullptr) {
      return start(argv[0], scenario.c_str());
    }
    if (torch::cuda::device_count() == 1 && found->second != &share_a_gpu) {
      share_one_gpu(rank);
    }
    found->second();
    std::printf("rank %s is right\n", rank);
    return 0;
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
    return 1;
  }
}

}  // namespace
}  // namespace ddp::test

int main(int argc, char** argv) {
  return ddp::test::run(argc, argv);
}
