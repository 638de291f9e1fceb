// Wrappers that are cloned, and wrappers inside of modules.
#include <torch/nn/cloneable.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "dp/dp.h"
#include "test/dp/nets.h"
#include "test/support/catch.h"

namespace dp {
namespace clone_test {

using Catch::Contains;
using test::close;
using test::Net;
using test::NetImpl;
using test::on_cpus;
using torch::Tensor;

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

}  // namespace clone_test
}  // namespace dp
