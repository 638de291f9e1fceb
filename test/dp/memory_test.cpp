// Memory that replicas need beside their own state.
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <ATen/record_function.h>

#include <mutex>

#include "dp/data_parallel/detail/gradient_path.h"
#include "dp/data_parallel/detail/replicas.h"
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

/// Has `count` tensors of `size` MiB each.
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
  // One flat tensor in addition.
  const int64_t most = state + 21 * kMiB;
  const PeakMeter meter;
  DataParallel model(net, options);
  CHECK(meter.peak() >= state);
  CHECK(meter.peak() <= most);
  // The old replicas do not stay in memory while new ones are made.
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
  // Only the gradient.
  CHECK(meter.peak() < (32 + 1) * kMiB);
}

/// Names of autograd's nodes or of operators, in the order in which they run.
class CallLog {
 public:
  explicit CallLog(at::RecordScope scope)
      : handle_(at::addGlobalCallback(
            at::RecordFunctionCallback(&note).scopes({scope}))) {
    const std::lock_guard lock(mutex);
    names.clear();
  }
  ~CallLog() { at::removeCallback(handle_); }
  CallLog(const CallLog&) = delete;

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
  // The sequence numbers of nodes from the replicas' threads grow with each
  // step.
  for (int step = 0; step < 20; ++step) {
    model->forward(x).sum().backward();
  }
  const auto loss = model->forward(x).sum();
  const CallLog log(at::RecordScope::BACKWARD_FUNCTION);
  loss.backward();
  int reduced = 0;
  int reduced_before_last = 0;
  for (const auto& name : CallLog::read()) {
    reduced += name == "dp::ReduceBackward";
    if (name.find("AddmmBackward") != std::string::npos) {
      reduced_before_last = reduced;
    }
  }
  // A weight and a bias.
  CHECK(reduced == 2 * kLayers);
  CHECK(reduced_before_last >= 2 * (kLayers - 1));
}

TEST_CASE("gradients of other devices are added up in the first one's copy",
          "[dp]") {
  // A copy to the meta device uses no memory, but counts as a copy.
  const bool crosses = GENERATE(true, false);
  const auto source = torch::empty({4}, crosses ? torch::kMeta : torch::kCPU);
  const auto node = std::make_shared<detail::ReduceBackward>(
      source,
      torch::autograd::Edge(),
      std::make_shared<std::vector<detail::TrafficCounter>>(4));
  const auto sum = [&](const std::vector<Tensor>& grads) {
    return (*node)({Tensor(), grads[0], grads[1], grads[2]})[0];
  };
  std::vector<Tensor> grads;
  for (int replica = 1; replica < 4; ++replica) {
    grads.push_back(torch::full({4}, 1.0 * replica));
  }
  std::vector<std::string> additions;
  {
    const torch::NoGradGuard no_grad;
    const CallLog log(at::RecordScope::FUNCTION);
    const auto result = sum(grads);
    for (const auto& name : CallLog::read()) {
      if (name.rfind("aten::add", 0) == 0) {
        additions.push_back(name);
      }
    }
    CHECK(result.device() == source.device());
    CHECK((crosses || result.equal(torch::full({4}, 6.0))));
  }
  // A gradient that is on the device already may be shared, so it must not
  // change.
  const std::string first = crosses ? "aten::add_" : "aten::add";
  CHECK(additions == std::vector<std::string>{first, "aten::add_"});
  CHECK(grads[0].equal(torch::ones({4})));
  // A gradient that is itself differentiated must not change.
  grads[0].requires_grad_();
  CHECK(sum(grads).requires_grad());
}

}  // namespace memory_test
}  // namespace dp
