#include "ddp/nn/script_module.h"

#include <sstream>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include "ddp/checkpoint.h"
#include "ddp/distributed_data_parallel.h"
#include "test/support/catch.h"
#include "test/support/local_ranks.h"
#include "test/support/temporary_folder.h"

namespace ddp {
namespace script_module_test {

using Catch::Contains;
using test::Group;
using test::run_ranks;
using torch::Tensor;
using Options = DistributedDataParallelOptions;

Tensor numbers(at::IntArrayRef sizes, int64_t seed) {
  const auto generator = at::detail::createCPUGenerator(seed);
  return torch::randn(sizes, generator, torch::kDouble);
}

torch::jit::Module layer(const std::string& name,
                         int64_t seed,
                         at::IntArrayRef sizes) {
  torch::jit::Module module(name);
  module.register_attribute("training", c10::BoolType::get(), true);
  module.register_parameter("weight", numbers(sizes, seed), false);
  module.register_parameter("bias", numbers({sizes[0]}, seed + 1), false);
  for (auto parameter : module.parameters()) {
    parameter.requires_grad_();
  }
  module.define(R"(
    def forward(self, x):
        return torch.matmul(x, self.weight.t()) + self.bias
  )");
  return module;
}

/// A script: first, tanh, last. Its buffer counts the forwards in training.
ScriptModule scripted(int64_t seed = 0) {
  torch::jit::Module module("Net");
  module.register_attribute("training", c10::BoolType::get(), true);
  module.register_module("first", layer("First", seed, {4, 3}));
  module.register_module("last", layer("Last", seed + 5, {2, 4}));
  module.register_buffer("steps", torch::zeros({1}));
  module.define(R"(
    def forward(self, x, scale: float = 1.0):
        if self.training:
            self.steps.add_(1)
        return scale * self.last.forward(torch.tanh(self.first.forward(x)))

    def several(self, x):
        y = self.first.forward(x)
        return {"a": [y + 1, y + 2]}, (y + 3, None, 7)
  )");
  return ScriptModule(std::move(module));
}

Tensor plain_forward(const std::vector<Tensor>& parameters, const Tensor& x) {
  const auto hidden = torch::tanh(x.matmul(parameters[0].t()) + parameters[1]);
  return hidden.matmul(parameters[2].t()) + parameters[3];
}

TEST_CASE("a script's tensors have the script's names", "[script]") {
  auto net = scripted();
  std::vector<std::string> names;
  for (const auto& item : net->named_parameters()) {
    names.push_back(item.key());
    CHECK(item.value().is_same(
        net->script()
            .attr(item.key().substr(0, item.key().find('.')))
            .toModule()
            .attr(item.key().substr(item.key().find('.') + 1))
            .toTensor()));
  }
  CHECK(names == std::vector<std::string>{
                     "first.weight", "first.bias", "last.weight", "last.bias"});
  CHECK(net->buffers().size() == 1);
  CHECK(net->buffers()[0].is_same(net->script().attr("steps").toTensor()));

  CHECK(net->script().attr("first").toModule().is_training());
  net->eval();
  CHECK_FALSE(net->script().is_training());
  CHECK_FALSE(net->script().attr("first").toModule().is_training());
  net->train();
  CHECK(net->script().attr("first").toModule().is_training());

  net->to(torch::kFloat);
  const auto output = net(torch::ones({1, 3})).toTensor();
  CHECK(output.scalar_type() == torch::kFloat);
}

// More steps than the script's compiler needs to profile and optimize it.
TEST_CASE("a script trains on ranks as the plain module", "[script]") {
  const int size = GENERATE(1, 2, 3);
  run_ranks(size, [&](const Group& group) {
    auto net = scripted(10 * group->getRank());  // rank 0's values win
    DistributedDataParallel model(net, Options().process_group(group));
    torch::optim::SGD optimizer(model->parameters(), 0.125);
    std::vector<Tensor> plain;
    for (const auto& parameter : scripted()->parameters()) {
      plain.push_back(parameter.detach().clone().requires_grad_());
    }
    for (int64_t step = 0; step < 6; ++step) {
      optimizer.zero_grad();
      const auto x = numbers({5, 3}, 10 * step + group->getRank());
      model(x, 2.0).toTensor().pow(2).mean().backward();
      optimizer.step();

      auto gradients = torch::autograd::grad(
          {(2 * plain_forward(plain, x)).pow(2).mean()}, plain);
      const torch::NoGradGuard no_grad;
      for (size_t i = 0; i < plain.size(); ++i) {
        std::vector<Tensor> mean{gradients[i] / size};
        group->allreduce(mean)->wait();
        plain[i] -= 0.125 * mean[0];
        TORCH_CHECK(plain[i].allclose(net->parameters()[i]), "parameter ", i);
      }
    }
    model->eval();
    const torch::NoGradGuard no_grad;
    const auto x = numbers({5, 3}, 99);
    const auto output = model(std::vector<c10::IValue>{x}).toTensor();
    TORCH_CHECK(output.allclose(plain_forward(plain, x)));
    TORCH_CHECK(net->buffers()[0].item<double>() == 6);
  });
}

TEST_CASE("the tensors of a script's results are found", "[script]") {
  auto net = scripted();
  const auto result = net->script().run_method("several", numbers({1, 3}, 1));
  std::vector<Tensor> found;
  for_each_tensor(result,
                  [&](const Tensor& tensor) { found.push_back(tensor); });
  REQUIRE(found.size() == 3);
  CHECK(found[1].allclose(found[0] + 1));
  CHECK(found[2].allclose(found[0] + 2));

  // The tensors are found, so the second of two passes is reduced, too.
  run_ranks(2, [](const Group& group) {
    auto net = scripted();
    DistributedDataParallel model(
        net, Options().process_group(group).find_unused_parameters(true));
    const double slope = group->getRank() + 1.0;
    const auto output = model->call([&](ScriptModuleImpl& script) {
      return script.script().run_method("several",
                                        torch::ones({1, 3}, torch::kDouble));
    });
    const auto& all = output.toTupleRef().elements();
    const auto dict = all[0].toGenericDict();
    const auto list = dict.at("a").toTensorVector();
    (slope * list[0].sum()).backward({}, /*retain_graph=*/true);
    TORCH_CHECK(net->parameters()[1].grad().allclose(
        torch::full({4}, 1.5, torch::kDouble)));
    (slope * all[1].toTupleRef().elements()[0].toTensor().sum()).backward();
    TORCH_CHECK(net->parameters()[1].grad().allclose(
        torch::full({4}, 3.0, torch::kDouble)));
  });
}

TEST_CASE("a script is saved and loaded as any module", "[script]") {
  const test::TemporaryFolder folder;
  const auto path = folder / "net.pt";
  auto net = scripted();
  Checkpoint checkpoint;
  checkpoint.add("net", net);
  checkpoint.save(path);
  auto loaded = scripted(100);
  REQUIRE_FALSE(loaded->parameters()[0].equal(net->parameters()[0]));
  Checkpoint again;
  again.add("net", loaded);
  again.load(path);
  const auto x = numbers({2, 3}, 1);
  CHECK(loaded(x).toTensor().equal(net(x).toTensor()));

  // Saves the trained script for a program that only runs inference.
  std::stringstream file;
  DistributedDataParallel model(net);
  torch::optim::SGD optimizer(model->parameters(), 0.125);
  model(x).toTensor().sum().backward();
  optimizer.step();
  net->script().save(file);
  auto restored = torch::jit::load(file);
  CHECK(restored.forward({x}).toTensor().equal(net(x).toTensor()));
}

}  // namespace script_module_test
}  // namespace ddp
