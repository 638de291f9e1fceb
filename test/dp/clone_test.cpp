// Modules that are cloned, and wrappers inside of modules.
#include <torch/nn.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <list>
#include <map>
#include <string>
#include <vector>

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
  CHECK_THROWS_WITH(outer->inner->clone(),
                    Contains("has not been implemented"));
  DataParallel one(outer, on_cpus(1));
  CHECK(one(torch::randn({4, 1, 8, 8})).size(0) == 4);
}

/// Layers in a container that reset() may fill without clearing it.
template <typename Container>
struct LayersImpl : torch::nn::Cloneable<LayersImpl<Container>> {
  explicit LayersImpl(bool clears) : clears(clears) { reset(); }
  void reset() override {
    if (clears) {
      layers = {};
    }
    for (const auto* name : {"first", "second"}) {
      layers.insert(layers.end(), this->register_module(name, make()));
    }
  }
  static typename Container::value_type make();
  Tensor forward(Tensor x) {
    for (auto& layer : layers) {
      x = layer->forward(x);
    }
    return x;
  }
  bool clears;
  Container layers;
};

using Linears = std::vector<torch::nn::Linear>;
using Dropouts = std::list<torch::nn::Dropout>;

template <>
torch::nn::Linear LayersImpl<Linears>::make() {
  return torch::nn::Linear(3, 3);
}

template <>
torch::nn::Dropout LayersImpl<Dropouts>::make() {
  return torch::nn::Dropout(0);
}

/// A module with a function: `build(self)` registers the parts of `self`.
struct BuiltImpl : torch::nn::Cloneable<BuiltImpl> {
  using Build = void (*)(BuiltImpl&);
  explicit BuiltImpl(Build build) : build(build) { reset(); }
  void reset() override { build(*this); }
  template <typename Module>
  auto add(const std::string& name, Module module) {
    return register_module(name, std::move(module));
  }
  Tensor forward(const Tensor& x) { return x; }
  Build build;
  std::map<std::string, torch::nn::Linear> by_name;
  std::vector<Tensor> weights;
  torch::nn::Linear layer{nullptr};
  torch::nn::ReLU relu{nullptr};
  std::shared_ptr<BuiltImpl> inner;
};

TEST_CASE("a clone that holds the module's layers", "[dp][clone][errors]") {
  const auto x = torch::randn({4, 3});
  const auto check = [&](const auto& net, const std::string& held) {
    if (held.empty()) {
      DataParallel model(net, on_cpus(2));
      CHECK(close(model->forward(x), net->forward(x)));
      model->remake_replicas();
      CHECK(close(model->forward(x), net->forward(x)));
    } else {
      CHECK_THROWS_WITH(DataParallel(net, on_cpus(2)),
                        Contains("with modules and tensors of its own") &&
                            Contains("holds " + held + " of the module") &&
                            Contains("reset()"));
      // The error changes nothing, and one device needs no clone.
      CHECK(close(DataParallel(net, on_cpus(1))->forward(x), net->forward(x)));
    }
  };
  check(std::make_shared<LayersImpl<Linears>>(true), "");
  check(std::make_shared<LayersImpl<Linears>>(false), "first");
  check(std::make_shared<LayersImpl<Dropouts>>(true), "");
  check(std::make_shared<LayersImpl<Dropouts>>(false), "first");
  const auto built = [&](BuiltImpl::Build build, const std::string& held) {
    CAPTURE(held);
    check(std::make_shared<BuiltImpl>(build), held);
  };
  built(
      [](BuiltImpl& self) {
        self.by_name.insert_or_assign("a",
                                      self.add("a", torch::nn::Linear(3, 3)));
      },
      "");
  built(
      [](BuiltImpl& self) {
        self.by_name.emplace("a", self.add("a", torch::nn::Linear(3, 3)));
      },
      "a");
  built(
      [](BuiltImpl& self) {
        self.weights.push_back(
            self.register_parameter("weight", torch::ones({2})));
      },
      "weight");
  built(
      [](BuiltImpl& self) {
        self.weights.push_back(self.register_buffer("mean", torch::ones({2})));
      },
      "mean");
  built(
      [](BuiltImpl& self) {
        self.weights = {self.register_buffer("mean", torch::ones({2}))};
      },
      "");
  // A module without tensors may be the same object.
  built(
      [](BuiltImpl& self) {
        self.relu = self.add("relu", self.relu ? self.relu : torch::nn::ReLU());
      },
      "");
  // Deeper.
  built(
      [](BuiltImpl& self) {
        self.inner =
            self.add("inner", std::make_shared<BuiltImpl>([](BuiltImpl& in) {
                       in.weights.push_back(
                           in.register_parameter("weight", torch::ones({2})));
                     }));
      },
      "inner.weight");
  // An object that is not registered may be shared.
  built(
      [](BuiltImpl& self) {
        if (!self.layer) {
          self.layer = torch::nn::Linear(3, 3);
        }
        if (!self.inner) {
          self.inner = std::make_shared<BuiltImpl>([](BuiltImpl&) {});
        }
      },
      "");
}

