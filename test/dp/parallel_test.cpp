// The separate functions of DataParallel, and wrappers as modules.
#include "dp/parallel.h"

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <atomic>
#include <map>
#include <string>

#include "dp/dp.h"
#include "test/dp/nets.h"
#include "test/support/catch.h"

namespace dp {
namespace parallel_test {

using Catch::Contains;
using test::clone;
using test::close;
using test::cpus;
using test::lambda;
using test::Net;
using test::NetImpl;
using test::on_cpus;
using torch::Tensor;

TEST_CASE("scatter and gather are each other's reverse", "[dp][parallel]") {
  using Inputs = std::tuple<Tensor, std::map<std::string, Tensor>, double>;
  const Inputs inputs{torch::arange(10.0).view({5, 2}),
                      {{"label", torch::arange(5)}, {"none", Tensor()}},
                      0.5};
  const auto parts = scatter(inputs, cpus(3));
  REQUIRE(parts.size() == 3);
  const std::vector<int64_t> rows{2, 2, 1};
  for (size_t i = 0; i < parts.size(); ++i) {
    CHECK(std::get<0>(parts[i]).size(0) == rows[i]);
    CHECK(std::get<1>(parts[i]).at("label")[0].item<int64_t>() ==
          static_cast<int64_t>(2 * i));
    CHECK(!std::get<1>(parts[i]).at("none").defined());
    CHECK(std::get<2>(parts[i]) == 0.5);
  }
  const auto whole = gather(parts, torch::kCPU);
  CHECK(std::get<0>(whole).equal(std::get<0>(inputs)));
  CHECK(std::get<1>(whole).at("label").equal(torch::arange(5)));
  CHECK(std::get<2>(whole) == 0.5);

  CHECK(scatter(torch::ones({2, 1}), cpus(4)).size() == 2);
  CHECK(scatter(torch::ones({4, 2}), cpus(2), 1)[0].sizes() ==
        torch::IntArrayRef{4, 1});
  CHECK(scatter(std::tuple(1, 2), cpus(3)).size() == 1);
  CHECK(gather(std::vector<Tensor>{torch::ones({4, 1}), torch::ones({4, 2})},
               torch::kCPU,
               1)
            .sizes() == torch::IntArrayRef{4, 3});
  CHECK(gather(std::vector<Tensor>{torch::tensor(1.0), torch::tensor(2.0)},
               torch::kCPU)
            .equal(torch::tensor({1.0, 2.0})));
  CHECK(gather(std::vector<Tensor>{torch::tensor(3.0)}, torch::kCPU)
            .equal(torch::tensor({3.0})));

  auto x = torch::arange(6.0).requires_grad_();
  auto chunks = scatter(x * 2, cpus(3));
  gather(std::vector<Tensor>{chunks[0] * 1, chunks[1] * 2, chunks[2] * 3},
         torch::kCPU)
      .sum()
      .backward();
  CHECK(x.grad().equal(torch::tensor({2.0, 2.0, 4.0, 4.0, 6.0, 6.0})));
}

TEST_CASE("replicate, apply and gather train as the whole", "[dp][parallel]") {
  const auto parts = GENERATE(1, 2, 3);
  const auto net = std::make_shared<NetImpl>();
  const auto other = clone(net);
  net->norm->eval();  // in training, statistics differ
  other->norm->eval();
  torch::optim::SGD steps(net->parameters(), 0.1);
  torch::optim::SGD other_steps(other->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    const auto images = torch::randn({7, 1, 8, 8});
    const auto labels = torch::randint(5, {7});
    steps.zero_grad();
    other_steps.zero_grad();
    const auto chunks = scatter(images, cpus(parts));
    auto replicas = replicate(net, cpus(parts));
    REQUIRE(replicas.size() == static_cast<size_t>(parts));
    CHECK(replicas[0] == net);
    const auto scores = gather(parallel_apply(replicas, chunks), torch::kCPU);
    replicas.clear();  // before the backward pass
    torch::cross_entropy_loss(scores, labels).backward();
    torch::cross_entropy_loss(other->forward(images), labels).backward();
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      CHECK(close(net->parameters()[i].grad(), other->parameters()[i].grad()));
    }
    steps.step();
    other_steps.step();
  }
  const auto holders = replicate(Net(net), cpus(2));
  CHECK(holders[1]->fc->weight.equal(net->fc->weight));
  CHECK(!holders[1]->fc->weight.is_alias_of(net->fc->weight));
  const auto images = scatter(torch::randn({4, 1, 8, 8}), cpus(2));
  CHECK(close(parallel_apply(holders, images)[1], net->forward(images[1])));
}

TEST_CASE("modules are applied at once, with the caller's state",
          "[dp][parallel]") {
  std::atomic<int> inside{0};
  const auto meet = [&](auto& self, const Tensor& x, double factor) {
    ++inside;
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (inside < 2 && std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();  // waits for the other part
    }
    TORCH_CHECK(inside == 2, "the other part has not come");
    TORCH_CHECK(!torch::GradMode::is_enabled());
    return self.linear(x) * factor;
  };
  const auto module = lambda(meet);
  const torch::NoGradGuard no_grad;
  const auto x = torch::randn({2, 3});
  using Input = std::tuple<Tensor, double>;
  const auto outputs = parallel_apply(
      std::vector{module, module}, std::vector<Input>{{x, 1}, {x, 2}}, cpus(3));
  REQUIRE(outputs.size() == 2);
  CHECK(close(outputs[0] * 2, outputs[1]));
}

TEST_CASE("parts that do not fit", "[dp][parallel][errors]") {
  const auto module = lambda([](auto&, const Tensor& x) {
    TORCH_CHECK(x.item<double>() < 2, "too large");
    return x;
  });
  const std::vector modules{module, module};
  CHECK_THROWS_WITH(
      parallel_apply(modules, std::vector<Tensor>{torch::ones({})}),
      Contains("but got 2 modules and 1 inputs"));
  CHECK_THROWS_WITH(parallel_apply(modules, std::vector<Tensor>(2), cpus(1)),
                    Contains("a device for each of 2 modules, but got 1"));
  CHECK_THROWS_WITH(
      parallel_apply(
          modules, std::vector<Tensor>{torch::tensor(1.0), torch::tensor(3.0)}),
      Contains("too large") && Contains("replica 1 of 2 on cpu"));
  CHECK_THROWS_WITH(gather(std::vector<Tensor>(), torch::kCPU),
                    Contains("at least one part to gather"));
  using Many = std::vector<Tensor>;
  CHECK_THROWS_WITH(
      gather(std::vector<Many>{Many(1), Many(2)}, torch::kCPU),
      Contains("got 1 elements first and 2 elements from part 1"));
  CHECK_THROWS_WITH(scatter(torch::ones({2}), {}),
                    Contains("at least one device"));
  CHECK_THROWS_WITH(
      scatter(std::tuple(torch::ones({2}), torch::ones({3})), cpus(2)),
      Contains("to be split alike"));
  CHECK_THROWS_WITH(replicate(std::shared_ptr<NetImpl>(), cpus(2)),
                    Contains("a module to replicate"));
}

TEST_CASE("a clone of a wrapper wraps a copy", "[dp][clone]") {
  Net net;
  DataParallel model(net, on_cpus(2).aggregate(sum));
  const auto copy =
      std::dynamic_pointer_cast<DataParallelImpl<NetImpl>>(model->clone());
  REQUIRE(copy);
  CHECK(copy->devices().size() == 2);
  CHECK(copy->module() != net.ptr());
  net->eval();
  copy->module()->eval();
  const auto x = torch::randn({4, 1, 8, 8});
  const auto expected = model(x);
  CHECK(expected.size(0) == 2);  // the sum of its parts
  CHECK(close(copy->forward(x), expected));
  {
    const torch::NoGradGuard no_grad;
    net->fc->weight.zero_();
  }
  CHECK(close(copy->forward(x), expected));
  CHECK_NOTHROW(model->clone(torch::Device(torch::kCPU)));
  CHECK_THROWS_WITH(model->clone(torch::Device(torch::kMeta)),
                    Contains("meta"));
}

TEST_CASE("a derived wrapper without a clone of its own", "[dp][clone]") {
  struct DerivedImpl : DataParallelImpl<NetImpl> {
    using DataParallelImpl::DataParallelImpl;
  };
  const DerivedImpl model(Net(), on_cpus(2));
  CHECK_THROWS_WITH(model.clone(), Contains("to override clone(), but got"));
}

TEST_CASE("wrappers do not nest", "[dp][clone][errors]") {
  struct OuterImpl : torch::nn::Cloneable<OuterImpl> {
    OuterImpl() { reset(); }
    void reset() override {
      inner = register_module("inner", DataParallel(Net(), on_cpus(2)));
    }
    Tensor forward(const Tensor& x) { return inner(x); }
    DataParallel<NetImpl> inner{nullptr};
  };
  const auto outer = std::make_shared<OuterImpl>();
  CHECK_THROWS_WITH(
      DataParallel(outer, on_cpus(2)),
      Contains("without a DataParallel inside for 2 devices, but got one: "
               "inner; wrap the whole module once"));
  CHECK_THROWS_WITH(outer->clone(),
                    Contains("clone the inner module, then wrap it"));
  DataParallel one(outer, on_cpus(1));
  CHECK(one(torch::randn({4, 1, 8, 8})).size(0) == 4);
}

}  // namespace parallel_test
}  // namespace dp
