// What replicas cost in memory beside themselves.
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <ATen/record_function.h>

#include <mutex>

#include "dp/detail/data_parallel/replicas.h"
#include "dp/dp.h"
#include "test/dp/nets.h"
#include "test/dp/peak_meter.h"
#include "test/support/catch.h"

namespace dp {
namespace memory_test {

using test::on_cpus;
using test::PeakMeter;
using torch::Tensor;

constexpr int64_t kMiB = 1 << 20;

/// So many tensors of so many MiB.
struct LargeImpl : torch::nn::Module {
  LargeImpl(int64_t count, int64_t size) {
    for (int64_t i = 0; i < count; ++i) {
      register_parameter("p" + std::to_string(i),
                         torch::empty({size * kMiB / 4}));
    }
  }
  Tensor forward(const Tensor& x) { return x; }
};

TEST_CASE("a replica is not there twice while it is made", "[dp]") {
  const auto [count, size] = GENERATE(std::pair<int64_t, int64_t>(16, 4),
                                      std::pair<int64_t, int64_t>(2, 32));
  const int64_t state = count * size * kMiB;
  const auto net = std::make_shared<LargeImpl>(count, size);
  const auto options = on_cpus(2).make_replica([count = count, size = size] {
    return std::make_shared<LargeImpl>(count, size);
  });
  // And one flat tensor.
  const int64_t most = state + 21 * kMiB;
  const PeakMeter meter;
  DataParallel model(net, options);
  CHECK(meter.peak() >= state);
  CHECK(meter.peak() <= most);
  // Nor are the old replicas when they are made anew.
  const PeakMeter again;
  model->remake_replicas();
  CHECK(again.peak() <= 21 * kMiB);
}

struct TableImpl : torch::nn::Module {
  TableImpl() {
    bias = register_parameter("bias", torch::zeros({8}));
    table = register_parameter("table", torch::ones({8 * kMiB / 8, 8}));
  }
  Tensor forward(const Tensor& x) { return torch::embedding(table, x) + bias; }
  Tensor bias, table;
};

TEST_CASE("a large tensor is sent without a copy beside it", "[dp]") {
  const auto net = std::make_shared<TableImpl>();
  const auto traffic = std::make_shared<std::vector<detail::TrafficCounter>>(2);
  detail::Replicas replicas(
      net,
      test::cpus(2),
      [] { return std::make_shared<TableImpl>(); },
      traffic);
  {
    const PeakMeter meter;
    replicas.refresh({0, 1});
    CHECK(meter.peak() < kMiB);
  }
  auto& replica = dynamic_cast<TableImpl&>(replicas[1]);
  const auto output = replica.forward(torch::tensor({1, 1, 5}));
  const PeakMeter meter;
  output.sum().backward();
  CHECK(net->table.grad()[1].equal(torch::full({8}, 2.0)));
  CHECK(net->table.grad()[5].equal(torch::ones({8})));
  CHECK(net->bias.grad().equal(torch::full({8}, 3.0)));
  // The gradient.
  CHECK(meter.peak() < (32 + 1) * kMiB);
}

/// Names of autograd's nodes, in the order in which they run.
class NodeLog {
 public:
  NodeLog()
      : handle_(at::addGlobalCallback(at::RecordFunctionCallback(&note).scopes(
            {at::RecordScope::BACKWARD_FUNCTION}))) {
    const std::lock_guard lock(mutex);
    names.clear();
  }
  ~NodeLog() { at::removeCallback(handle_); }
  NodeLog(const NodeLog&) = delete;

  static std::vector<std::string> read() {
    const std::lock_guard lock(mutex);
    return names;
  }

 private:
  static inline std::mutex mutex;
  static inline std::vector<std::string> names;

  static std::unique_ptr<at::ObserverContext> note(
      const at::RecordFunction& call) {
    const std::lock_guard lock(mutex);
    names.emplace_back(call.name());
    return nullptr;
  }

  at::CallbackHandle handle_;
};

TEST_CASE("gradients are added up while others are computed", "[dp]") {
  torch::nn::Sequential net;
  constexpr int kLayers = 6;
  for (int i = 0; i < kLayers; ++i) {
    net->push_back(torch::nn::Linear(8, 8));
  }
  DataParallel model(net, on_cpus(2));
  const auto x = torch::ones({2, 8});
  // Nodes of the replicas' threads have higher numbers at every step.
  for (int step = 0; step < 20; ++step) {
    model->forward(x).sum().backward();
  }
  const auto loss = model->forward(x).sum();
  const NodeLog log;
  loss.backward();
  int reduced = 0;
  int reduced_before_last = 0;
  for (const auto& name : NodeLog::read()) {
    reduced += name == "dp::ReduceBackward";
    if (name.find("AddmmBackward") != std::string::npos) {
      reduced_before_last = reduced;
    }
  }
  // A weight and a bias.
  CHECK(reduced == 2 * kLayers);
  CHECK(reduced_before_last >= 2 * (kLayers - 1));
}

}  // namespace memory_test
}  // namespace dp
