#include <torch/cuda.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <ATen/cuda/CUDAEvent.h>
#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <deque>
#include <functional>
#include <future>
#include <numeric>

#include "dp/dp.h"
#include "test/dp/nets.h"
#include "test/dp/threads.h"
#include "test/fake_gpu/control.h"
#include "test/gpu/nccl_ranks.h"
#include "test/gpu/schedule.h"
#include "test/support/catch.h"

// Tests the synchronisation of streams between replicas on several GPUs.
namespace dp {
namespace data_parallel_streams_test {

using ddp::test::any_schedule;
using ddp::test::has_gpus;
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
  if (!has_gpus(2)) {
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

// In mode lazy only operations that the forward needs run. If a broadcast were
// queued in a stream of the pool, the operations before it would run, too.
TEST_CASE("broadcasts share no stream with the program", "[gpu][stand-in]") {
  REQUIRE(has_gpus(2));
  constexpr int kStreamsOfPool = 32;
  fake_gpu::schedule(fake_gpu::Mode::lazy, 1);
  torch::nn::Linear net(3, 1);
  net->to(gpu(0));
  DataParallel model(net, on_two_gpus());
  const auto x = torch::ones({4, 3}, gpu(0));
  std::vector<Tensor> kept;
  std::deque<at::cuda::CUDAEvent> queued;
  for (int i = 0; i < 2 * kStreamsOfPool; ++i) {
    const auto device = gpu(i % 2);
    const auto stream =
        c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index());
    const c10::StreamGuard guard(stream.unwrap());
    kept.push_back(torch::ones({1}, device));
    queued.emplace_back().record(stream);
  }
  CHECK(close(model->forward(x), net->forward(x)));
  for (const auto& event : queued) {
    CHECK(!event.query());
  }
}

TEST_CASE("a replaced submodule without tensors over GPUs", "[gpu]") {
  if (!has_gpus(2)) {
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
  REQUIRE(has_gpus(2));
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

/// Returns the bytes of blocks that are in use or may still be used by a
/// stream.
c10::CachingAllocator::Stat active_bytes(int device) {
  return c10::cuda::CUDACachingAllocator::getDeviceStats(
             static_cast<c10::DeviceIndex>(device))
      .active_bytes[0];
}

/// Returns the growth of the active bytes at the peak of `work`.
int64_t growth(int device, const std::function<void()>& work) {
  synchronize_all();
  c10::cuda::CUDACachingAllocator::emptyCache();
  c10::cuda::CUDACachingAllocator::resetPeakStats(
      static_cast<c10::DeviceIndex>(device));
  const auto before = active_bytes(device).current;
  work();
  return active_bytes(device).peak - before;
}

TEST_CASE("gradients of replicas do not pile up on the first GPU", "[gpu]") {
  if (!has_gpus(2)) {
    return;
  }
  constexpr int64_t kCount = 16;
  constexpr int64_t kBytes = 4 << 20;
  struct LayersImpl : torch::nn::Cloneable<LayersImpl> {
    LayersImpl() { reset(); }
    void reset() override {
      for (int64_t i = 0; i < kCount; ++i) {
        register_parameter("p" + std::to_string(i), torch::ones({kBytes / 4}));
      }
    }
    Tensor forward(const Tensor& x) {
      auto sum = x;
      for (const auto& parameter : parameters_.values()) {
        sum = sum + parameter.sum();
      }
      return sum;
    }
  };
  std::vector<int64_t> ids(std::min<size_t>(torch::cuda::device_count(), 3));
  std::iota(ids.begin(), ids.end(), 0);
  const auto net = std::make_shared<LayersImpl>();
  net->to(gpu(0));
  DataParallel model(net, DataParallelOptions().device_ids(ids));
  const auto x = torch::ones({static_cast<int64_t>(ids.size()), 1}, gpu(0));
  const auto loss = model->forward(x).sum();
  // The gradients, and partial sums of some of them.
  CHECK(growth(0, [&] { loss.backward(); }) < (kCount + 8) * kBytes);
  for (const auto& parameter : net->parameters()) {
    CHECK(parameter.grad().eq(1.0 * ids.size()).all().item<bool>());
  }
}

TEST_CASE("large parameters are not held twice", "[gpu]") {
  if (!has_gpus(2)) {
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
  std::optional<DataParallel<TableImpl>> model;
  CHECK(growth(1, [&] { model.emplace(net, options); }) < kTable + kMiB);
  const torch::NoGradGuard no_grad;
  const auto x = torch::ones({2, 1});
  // On the first GPU: a product, and no memory for sending.
  CHECK(growth(0, [&] { (*model)->forward(x); }) < kTable + kMiB);
}

}  // namespace data_parallel_streams_test
}  // namespace dp