TEST_CASE("a replica of make_replica that holds the module's layers",
          "[dp][clone][errors]") {
  const auto net = std::make_shared<LayersImpl<Linears>>(true);
  const auto make = [&] {
    const auto copy = std::make_shared<LayersImpl<Linears>>(true);
    copy->layers[1] = net->layers[1];
    return copy;
  };
  CHECK_THROWS_WITH(
      DataParallel(net, on_cpus(2).make_replica(make)),
      Contains("holds second of the module") && Contains("make_replica"));
}

TEST_CASE("a clone with other modules than the module", "[dp][clone][errors]") {
  const auto error = [](BuiltImpl::Build build) -> std::string {
    try {
      DataParallel(std::make_shared<BuiltImpl>(build), on_cpus(2));
    } catch (const c10::Error& thrown) {
      return thrown.what_without_backtrace();
    }
    return "no error";
  };
  const auto says = Contains("reset() that makes all of its parts anew");
  // The clone begins with the name "1".
  CHECK_THAT(error([](BuiltImpl& self) {
               const auto name = std::to_string(self.by_name.size());
               self.by_name.emplace(name,
                                    self.add(name, torch::nn::Linear(3, 3)));
             }),
             says);
  // The clone has one more.
  CHECK_THAT(error([](BuiltImpl& self) {
               self.by_name.emplace(std::to_string(self.by_name.size()),
                                    torch::nn::Linear(3, 3));
               for (const auto& [name, layer] : self.by_name) {
                 self.add(name, layer);
               }
             }),
             says);
}

/// LibTorch's own modules clear the members that their reset() fills.
TEST_CASE("LibTorch's modules have layers of their own", "[dp][clone]") {
  using namespace torch::nn;
  const auto check = [&](const std::shared_ptr<Module>& module) {
    struct OuterImpl : Cloneable<OuterImpl> {
      explicit OuterImpl(std::shared_ptr<Module> part) : part(std::move(part)) {
        reset();
      }
      void reset() override {
        const auto old = part;
        part = register_module("part", old->clone());
      }
      Tensor forward(const Tensor& x) { return x; }
      std::shared_ptr<Module> part;
    };
    CAPTURE(module->name());
    CHECK_NOTHROW(
        DataParallel(std::make_shared<OuterImpl>(module), on_cpus(3)));
  };
  check(LSTM(LSTMOptions(3, 4).num_layers(2).bidirectional(true)).ptr());
  check(GRU(3, 4).ptr());
  check(RNN(3, 4).ptr());
  check(LSTMCell(3, 4).ptr());
  check(MultiheadAttention(8, 2).ptr());
  check(MultiheadAttention(
            MultiheadAttentionOptions(8, 2).kdim(4).vdim(6).add_bias_kv(true))
            .ptr());
  check(Transformer(TransformerOptions(8, 2, 2, 2)).ptr());
  check(TransformerEncoder(
            TransformerEncoderOptions(TransformerEncoderLayer(8, 2), 2)
                .norm(AnyModule(LayerNorm(LayerNormOptions({8})))))
            .ptr());
  check(Sequential(Linear(3, 4), BatchNorm1d(4), ReLU(), Dropout(0.5)).ptr());
  check(ModuleList(Linear(3, 4), ModuleList(Linear(3, 4))).ptr());
  check(AdaptiveLogSoftmaxWithLoss(
            AdaptiveLogSoftmaxWithLossOptions(64, 20, {4, 10}))
            .ptr());
  check(EmbeddingBag(5, 3).ptr());
  check(Bilinear(2, 3, 4).ptr());
  check(ConvTranspose2d(ConvTranspose2dOptions(2, 3, 3)).ptr());
  check(BatchNorm2d(3).ptr());
  check(InstanceNorm2d(InstanceNorm2dOptions(3).affine(true)).ptr());
}

}  // namespace clone_test
}  // namespace dp
