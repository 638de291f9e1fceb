// Replicas and threads that persist from step to step.
#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "dp/data_parallel/detail/replica_threads.h"
#include "dp/dp.h"
#include "test/dp/nets.h"
#include "test/dp/threads.h"
#include "test/support/catch.h"

namespace dp {
namespace replicas_test {

using test::clone;
using test::close;
using test::lambda;
using test::Net;
using test::on_cpus;
using torch::Tensor;

/// Counts its resets; each clone() causes one.
struct CountedImpl : torch::nn::Cloneable<CountedImpl> {
  explicit CountedImpl(int* resets) : resets(resets) { reset(); }
  void reset() override {
    ++*resets;
    fc = register_module("fc", torch::nn::Linear(3, 3));
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
    dropout = register_module("dropout", torch::nn::Dropout(0.5));
  }
  Tensor forward(const Tensor& x) { return norm(fc(x)) * factor; }
  int* resets;
  double factor = 1;
  torch::nn::Linear fc{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
};

TEST_CASE("replicas are cloned once", "[dp]") {
  int resets = 0;
  const auto net = std::make_shared<CountedImpl>(&resets);
  DataParallel model(net, on_cpus(3));
  CHECK(resets == 3);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    model->forward(torch::randn({6, 3})).sum().backward();
    optimizer.step();
  }
  CHECK(resets == 3);
}

TEST_CASE("making replicas draws no random numbers", "[dp]") {
  const Net net;
  torch::manual_seed(11);
  const auto expected = torch::rand({4});
  for (const int replicas : {1, 2, 4}) {
    torch::manual_seed(11);
    DataParallel model(net, on_cpus(replicas));
    model->remake_replicas();
    CHECK(torch::rand({4}).equal(expected));
  }
}

TEST_CASE("each replica drops elements of its own", "[dp]") {
  auto net = lambda([](auto&, const Tensor& x) {
    return torch::dropout(x, /*p=*/0.5, /*train=*/true);
  });
  DataParallel model(net, on_cpus(2));
  const auto kept = model(torch::ones({2, 1000})).gt(0);
  for (const int row : {0, 1}) {
    const auto count = kept[row].sum().item<int64_t>();
    CHECK((count > 400 && count < 600));
  }
  const auto both = kept[0].logical_and(kept[1]).sum().item<int64_t>();
  CHECK((both > 150 && both < 350));
}

TEST_CASE("values are fresh, whoever changed them and how", "[dp]") {
  torch::nn::Linear net(2, 1);
  DataParallel model(net, on_cpus(2));
  const auto x = torch::ones({2, 2});
  const auto check = [&] {
    const auto output = model->forward(x);
    CHECK(output[0].equal(output[1]));
    CHECK(output.equal(net(x)));
  };
  check();
  {
    const torch::NoGradGuard no_grad;
    net->weight.fill_(3);
    check();
    net->weight.data().fill_(4);
    check();
  }
  net->weight.set_data(torch::full({1, 2}, 5.0));
  check();
}

TEST_CASE("replicas follow what becomes of the module", "[dp]") {
  int resets = 0;
  const auto net = std::make_shared<CountedImpl>(&resets);
  net->eval();
  DataParallel model(net, on_cpus(2));
  auto x = torch::randn({4, 3});
  const auto check = [&] { CHECK(close(model->forward(x), net->forward(x))); };
  check();
  net->to(torch::kDouble);
  x = x.to(torch::kDouble);
  check();
  CHECK(resets == 3);
  net->fc->to(torch::kDouble);  // changes nothing
  check();
  CHECK(resets == 3);
  net->fc = net->replace_module("fc", torch::nn::Linear(3, 3));
  net->fc->to(torch::kDouble);
  check();
  CHECK(resets == 4);
}

TEST_CASE("what is no parameter stays as cloned until remake_replicas",
          "[dp]") {
  int resets = 0;
  const auto net = std::make_shared<CountedImpl>(&resets);
  net->eval();
  DataParallel model(net, on_cpus(2));
  const auto x = torch::ones({2, 3});
  const auto before = net->forward(x);
  net->factor = 10;
  const auto mixed = model->forward(x);
  CHECK(close(mixed[0], before[0] * 10));
  CHECK(close(mixed[1], before[1]));
  model->remake_replicas();
  CHECK(close(model->forward(x), before * 10));
}

TEST_CASE("training modes go from submodule to submodule", "[dp]") {
  std::mutex mutex;
  std::multiset<std::string> seen;
  const auto report = [&](const CountedImpl& self) {
    const std::lock_guard lock(mutex);
    seen.insert(std::string(self.is_training() ? "1" : "0") +
                (self.fc->is_training() ? "1" : "0") +
                (self.norm->is_training() ? "1" : "0"));
  };
  struct ReportingImpl : torch::nn::Cloneable<ReportingImpl> {
    explicit ReportingImpl(std::function<void(const CountedImpl&)> report)
        : report(std::move(report)) {
      reset();
    }
    void reset() override {
      inner = register_module("inner", std::make_shared<CountedImpl>(&resets));
    }
    Tensor forward(const Tensor& x) {
      report(*inner);
      return x;
    }
    int resets = 0;
    std::function<void(const CountedImpl&)> report;
    std::shared_ptr<CountedImpl> inner;
  };
  const auto net = std::make_shared<ReportingImpl>(report);
  DataParallel model(net, on_cpus(3));
  const auto modes = [&] {
    seen.clear();
    model->forward(torch::ones({3}));
    return seen;
  };
  using Modes = std::multiset<std::string>;
  CHECK(modes() == Modes{"111", "111", "111"});
  net->inner->norm->eval();
  CHECK(modes() == Modes{"110", "110", "110"});
  model->eval();
  CHECK(modes() == Modes{"000", "000", "000"});
  model->train();
  net->inner->fc->eval();
  CHECK(modes() == Modes{"101", "101", "101"});
}

TEST_CASE("memory that a module took elsewhere is taken back", "[dp]") {
  // As flatten_parameters() of an RNN does on a GPU.
  const auto net = lambda([](auto& self, const Tensor& x) {
    const auto output = self.linear(x);
    self.linear->weight.set_data(self.linear->weight.data().clone());
    return output;
  });
  DataParallel model(net, on_cpus(2));
  const auto x = torch::ones({2, 3});
  for (int step = 0; step < 3; ++step) {
    {
      const torch::NoGradGuard no_grad;
      net->linear->weight.fill_(step);
    }
    const auto output = model->forward(x);
    CHECK(output[0].equal(output[1]));
  }
}

TEST_CASE("modules without clone() are made by make_replica", "[dp]") {
  struct Shape : torch::nn::Module {
    virtual Tensor forward(const Tensor& x) = 0;
  };
  struct Line : Shape {
    Line() : fc(register_module("fc", torch::nn::Linear(3, 2))) {}
    Tensor forward(const Tensor& x) override { return fc(x); }
    torch::nn::Linear fc;
  };
  const std::shared_ptr<Shape> net = std::make_shared<Line>();
  DataParallel model(
      net, on_cpus(3).make_replica([] { return std::make_shared<Line>(); }));
  const auto x = torch::randn({6, 3});
  CHECK(close(model->forward(x), net->forward(x)));
  net->to(torch::kDouble);
  CHECK(close(model->forward(x.to(torch::kDouble)),
              net->forward(x.to(torch::kDouble))));
}

TEST_CASE("replicas see the caller's modes", "[dp]") {
  // 1: grad mode, 2: inference mode, 4: autocast, 8: bfloat16, 16: autocast
  // cache
  const auto net = lambda([](auto&, const Tensor& x) {
    const bool bfloat16 =
        at::autocast::get_autocast_dtype(at::kCPU) == at::kBFloat16;
    return torch::full_like(
        x,
        1 * c10::GradMode::is_enabled() + 2 * c10::InferenceMode::is_enabled() +
            4 * at::autocast::is_autocast_enabled(at::kCPU) + 8 * bfloat16 +
            16 * at::autocast::is_autocast_cache_enabled());
  });
  DataParallel model(net, on_cpus(2));
  const auto modes = [&] {
    const auto x = torch::zeros({2});
    const auto output = model->forward(x);
    CHECK(output.equal(net->forward(x)));
    return output[1].item<int>();
  };
  CHECK(modes() == 1 + 8 + 16);
  {
    const torch::NoGradGuard no_grad;
    CHECK(modes() == 8 + 16);
  }
  {
    const c10::InferenceMode inference;
    CHECK(modes() == 2 + 8 + 16);
  }
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
  at::autocast::set_autocast_cache_enabled(false);
  CHECK(modes() == 1 + 4);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_cache_enabled(true);
  CHECK(modes() == 1 + 8 + 16);
}

TEST_CASE("autocast computes as in the plain module", "[dp]") {
  torch::manual_seed(1);
  torch::nn::Sequential plain(torch::nn::Linear(8, 8), torch::nn::Linear(8, 2));
  const auto net =
      std::dynamic_pointer_cast<torch::nn::SequentialImpl>(plain->clone());
  DataParallel model(net, on_cpus(2));
  const auto x = torch::rand({4, 8});
  const auto train = [&](auto& module) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const auto output = module->forward(x);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    CHECK(output.scalar_type() == at::kBFloat16);
    output.sum().backward();
    return output;
  };
  CHECK(train(plain).equal(train(model)));
  for (size_t i = 0; i < 4; ++i) {
    // Sums of bfloat16 numbers up to 2, in another order.
    CHECK(close(
        net->parameters()[i].grad(), plain->parameters()[i].grad(), 0, 0.05));
  }
}

TEST_CASE("inference mode first, training after it", "[dp]") {
  torch::nn::Linear net(3, 1);
  DataParallel model(net, on_cpus(2));
  {
    const c10::InferenceMode inference;
    CHECK(model->forward(torch::ones({4, 3})).is_inference());
    model->remake_replicas();
  }
  model->forward(torch::ones({4, 3})).sum().backward();
  CHECK(net->weight.grad().equal(torch::full({1, 3}, 4.0)));
}

TEST_CASE("replicas compute at the same time, each on its thread", "[dp]") {
  // Each replica waits for the others, and fails if they do not run
  // concurrently.
  test::Counter arrived;
  std::mutex mutex;
  std::set<std::thread::id> threads;
  const auto net = lambda([&](auto&, const Tensor& x) {
    arrived.meet(3);
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
    return x;
  });
  DataParallel model(net, on_cpus(3));
  for (int step = 0; step < 10; ++step) {
    model->forward(torch::ones({3}));
  }
  CHECK(threads.size() == 3);
}

TEST_CASE("the caller's intra-op threads are shared out", "[dp]") {
  const int before = at::get_num_threads();
  const auto net = lambda([](auto&, const Tensor& x) {
    return torch::full_like(x, at::get_num_threads());
  });
  DataParallel model(net, on_cpus(2));
  const auto x = torch::ones({2});
  for (const int all : {5, 5, 1, 4}) {
    at::set_num_threads(all);
    const auto share = std::max(1, all / 2);
    CHECK(model->forward(x).eq(share).all().item<bool>());
    CHECK(at::get_num_threads() == all);
    int of_new_thread = 0;
    std::thread([&] { of_new_thread = at::get_num_threads(); }).join();
    CHECK(of_new_thread == all);
  }
  at::set_num_threads(before);
}

TEST_CASE("threads end with the wrapper", "[dp]") {
  const std::string name = "dp_replica_";
  CHECK(test::no_threads(name));
  torch::nn::Linear net(3, 1);
  for (int i = 0; i < 3; ++i) {
    DataParallel model(net, on_cpus(4));
    CHECK(test::no_threads(name));  // not before the first forward
    for (int step = 0; step < 3; ++step) {
      model->forward(torch::ones({8, 3}));
      CHECK(test::count_threads(name) == 4);
    }
  }
  CHECK(test::no_threads(name));
  test::data_parallel(net, torch::ones({8, 3}), test::cpus(2));
  CHECK(test::no_threads(name));
}

TEST_CASE("every replica runs, and the first error is thrown", "[dp]") {
  detail::ReplicaThreads threads(test::cpus(4));
  for (int round = 0; round < 200; ++round) {
    const bool fails = round % 2 == 0;
    std::atomic<int> sum{0};
    const auto run = [&] {
      threads.run({0, 2, 3}, [&](size_t replica) {
        sum += static_cast<int>(replica);
        TORCH_CHECK(!fails || replica == 0, "replica ", replica, " fails");
      });
    };
    if (fails) {
      CHECK_THROWS_WITH(
          run(), Catch::Contains("replica 2 fails (replica 2 of 4 on cpu)"));
    } else {
      run();
    }
    CHECK(sum == 5);
  }
}

/// Counts allocations of CPU memory on this thread and on threads that take
/// over its state.
class AllocationCounter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(
      void*, int64_t size, size_t, size_t, c10::Device) override {
    count += size > 0;
    live += size;
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::atomic<int64_t> count{0};
  std::atomic<int64_t> live{0};
};

TEST_CASE("a step allocates as much as the one before", "[dp]") {
  const auto counter = std::make_shared<AllocationCounter>();
  Net net;
  DataParallel model(net, on_cpus(3));
  torch::optim::SGD optimizer(model->parameters(),
                              torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto images = torch::randn({6, 1, 8, 8});
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
  std::vector<std::pair<int64_t, int64_t>> steps;
  for (int step = 0; step < 100; ++step) {
    const int64_t count = counter->count;
    optimizer.zero_grad();
    model->forward(images).sum().backward();
    optimizer.step();
    steps.emplace_back(counter->count - count, counter->live);
  }
  for (size_t step = 3; step < steps.size(); ++step) {
    CHECK(steps[step] == steps[2]);
  }
  CHECK(steps[2].first > 0);
}

int64_t bytes(const std::vector<Tensor>& tensors) {
  int64_t sum = 0;
  for (const auto& tensor : tensors) {
    sum += static_cast<int64_t>(tensor.nbytes());
  }
  return sum;
}

/// Counts the tensors that LibTorch copies and clones on any thread during its
/// lifetime.
class CopyCounter {
 public:
  CopyCounter()
      : handle_(at::addGlobalCallback(at::RecordFunctionCallback(&count).scopes(
            {at::RecordScope::FUNCTION}))) {
    copies = 0;
    clones = 0;
  }
  ~CopyCounter() { at::removeCallback(handle_); }
  CopyCounter(const CopyCounter&) = delete;

  static inline std::atomic<int64_t> copies;
  static inline std::atomic<int64_t> clones;

 private:
  static std::unique_ptr<at::ObserverContext> count(
      const at::RecordFunction& call) {
    const std::string name = call.name();
    copies += name == "aten::copy_";
    clones += name == "aten::clone";
    return nullptr;
  }

  at::CallbackHandle handle_;
};

/// State of several dtypes. Its forward does nothing.
struct StateImpl : torch::nn::Cloneable<StateImpl> {
  StateImpl() { reset(); }
  void reset() override {
    norm = register_module("norm", torch::nn::BatchNorm1d(7));
    register_parameter("wide", torch::ones({5}, torch::kDouble));
    register_parameter("again", norm->weight);
    register_parameter("frozen", torch::ones({3}, torch::kHalf), false);
  }
  Tensor forward(const Tensor& x) { return x; }
  torch::nn::BatchNorm1d norm{nullptr};
};

TEST_CASE("a step copies parameters and buffers in few pieces to each device",
          "[dp]") {
  const size_t count = GENERATE(1, 2, 4);
  const auto net = std::make_shared<StateImpl>();
  DataParallel model(net, on_cpus(count));
  const auto x = torch::ones({8, 2});
  model->forward(x);
  model->reset_traffic();
  const int64_t state = 4 * 4 * 7 + 8 + 8 * 5 + 2 * 3;
  // The floats are copied together, the three other tensors one by one.
  const int64_t floats = 4;
  const int64_t pieces = 4;
  const auto extra = static_cast<int64_t>(count) - 1;
  for (int64_t step = 1; step <= 20; ++step) {
    const CopyCounter counter;
    model->forward(x);
    CHECK(counter.copies == (extra > 0 ? floats + extra * pieces : 0));
    CHECK(counter.clones == 0);
    for (size_t i = 1; i < count; ++i) {
      CHECK(model->traffic()[i].state_bytes == step * state);
    }
  }
}

TEST_CASE("traffic is counted by replica", "[dp]") {
  Net net;
  net->fc->bias.requires_grad_(false);
  const int64_t parameters = bytes(net->parameters());
  const int64_t frozen = bytes({net->fc->bias});
  const int64_t state = parameters + bytes(net->buffers());
  DataParallel model(net, on_cpus(3).chunk_sizes({1, 2, 4}));
  constexpr int64_t kSteps = 3;
  constexpr int64_t kImage = 8 * 8 * 4;
  constexpr int64_t kScores = 5 * 4;
  for (int64_t step = 0; step < kSteps; ++step) {
    model->forward(torch::randn({7, 1, 8, 8})).sum().backward();
  }
  const auto traffic = model->traffic();
  REQUIRE(traffic.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    const int64_t rows = int64_t{1} << i;
    const int64_t copies = i == 0 ? 0 : kSteps;
    CHECK(traffic[i].device == torch::Device(torch::kCPU));
    CHECK(traffic[i].state_bytes == copies * state);
    CHECK(traffic[i].gradient_bytes == copies * (parameters - frozen));
    CHECK(traffic[i].input_bytes == kSteps * rows * kImage);
    CHECK(traffic[i].output_bytes == kSteps * rows * kScores);
  }
  model->reset_traffic();
  CHECK(model->traffic()[2].state_bytes == 0);
  CHECK(model->traffic()[2].gradient_bytes == 0);
}

}  // namespace replicas_test
}  // namespace dp
