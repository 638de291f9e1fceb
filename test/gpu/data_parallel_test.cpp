#include <torch/autograd.h>
#include <torch/cuda.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <ATen/autocast_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "dp/dp.h"
#include "test/dp/nets.h"
#include "test/dp/threads.h"
#include "test/gpu/schedule.h"
#include "test/support/catch.h"

// Tests DataParallel on all GPUs. With one GPU the other replicas are on the
// CPU: values and gradients are copied between devices as between GPUs, but
// without NCCL.
namespace dp {
namespace data_parallel_test {

using test::clone;
using test::close;
using test::differences;
using test::lambda;
using test::Net;
using torch::Tensor;
using Devices = std::vector<torch::Device>;
using Names = std::vector<std::string>;

const torch::Device kGpu(torch::kCUDA, 0);

Devices all_gpus() {
  Devices result;
  for (c10::DeviceIndex i = 0; i < torch::cuda::device_count(); ++i) {
    result.emplace_back(torch::kCUDA, i);
  }
  return result;
}

/// Returns the lists of devices on which a test runs.
std::vector<Devices> device_lists() {
  std::vector<Devices> lists{
      {kGpu}, {kGpu, torch::kCPU}, {torch::kCPU, kGpu, torch::kCPU}};
  const auto gpus = all_gpus();
  for (size_t count = 2; count <= gpus.size(); ++count) {
    lists.emplace_back(gpus.begin(), gpus.begin() + count);
  }
  if (gpus.size() > 1) {
    lists.push_back(gpus);
    lists.back().emplace_back(torch::kCPU);
  }
  return lists;
}

/// Repeats the calling test for each list of devices, each with another
/// schedule of the stand-in.
Devices any_devices() {
  const auto lists = device_lists();
  const size_t i = GENERATE_COPY(range(size_t{0}, lists.size()));
  ddp::test::use_schedule(i);
  return lists[i];
}

TEST_CASE("training over devices equals that of the plain module", "[gpu]") {
  const auto devices = any_devices();
  torch::manual_seed(1);
  Net plain;
  plain->to(devices[0]);
  plain->norm->eval();
  const auto net = clone(plain.ptr());
  net->norm->eval();
  DataParallel model(net, DataParallelOptions().devices(devices));
  torch::optim::SGD one(plain->parameters(),
                        torch::optim::SGDOptions(0.05).momentum(0.9));
  torch::optim::SGD many(model->parameters(),
                         torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < 20; ++step) {
    const auto images = torch::randn({11, 1, 8, 8}, devices[0]);
    const auto labels =
        torch::randint(5, {11}, torch::dtype(torch::kLong).device(devices[0]));
    one.zero_grad();
    torch::cross_entropy_loss(plain(images), labels).backward();
    one.step();
    many.zero_grad();
    const auto scores = model->forward(images);
    CHECK(scores.device() == devices[0]);
    torch::cross_entropy_loss(scores, labels).backward();
    many.step();
  }
  CHECK(differences(*plain, *net, 1e-3, 1e-5) == Names());
}

TEST_CASE("training on streams of the user's", "[gpu]") {
  const auto devices = any_devices();
  torch::manual_seed(2);
  torch::nn::Linear plain(512, 512);
  plain->to(devices[0]);
  const auto net = clone(plain.ptr());
  torch::cuda::synchronize();
  {
    // Enter the last device first, so that the first one is current in the end.
    std::vector<std::unique_ptr<c10::StreamGuard>> guards;
    for (auto device = devices.rbegin(); device != devices.rend(); ++device) {
      if (device->is_cuda()) {
        guards.push_back(std::make_unique<c10::StreamGuard>(
            c10::cuda::getStreamFromPool(false, device->index())));
      }
    }
    DataParallel model(net, DataParallelOptions().devices(devices));
    torch::optim::SGD one(plain->parameters(), 0.1);
    torch::optim::SGD many(model->parameters(), 0.1);
    for (int step = 0; step < 30; ++step) {
      const auto x = torch::randn({64, 512}, devices[0]);
      one.zero_grad();
      plain(x).pow(2).mean().backward();
      one.step();
      many.zero_grad();
      model->forward(x).pow(2).mean().backward();
      many.step();
    }
    while (!guards.empty()) {
      guards.pop_back();
    }
  }
  torch::cuda::synchronize();
  CHECK(differences(*plain, *net, 1e-3, 1e-5) == Names());
}

TEST_CASE("replicas run on their device, on the caller's stream", "[gpu]") {
  const auto devices = any_devices();
  std::vector<c10::Stream> streams;
  for (const auto device : devices) {
    streams.push_back(
        device.is_cuda()
            ? c10::cuda::getStreamFromPool(false, device.index()).unwrap()
            : c10::Stream(c10::Stream::DEFAULT, torch::kCPU));
  }
  const auto net = lambda([](auto&, const Tensor& x) {
    const auto device = c10::cuda::current_device();
    const auto stream = c10::cuda::getCurrentCUDAStream();
    return torch::full_like(
        x, x.is_cuda() ? device * 1000 + static_cast<int>(stream.id()) : -1);
  });
  net->to(devices[0]);
  DataParallel model(net, DataParallelOptions().devices(devices));
  std::vector<std::unique_ptr<c10::StreamGuard>> guards;
  for (const auto& stream : streams) {
    if (stream.device().is_cuda()) {
      guards.push_back(std::make_unique<c10::StreamGuard>(stream));
    }
  }
  const auto rows = static_cast<int64_t>(devices.size());
  const auto seen = model->forward(torch::zeros({rows}, torch::kDouble)).cpu();
  while (!guards.empty()) {
    guards.pop_back();
  }
  for (int64_t i = 0; i < rows; ++i) {
    const auto place = static_cast<size_t>(i);
    const int expected =
        devices[place].is_cuda()
            ? devices[place].index() * 1000 +
                  static_cast<int>(c10::cuda::CUDAStream(streams[place]).id())
            : -1;
    CHECK(seen[i].item<int>() == expected);
  }
}

TEST_CASE("the gradient can be differentiated on devices", "[gpu]") {
  const auto devices = any_devices();
  torch::manual_seed(3);
  torch::nn::Sequential plain(
      torch::nn::Linear(3, 8), torch::nn::Tanh(), torch::nn::Linear(8, 1));
  plain->to(devices[0]);
  const auto net =
      std::dynamic_pointer_cast<torch::nn::SequentialImpl>(plain->clone());
  DataParallel model(net, DataParallelOptions().devices(devices));
  const auto data = torch::randn({8, 3}, devices[0]);
  const auto penalised = [&](auto& module) {
    const auto x = data.clone().requires_grad_();
    const auto score = module->forward(x).sum();
    auto loss =
        (torch::autograd::grad({score}, {x}, {}, {}, true)[0].norm(2, 1) - 1)
            .pow(2)
            .sum();
    for (const auto& grad :
         torch::autograd::grad({score}, module->parameters(), {}, {}, true)) {
      loss = loss + grad.pow(2).sum();
    }
    loss.backward();
    return x.grad();
  };
  CHECK(close(penalised(plain), penalised(model), 1e-4, 1e-5));
  for (size_t i = 0; i < plain->parameters().size(); ++i) {
    const auto expected = plain->parameters()[i].grad();
    CHECK(net->parameters()[i].grad().defined() == expected.defined());
    if (expected.defined()) {
      CHECK(close(net->parameters()[i].grad(), expected, 1e-4, 1e-5));
    }
  }
}

/// Parameters of many dtypes, and one that only later replicas use.
struct MixedImpl : torch::nn::Cloneable<MixedImpl> {
  MixedImpl() { reset(); }
  void reset() override {
    single = register_parameter("single", torch::full({1000, 3}, 2.0));
    half = register_parameter("half", torch::full({1}, 0.5, torch::kHalf));
    complex = register_parameter(
        "complex",
        torch::full({3}, c10::complex<float>(1, 2), torch::kComplexFloat));
    late = register_parameter("late", torch::ones({1}));
    unused = register_parameter("unused", torch::ones({1}));
    steps = register_buffer("steps", torch::tensor(7, torch::kShort));
    flag = register_buffer("flag", torch::tensor(true));
  }
  Tensor forward(const Tensor& x) {
    const auto y = torch::linear(x, single).sum(1) * half.to(torch::kFloat) +
                   torch::abs(complex).sum() * steps * flag;
    return x[0][0].item<float>() < 0 ? y : y * late;
  }
  Tensor single, half, complex, late, unused, steps, flag;
};

TEST_CASE("state of any type crosses devices, and gradients come back",
          "[gpu]") {
  const auto devices = any_devices();
  const auto plain = std::make_shared<MixedImpl>();
  plain->to(devices[0]);
  const auto net = clone(plain);
  DataParallel model(net, DataParallelOptions().devices(devices));
  const auto rows = static_cast<int64_t>(devices.size());
  const auto x = torch::rand({rows, 3}, devices[0]);
  x[0].neg_();
  // The plain module, row by row.
  std::vector<Tensor> outputs;
  for (const auto& row : x.split(1)) {
    outputs.push_back(plain->forward(row));
  }
  const auto expected = torch::cat(outputs);
  for (int pass = 0; pass < 2; ++pass) {
    const auto output = model->forward(x);
    CHECK(close(output, expected));
    output.sum().backward();
    expected.sum().backward({}, /*retain_graph=*/true);
  }
  for (const auto& item : plain->named_parameters()) {
    INFO(item.key());
    const auto grad = net->named_parameters()[item.key()].grad();
    REQUIRE(grad.defined() == item.value().grad().defined());
    if (grad.defined()) {
      CHECK(grad.device() == devices[0]);
      // Each device's share is rounded to half.
      const bool is_half = grad.scalar_type() == torch::kHalf;
      CHECK(close(grad, item.value().grad(), is_half ? 1e-2 : 1e-4));
    }
  }
  // A gradient that comes only from other devices behaves like any other.
  torch::optim::SGD(model->parameters(), 0.1).zero_grad(false);
}

TEST_CASE("batch norm keeps the first device's statistics", "[gpu]") {
  const auto devices = any_devices();
  torch::nn::BatchNorm1d net(3);
  net->to(devices[0]);
  const auto plain = clone(net.ptr());
  DataParallel model(net, DataParallelOptions().devices(devices));
  const auto x =
      torch::randn({4 * static_cast<int64_t>(devices.size()), 3}, devices[0]);
  for (int step = 0; step < 3; ++step) {
    plain->forward(x.slice(0, 0, 4));
    model->forward(x);
  }
  CHECK(differences(*plain, *net, 1e-4, 1e-6) == Names());
}

TEST_CASE("cuDNN rearranges the memory of an RNN", "[gpu]") {
  const auto devices = any_devices();
  torch::nn::LSTM plain(torch::nn::LSTMOptions(4, 8).batch_first(true));
  plain->to(devices[0]);
  plain->flatten_parameters();
  const auto net = clone(plain.ptr());
  DataParallel model(net, DataParallelOptions().devices(devices));
  torch::optim::SGD one(plain->parameters(), 0.1);
  torch::optim::SGD many(model->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    const auto x = torch::randn({6, 5, 4}, devices[0]);
    one.zero_grad();
    std::get<0>(plain->forward(x)).sum().backward();
    one.step();
    many.zero_grad();
    const auto each = model->forward_each(x);
    auto loss = torch::zeros({}, devices[0]);
    for (const auto& result : each) {
      loss = loss + std::get<0>(result).sum().to(devices[0]);
    }
    loss.backward();
    many.step();
  }
  CHECK(differences(*plain, *net, 1e-3, 1e-5) == Names());
}

TEST_CASE("results lie where they are asked for", "[gpu]") {
  const auto devices = any_devices();
  torch::nn::Linear net(3, 1);
  net->to(devices[0]);
  Devices targets = all_gpus();
  targets.emplace_back(torch::kCPU);
  const auto x = torch::randn({7, 3});  // inputs may be on any device
  for (const auto target : targets) {
    DataParallel model(
        net, DataParallelOptions().devices(devices).output_device(target));
    const auto output = model->forward(x);
    CHECK(output.device() == target);
    CHECK(close(output.to(devices[0]), net(x.to(devices[0]))));
    output.sum().backward();
  }
}

TEST_CASE("the default is all GPUs", "[gpu]") {
  torch::nn::Linear net(3, 1);
  CHECK_THROWS_WITH(DataParallel(net),
                    Catch::Contains("Expected the module to have its "
                                    "parameters and buffers on cuda:0, the "
                                    "first of its devices, but got weight on "
                                    "cpu"));
  net->to(kGpu);
  DataParallel model(net);
  CHECK(model->devices() == all_gpus());
  CHECK(model->output_device() == kGpu);
  CHECK(close(model->forward(torch::ones({9, 3})),
              net(torch::ones({9, 3}, kGpu))));
  CHECK_THROWS_WITH(DataParallel(net, DataParallelOptions().device_ids({0, 0})),
                    Catch::Contains("cuda:0 twice"));
}

TEST_CASE("one GPU is the module alone", "[gpu]") {
  torch::nn::Linear net(3, 1);
  net->to(kGpu);
  // The count is not zero: threads that a replica's thread has started, such as
  // OpenMP's, inherit its name.
  const int before = test::count_threads("dp_replica_");
  DataParallel model(net, DataParallelOptions().device_ids({0}));
  const auto x = torch::ones({4, 3});
  model->forward(x).sum().backward();
  CHECK(model->forward(x).equal(net(x.to(kGpu))));
  CHECK(model->traffic()[0].state_bytes == 0);
  CHECK(test::count_threads("dp_replica_") == before);
  if (torch::cuda::device_count() == 1) {
    CHECK(test::count_threads("NCCL") == 0);
  }
}

TEST_CASE("autocast of the GPU is carried over", "[gpu]") {
  const auto devices = any_devices();
  torch::nn::Linear net(8, 8);
  net->to(devices[0]);
  DataParallel model(net, DataParallelOptions().devices(devices));
  at::autocast::set_autocast_enabled(at::kCUDA, true);
  at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
  const auto each = model->forward_each(torch::ones({8, 8}, devices[0]));
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCUDA, false);
  for (const auto& output : each) {
    CHECK(output.scalar_type() ==
          (output.is_cuda() ? at::kBFloat16 : at::kFloat));
  }
}

TEST_CASE("out of memory in a replica keeps its type", "[gpu]") {
  bool fails = true;
  const auto net = lambda([&](auto& self, const Tensor& x) {
    return fails && x.is_cuda() ? torch::empty({int64_t{1} << 50}, x.options())
                                : self.linear(x);
  });
  net->to(kGpu);
  DataParallel model(net, DataParallelOptions().devices({kGpu, torch::kCPU}));
  const auto x = torch::ones({4, 3});
  try {
    model->forward(x);
    FAIL("no error");
  } catch (const c10::OutOfMemoryError& error) {
    CHECK_THAT(error.what_without_backtrace(),
               Catch::Contains("(replica 0 of 2 on cuda:0)"));
  }
  fails = false;
  CHECK(close(model->forward(x), net->forward(x.to(kGpu))));
}

TEST_CASE("steps do not eat up memory", "[gpu]") {
  const auto devices = any_devices();
  Net net;
  net->to(devices[0]);
  DataParallel model(net, DataParallelOptions().devices(devices));
  torch::optim::Adam optimizer(model->parameters());
  const auto images = torch::randn({8, 1, 8, 8}, devices[0]);
  const auto used = [] {
    for (const auto gpu : all_gpus()) {
      torch::cuda::synchronize(gpu.index());
    }
    // The allocator must process its events before blocks used by another
    // stream count as free.
    c10::cuda::CUDACachingAllocator::emptyCache();
    int64_t bytes = 0;
    for (const auto gpu : all_gpus()) {
      bytes += c10::cuda::CUDACachingAllocator::getDeviceStats(gpu.index())
                   .allocated_bytes[0]
                   .current;
    }
    return bytes;
  };
  std::vector<int64_t> after;
  for (int step = 0; step < 10; ++step) {
    model->forward(images).sum().backward();
    optimizer.step();
    // A gradient may be a piece of a larger tensor, if one device was faster
    // than another.
    optimizer.zero_grad();
    after.push_back(used());
  }
  // Autograd's threads may release their last tensors after backward() has
  // returned.
  const auto level = *std::min_element(after.begin() + 2, after.begin() + 5);
  CHECK(test::eventually([&] { return used() <= level; }));
}

}  // namespace data_parallel_test
}  // namespace dp
