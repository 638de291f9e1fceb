#include <torch/cuda.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <c10/cuda/CUDACachingAllocator.h>

#include <future>

#include "dp/dp.h"
#include "test/dp/nets.h"
#include "test/dp/threads.h"
#include "test/fake_gpu/control.h"
#include "test/gpu/schedule.h"
#include "test/support/catch.h"

// What replicas on several GPUs have to do with each other, and what not.
namespace dp {
namespace data_parallel_streams_test {

using ddp::test::any_schedule;
using test::clone;
using test::close;
using test::lambda;
using torch::Tensor;

torch::Device gpu(int index) {
  return {torch::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

DataParallelOptions on_two_gpus() {
  return DataParallelOptions().device_ids({0, 1});
}

bool has_two_gpus() {
  return torch::cuda::device_count() >= 2;
}

void synchronize_all() {
  for (c10::DeviceIndex i = 0; i < torch::cuda::device_count(); ++i) {
    torch::cuda::synchronize(i);
  }
}

TEST_CASE("gradients of many sizes over GPUs", "[gpu]") {
  INFO(any_schedule());
  std::vector<int64_t> ids;
  for (int i = 0; i < std::min<int>(torch::cuda::device_count(), 3); ++i) {
    ids.push_back(i);
  }
  struct SizesImpl : torch::nn::Cloneable<SizesImpl> {
    SizesImpl() { reset(); }
    void reset() override {
      for (const int64_t size : {3, 300, 30000, 3, 30}) {
        register_parameter("p" + std::to_string(parameters_.size()),
                           torch::full({size}, 0.5));
      }
    }
    Tensor forward(const Tensor& x) {
      auto sum = x;
      for (const auto& parameter : parameters_.values()) {
        sum = sum + (parameter * x.mean()).mean();
      }
      return sum;
    }
  };
  const auto plain = std::make_shared<SizesImpl>();
  plain->to(gpu(0));
  const auto net = clone(plain);
  DataParallel model(net, DataParallelOptions().device_ids(ids));
  torch::optim::SGD one(plain->parameters(), 0.1);
  torch::optim::SGD many(model->parameters(), 0.1);
  const auto rows = static_cast<int64_t>(ids.size());
  for (int step = 1; step <= 6; ++step) {
    const auto x = torch::full({rows, 2}, 1.0 * step, gpu(0));
    one.zero_grad();
    (plain->forward(x).mean() * rows).backward();
    one.step();
    many.zero_grad();
    model->forward(x).mean(1).sum().backward();
    many.step();
  }
  CHECK(test::differences(*plain, *net, 1e-3, 1e-5).empty());
}

TEST_CASE("two models over the same GPUs in two threads", "[gpu]") {
  if (!has_two_gpus()) {
    return;
  }
  INFO(any_schedule());
  const auto train = [](double value) {
    torch::nn::Linear net(64, 1);
    net->to(gpu(0));
    DataParallel model(net, on_two_gpus());
    const torch::NoGradGuard no_grad;
    const auto x = torch::ones({4, 64}, gpu(0));
    int wrong = 0;
    for (int round = 0; round < 100; ++round) {
      net->weight.fill_(value);
      net->bias.fill_(0);
      const auto expected = torch::full({4, 1}, 64 * value, gpu(0));
      wrong += !model->forward(x).equal(expected);
    }
    return wrong;
  };
  auto first = std::async(std::launch::async, train, 1);
  auto second = std::async(std::launch::async, train, 2);
  CHECK(test::get_in_time(first, "the first thread") == 0);
  CHECK(test::get_in_time(second, "the second thread") == 0);
}

TEST_CASE("a replaced submodule without tensors over GPUs", "[gpu]") {
  if (!has_two_gpus()) {
    return;
  }
  struct DroppingImpl : torch::nn::Cloneable<DroppingImpl> {
    DroppingImpl() { reset(); }
    void reset() override {
      drop = register_module("drop", torch::nn::Dropout(p));
      fc = register_module("fc", torch::nn::Linear(3, 1));
    }
    Tensor forward(const Tensor& x) { return fc(drop(x)); }
    double p = 0;
    torch::nn::Dropout drop{nullptr};
    torch::nn::Linear fc{nullptr};
  };
  INFO(any_schedule());
  const auto net = std::make_shared<DroppingImpl>();
  net->to(gpu(0));
  DataParallel model(net, on_two_gpus());
  const auto x = torch::ones({4, 3}, gpu(0));
  CHECK(close(model->forward(x), net->forward(x)));
  net->p = 1;
  net->drop = net->replace_module("drop", torch::nn::Dropout(net->p));
  CHECK(close(model->forward(x), net->forward(x)));
}

TEST_CASE("GPUs beside the CPU get their parameters by NCCL",
          "[gpu][stand-in]") {
  torch::nn::Linear net(3, 1);
  net->to(gpu(0));
  REQUIRE(has_two_gpus());
  DataParallel model(
      net, DataParallelOptions().devices({gpu(0), torch::kCPU, gpu(1)}));
  const auto x = torch::randn({6, 3});
  const auto expected = net(x.to(gpu(0)));
  CHECK(close(model->forward(x), expected));
  fake_gpu::reset_counts();
  CHECK(close(model->forward(x), expected));
  CHECK(fake_gpu::counts().broadcasts == 2);
}

TEST_CASE("a GPU without a number is the current one", "[gpu]") {
  const int last = torch::cuda::device_count() - 1;
  const c10::DeviceGuard guard(gpu(last));
  torch::nn::Linear net(3, 1);
  net->to(torch::kCUDA);
  DataParallel model(net, DataParallelOptions().devices({torch::kCUDA}));
  CHECK(model->devices() == std::vector<torch::Device>{gpu(last)});
  CHECK(model->forward(torch::ones({2, 3})).device() == gpu(last));
}

int64_t peak_bytes(int device) {
  return c10::cuda::CUDACachingAllocator::getDeviceStats(
             static_cast<c10::DeviceIndex>(device))
      .allocated_bytes[0]
      .peak;
}

int64_t current_bytes(int device) {
  return c10::cuda::CUDACachingAllocator::getDeviceStats(
             static_cast<c10::DeviceIndex>(device))
      .allocated_bytes[0]
      .current;
}

TEST_CASE("large parameters are not held twice", "[gpu]") {
  if (!has_two_gpus()) {
    return;
  }
  constexpr int64_t kMiB = 1 << 20;
  constexpr int64_t kTable = 32 * kMiB;
  struct TableImpl : torch::nn::Cloneable<TableImpl> {
    TableImpl() { reset(); }
    void reset() override {
      table = register_parameter("table", torch::ones({kTable / 4}));
      scale = register_parameter("scale", torch::ones({1}));
    }
    Tensor forward(const Tensor& x) { return (table * x).sum() * scale; }
    Tensor table, scale;
  };
  const auto net = std::make_shared<TableImpl>();
  net->to(gpu(0));
  const auto options = on_two_gpus();
  const auto growth = [](int device, const std::function<void()>& work) {
    synchronize_all();
    c10::cuda::CUDACachingAllocator::emptyCache();
    c10::cuda::CUDACachingAllocator::resetPeakStats(
        static_cast<c10::DeviceIndex>(device));
    const auto before = current_bytes(device);
    work();
    return peak_bytes(device) - before;
  };
  std::optional<DataParallel<TableImpl>> model;
  CHECK(growth(1, [&] { model.emplace(net, options); }) < kTable + kMiB);
  const torch::NoGradGuard no_grad;
  const auto x = torch::ones({2, 1});
  // On the first GPU a product, and nothing to send.
  CHECK(growth(0, [&] { (*model)->forward(x); }) < kTable + kMiB);
}

}  // namespace data_parallel_streams_test
}  // namespace dp
