#include "ddp/optim/fused.h"

#include <map>
#include <mutex>
#include <sstream>

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include "ddp/amp/grad_scaler.h"
#include "ddp/checkpoint.h"
#include "test/ddp/amp/scaled_toy.h"
#include "test/ddp/optim/optimizers.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

namespace ddp {
namespace fused_optimizers_test {

using Catch::Contains;
using test::copies;
using test::equal;
using test::Groups;
using test::make_optimizer;
using test::Optimizer;
using test::set_gradients;
using test::TemporaryFolder;
using test::Tensors;
using torch::Tensor;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

constexpr int kSteps = 12;

/// Parameters of several sizes, layouts and dtypes that the kernels support.
Tensors fusible() {
  auto all = test::parameters({{1}, {7, 5}, {64, 33}, {0}, {3, 1, 130}});
  all.push_back(test::numbers({4, 3, 5, 5}, 20)
                    .contiguous(at::MemoryFormat::ChannelsLast)
                    .requires_grad_());
  all.push_back(
      test::numbers({6, 9}, 21).t().contiguous().t().requires_grad_());
  all.push_back(test::numbers({37}, 22).to(torch::kDouble).requires_grad_());
  return all;
}

bool close(const Tensor& a, const Tensor& b) {
  const bool is_double = a.scalar_type() == torch::kDouble;
  return torch::allclose(
      a, b, is_double ? 1e-12 : 1e-5, is_double ? 1e-12 : 1e-6);
}

bool close(const Tensors& a, const Tensors& b) {
  bool all = a.size() == b.size();
  for (size_t i = 0; all && i < a.size(); ++i) {
    all = close(a[i], b[i]);
  }
  return all;
}

template <class Plain, class Fused, class Options>
void check_trains_alike(const Options& options) {
  const auto expected = fusible();
  const auto got = copies(expected);
  Plain plain(expected, options);
  Fused fused(got, options);
  for (int step = 0; step < kSteps; ++step) {
    set_gradients(expected, step);
    set_gradients(got, step);
    plain.step();
    fused.step();
    CAPTURE(step);
    REQUIRE(close(got, expected));
  }
  REQUIRE(fused.state().size() == plain.state().size());
}

TEST_CASE("a fused SGD trains as LibTorch's", "[fused]") {
  const auto options =
      GENERATE(SGDOptions(0.1),
               SGDOptions(0.1).weight_decay(0.1),
               SGDOptions(0.1).momentum(0.9),
               SGDOptions(0.1).momentum(0.9).dampening(0.5).weight_decay(0.1),
               SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.1));
  check_trains_alike<torch::optim::SGD, FusedSGD>(options);
}

TEST_CASE("a fused Adam trains as LibTorch's", "[fused]") {
  const auto options = GENERATE(
      AdamOptions(0.01),
      AdamOptions(0.01).amsgrad(true),
      AdamOptions(0.01).betas({0.5, 0.75}).eps(1e-3).weight_decay(0.1));
  check_trains_alike<torch::optim::Adam, FusedAdam>(options);
}

TEST_CASE("a fused AdamW trains as LibTorch's", "[fused]") {
  const auto options = GENERATE(
      AdamWOptions(0.01),
      AdamWOptions(0.01).amsgrad(true),
      AdamWOptions(0.01).betas({0.5, 0.75}).eps(1e-3).weight_decay(0.5));
  check_trains_alike<torch::optim::AdamW, FusedAdamW>(options);
}

struct StepCalls {
  std::mutex lock;
  std::map<std::string, int> of_operator;
};

/// Receives the calls from RecordFunction's callbacks, which are plain
/// functions.
StepCalls* heard_calls = nullptr;

/// Returns how often a step calls each operator, on all threads.
std::map<std::string, int> operators_of_step(Optimizer& optimizer) {
  StepCalls calls;
  heard_calls = &calls;
  const auto handle = at::addGlobalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& call)
                                     -> std::unique_ptr<at::ObserverContext> {
        const std::lock_guard<std::mutex> guard(heard_calls->lock);
        ++heard_calls->of_operator[call.name()];
        return nullptr;
      }));
  optimizer.step();
  at::removeCallback(handle);
  return std::move(calls.of_operator);
}

/// Sets the number of LibTorch's intra-op threads in a scope.
class IntraopThreads {
 public:
  explicit IntraopThreads(int threads) { at::set_num_threads(threads); }
  ~IntraopThreads() { at::set_num_threads(before_); }
  IntraopThreads(const IntraopThreads&) = delete;
  IntraopThreads& operator=(const IntraopThreads&) = delete;

 private:
  int before_ = at::get_num_threads();
};

TEST_CASE("many small parameters are stepped by one call", "[fused]") {
  const auto [kind, name] = GENERATE(table<std::string, std::string>(
      {{"fused sgd", "aten::_fused_sgd_"},
       {"fused adam", "aten::_fused_adam_"},
       {"fused adamw", "aten::_fused_adamw_"}}));
  const auto params =
      test::parameters(std::vector<std::vector<int64_t>>(50, {4}));
  const auto optimizer = make_optimizer(kind, Groups{params});
  set_gradients(params, 1);
  optimizer->step();
  auto calls = operators_of_step(*optimizer);
  CAPTURE(kind);
  CHECK(calls[name] == 1);
  CHECK(calls["aten::add_"] + calls["aten::mul_"] == 0);
}

TEST_CASE("a fused step is the same on any number of threads", "[fused]") {
  const auto kind =
      GENERATE(as<std::string>(), "fused sgd", "fused adam", "fused adamw");
  const int threads = GENERATE(2, 3, 7);
  auto alone = fusible();
  alone.push_back(test::numbers({300, 211}, 23).requires_grad_());  // not small
  const auto shared = copies(alone);
  const auto train = [&](const Tensors& params, int count) {
    const IntraopThreads guard(count);
    const auto optimizer = make_optimizer(kind, Groups{params});
    test::train(*optimizer, params, 0, 5);
  };
  train(alone, 1);
  train(shared, threads);
  CAPTURE(kind, threads);
  CHECK(equal(shared, alone));
}

/// Returns a parameter that the kernels do not support.
Tensor unfit(const std::string& why) {
  const auto values = test::numbers({6, 4}, 3);
  if (why == "gaps") {
    return values.slice(1, 0, 2).detach().requires_grad_();
  }
  if (why == "bfloat16") {
    return values.to(torch::kBFloat16).requires_grad_();
  }
  if (why == "half") {
    return values.to(torch::kHalf).requires_grad_();
  }
  return values.clone().requires_grad_();
}

TEST_CASE("LibTorch steps tensors that do not fit the kernels", "[fused]") {
  const auto kind = GENERATE(as<std::string>(), "sgd", "adam", "adamw");
  const auto why = GENERATE(
      as<std::string>(), "gaps", "bfloat16", "half", "transposed gradient");
  CAPTURE(kind, why);
  const Tensors expected{unfit("fits"), unfit(why), unfit("fits")};
  const Tensors got = copies(expected);
  const auto plain = make_optimizer(kind, Groups{expected});
  const auto fused = make_optimizer("fused " + kind, Groups{got});
  for (int step = 0; step < 5; ++step) {
    for (const auto* params : {&expected, &got}) {
      set_gradients(*params, step);
      if (why == "transposed gradient") {
        auto& grad = (*params)[1].mutable_grad();
        grad = grad.t().contiguous().t();
      }
    }
    plain->step();
    fused->step();
    CHECK(torch::equal(got[1], expected[1]));
    CHECK(close(got, expected));
  }
  CHECK(fused->param_groups()[0].params().size() == 3);
}

TEST_CASE("a parameter that is listed twice is stepped twice", "[fused]") {
  const auto kind = GENERATE(as<std::string>(), "sgd", "adam", "adamw");
  const Tensors expected = test::parameters({{3}, {70'000}});
  const Tensors got = copies(expected);
  const auto plain = make_optimizer(
      kind, Groups{Tensors{expected[0], expected[1], expected[0]}});
  const auto fused =
      make_optimizer("fused " + kind, Groups{Tensors{got[0], got[1], got[0]}});
  for (int step = 0; step < 3; ++step) {
    set_gradients(expected, step);
    set_gradients(got, step);
    plain->step();
    fused->step();
    CHECK(torch::equal(got[0], expected[0]));
    CHECK(torch::equal(got[1], expected[1]));
  }
}

TEST_CASE("parameters in one memory are stepped one after the other",
          "[fused]") {
  const auto kind = GENERATE(as<std::string>(), "sgd", "adam", "adamw");
  const auto in_one_memory = [] {
    const auto memory = test::numbers({300, 300}, 1);
    return Tensors{memory.slice(0, 0, 200).detach().requires_grad_(),
                   memory.slice(0, 100).detach().requires_grad_(),
                   memory.t().detach().requires_grad_()};
  };
  const auto expected = in_one_memory();
  const auto got = in_one_memory();
  const auto plain = make_optimizer(kind, Groups{expected});
  const auto fused = make_optimizer("fused " + kind, Groups{got});
  for (int step = 0; step < 3; ++step) {
    set_gradients(expected, step);
    set_gradients(got, step);
    plain->step();
    fused->step();
    CHECK(equal(got, expected));
  }
}

TEST_CASE("complex parameters are stepped as pairs of real numbers",
          "[fused]") {
  const auto kind = GENERATE(
      as<std::string>(), "fused sgd", "fused adam", "fused adamw", "amsgrad");
  const auto dtype = GENERATE(torch::kComplexFloat, torch::kComplexDouble);
  const auto optimizer_of = [&](const Tensors& params) {
    return kind == "amsgrad" ? std::make_unique<FusedAdam>(
                                   params, AdamOptions(0.1).amsgrad(true))
                             : make_optimizer(kind, Groups{params});
  };
  Tensors complex;
  Tensors real;
  for (const auto& sizes : {std::vector<int64_t>{7, 5}, {4}}) {
    const auto value =
        torch::complex(test::numbers(sizes, 1), test::numbers(sizes, 2))
            .to(dtype);
    for (const auto& one : {value, value.t()}) {
      complex.push_back(one.clone().requires_grad_());
      real.push_back(torch::view_as_real(one.clone()).requires_grad_());
    }
  }
  const auto of_complex = optimizer_of(complex);
  const auto of_real = optimizer_of(real);
  for (int step = 0; step < 4; ++step) {
    for (size_t i = 0; i < real.size(); ++i) {
      real[i].mutable_grad() =
          torch::empty_like(real[i].detach())
              .copy_(test::numbers(real[i].sizes(), 10 * step + i));
      // One of them is a conjugate that is not resolved.
      const auto grad = torch::view_as_complex(real[i].grad());
      complex[i].mutable_grad() =
          i == 0 ? grad.conj().resolve_conj().conj() : grad.clone();
    }
    of_complex->step();
    of_real->step();
    for (size_t i = 0; i < real.size(); ++i) {
      CAPTURE(kind, step, i);
      REQUIRE(torch::view_as_real(complex[i].detach()).equal(real[i]));
    }
  }
}

TEST_CASE("Adam refuses complex parameters that its kernels do not take",
          "[fused]") {
  const auto kind = GENERATE(as<std::string>(), "fused adam", "fused adamw");
  const auto values =
      torch::complex(test::numbers({6, 4}, 1), test::numbers({6, 4}, 2));
  const auto weight = values.slice(1, 0, 2).detach().requires_grad_();
  const auto optimizer = make_optimizer(kind, Groups{Tensors{weight}});
  weight.mutable_grad() = torch::ones_like(weight);
  CHECK_THROWS_WITH(optimizer->step(),
                    Contains("Expected a dense complex parameter"));
}

TEST_CASE("sparse gradients are stepped by LibTorch, or refused by it",
          "[fused][sparse]") {
  Tensor table = test::numbers({5, 2}, 1).requires_grad_();
  Tensor dense = test::numbers({3}, 2).requires_grad_();
  const auto rows = torch::tensor({int64_t{3}, int64_t{1}}).unsqueeze(0);
  const auto sparse =
      torch::sparse_coo_tensor(rows, torch::ones({2, 2}), {5, 2});
  const auto expected = (table - 0.5 * sparse.to_dense()).detach();
  const auto expected_dense = (dense - 0.5).detach();
  table.mutable_grad() = sparse;
  dense.mutable_grad() = torch::ones({3});
  FusedSGD sgd(Tensors{table, dense}, SGDOptions(0.5));
  sgd.step();
  CHECK(close(table.detach(), expected));
  CHECK(close(dense.detach(), expected_dense));
  FusedAdam adam(Tensors{table, dense});
  CHECK_THROWS_WITH(adam.step(), Contains("sparse"));
  CHECK(adam.param_groups()[0].params().size() == 2);
}

TEST_CASE("a fused optimizer goes on where LibTorch's was saved", "[fused]") {
  const auto kind = GENERATE(as<std::string>(), "sgd", "adam", "adamw");
  const bool to_fused = GENERATE(true, false);
  const auto first = fusible();
  const auto reference = copies(first);
  const auto saved =
      make_optimizer((to_fused ? "" : "fused ") + kind, Groups{first});
  const auto plain = make_optimizer(kind, Groups{reference});
  const auto train = [](Optimizer& optimizer, const Tensors& params, int from) {
    for (int step = from; step < from + 6; ++step) {
      set_gradients(params, step);
      optimizer.step();
    }
  };
  train(*saved, first, 0);
  train(*plain, reference, 0);
  std::stringstream file;
  torch::save(*saved, file);
  const auto second = copies(first);
  const auto loaded =
      make_optimizer((to_fused ? "fused " : "") + kind, Groups{second});
  torch::load(*loaded, file);
  train(*loaded, second, 6);
  train(*plain, reference, 6);
  CAPTURE(kind, to_fused);
  CHECK(close(second, reference));
}

TEST_CASE("a checkpoint of a fused optimizer is LibTorch's", "[fused]") {
  const TemporaryFolder folder;
  const auto path = folder.path() + "/last.pt";
  torch::nn::Linear net(4, 3);
  FusedAdamW fused(net->parameters(), AdamWOptions(0.25));
  net->forward(torch::ones({2, 4})).sum().backward();
  fused.step();
  Checkpoint(net).add("optimizer", fused).save(path);
  torch::nn::Linear other(4, 3);
  torch::optim::AdamW plain(other->parameters());
  Checkpoint(other).add("optimizer", plain).load(path);
  net->forward(torch::ones({2, 4})).sum().backward();
  other->forward(torch::ones({2, 4})).sum().backward();
  other->weight.mutable_grad() = net->weight.grad().clone();
  other->bias.mutable_grad() = net->bias.grad().clone();
  fused.step();
  plain.step();
  CHECK(close(net->weight, other->weight));
  CHECK(close(net->bias, other->bias));
}

TEST_CASE("groups of a fused optimizer have options that may change",
          "[fused]") {
  const auto params = test::parameters({{3}, {3}, {3}});
  const auto before = copies(params);
  FusedSGD sgd(Groups{Tensors{params[0]}, Tensors{params[1]}}, SGDOptions(1));
  sgd.add_param_group(Tensors{params[2]});
  static_cast<SGDOptions&>(sgd.param_groups()[1].options()).lr(2);
  sgd.param_groups()[2].options().set_lr(4);
  const auto step = [&](double total) {
    for (const auto& param : params) {
      param.mutable_grad() = torch::ones({3});
    }
    sgd.step();
    for (int i = 0; i < 3; ++i) {
      CHECK(close(params[i], before[i] - total * (1 << i)));
    }
  };
  step(1);
  for (auto& group : sgd.param_groups()) {
    group.options().set_lr(group.options().get_lr() * 2);
  }
  step(3);
}

TEST_CASE("a closure of a fused optimizer runs with gradients", "[fused]") {
  auto weight = torch::ones({3}).requires_grad_();
  FusedSGD sgd(Tensors{weight}, SGDOptions(0.5));
  const auto loss = sgd.step([&] {
    sgd.zero_grad();
    auto sum = (weight * 2).sum();
    sum.backward();
    return sum;
  });
  CHECK(loss.item<double>() == 6);
  CHECK(weight.detach().eq(0).all().item<bool>());
}

TEST_CASE("a fused optimizer lets gradients go", "[fused]") {
  const auto kind =
      GENERATE(as<std::string>(), "fused sgd", "fused adam", "fused adamw");
  const auto params = test::parameters({{3}, {4}});
  const auto optimizer = make_optimizer(kind, Groups{params});
  set_gradients(params, 1);
  const Tensor held = params[0].grad();
  optimizer->step();
  optimizer->zero_grad();
  CHECK(held.use_count() == 1);
}

TEST_CASE("a graph from before a fused step is refused by autograd",
          "[fused]") {
  const auto kind =
      GENERATE(as<std::string>(), "fused sgd", "fused adam", "fused adamw");
  auto weight = torch::ones({3}).requires_grad_();
  const auto optimizer = make_optimizer(kind, Groups{Tensors{weight}});
  const auto loss = (weight * weight).sum();
  weight.mutable_grad() = torch::ones({3});
  optimizer->step();
  CHECK_THROWS_WITH(loss.backward(), Contains("inplace operation"));
}

TEST_CASE("a scaled step of a fused optimizer is that of its gradients",
          "[fused]") {
  const auto kind =
      GENERATE(as<std::string>(), "fused sgd", "fused adam", "fused adamw");
  const auto expected = fusible();
  const auto got = copies(expected);
  const auto plain = make_optimizer(kind, Groups{expected});
  const auto scaled = make_optimizer(kind, Groups{got});
  GradScaler scaler(test::small_scaler());
  for (int step = 0; step < 6; ++step) {
    const bool is_good = step % 4 != 1;
    scaler.scale(torch::ones({}));
    set_gradients(got, step);
    for (const auto& param : got) {
      if (param.grad().defined()) {
        param.mutable_grad() *= scaler.get_scale();  // a power of two
      }
    }
    if (is_good) {
      set_gradients(expected, step);
      plain->step();
    } else {
      got[0].mutable_grad().fill_(test::kNan);
    }
    CAPTURE(kind, step);
    REQUIRE(scaler.step(*scaled) == is_good);
    scaler.update();
    REQUIRE(equal(got, expected));  // no step was counted
  }
}

/// Sets a learning rate that is exact as float32.
void set_rate(Optimizer& optimizer, int step) {
  optimizer.param_groups()[0].options().set_lr(1.0 / (1 << (4 + step % 3)));
}

void set_all_gradients(const Tensors& parameters, int step) {
  for (const auto& param : parameters) {
    param.mutable_grad() = (param * param).detach().add_(step);
  }
}

/// As in a graph: `record` runs once, with numbers that change afterwards.
TEST_CASE("a recorded step is that of the host's numbers", "[fused]") {
  const auto kind =
      GENERATE(as<std::string>(), "fused sgd", "fused adam", "fused adamw");
  const auto expected = fusible();
  const auto got = copies(expected);
  const auto plain = make_optimizer(kind, Groups{expected});
  const auto optimizer = make_optimizer(kind, Groups{got});
  for (int step = 0; step < 6; ++step) {
    set_all_gradients(expected, step);
    set_all_gradients(got, step);
    std::unique_ptr<detail::RecordedFusedStep> recorded;
    if (step > 0) {
      recorded = detail::make_recorded_step(*optimizer);
    }
    set_rate(*plain, step);
    set_rate(*optimizer, step);
    plain->step();
    if (recorded) {
      REQUIRE(recorded->is_current());
      recorded->before_replay();
      const auto version = got[0]._version();
      recorded->record();
      recorded->after_replay();
      CHECK(got[0]._version() > version);
      CHECK(recorded->is_current());
    } else {
      optimizer->step();
    }
    CAPTURE(kind, step);
    REQUIRE(equal(got, expected));
  }
}

TEST_CASE("a recorded step notices changes", "[fused]") {
  const auto parameters = fusible();
  FusedAdam optimizer(parameters, AdamOptions(0.125));
  set_all_gradients(parameters, 0);
  optimizer.step();
  const auto recorded = detail::make_recorded_step(optimizer);
  recorded->record();
  REQUIRE(recorded->is_current());
  auto& options =
      static_cast<AdamOptions&>(optimizer.param_groups()[0].options());
  options.weight_decay(0.5);
  CHECK_FALSE(recorded->is_current());
  options.weight_decay(0);
  CHECK(recorded->is_current());
  // A step outside of the graph, of all parameters and of all but one.
  optimizer.step();
  CHECK(recorded->is_current());
  parameters[1].mutable_grad().reset();
  optimizer.step();
  CHECK_FALSE(recorded->is_current());
  auto& state = static_cast<torch::optim::AdamParamState&>(
      *optimizer.state().at(parameters[1].unsafeGetTensorImpl()));
  state.step(state.step() + 1);
  CHECK(recorded->is_current());
  state.exp_avg(state.exp_avg().clone());
  CHECK_THROWS_WITH(recorded->is_current(), Contains("call reset()"));
}

TEST_CASE("a step that cannot be recorded changes no number of steps",
          "[fused]") {
  const auto parameters = fusible();
  FusedAdam optimizer(parameters, AdamOptions(0.125));
  set_all_gradients(parameters, 0);
  parameters[1].mutable_grad().reset();
  optimizer.step();
  const auto recorded = detail::make_recorded_step(optimizer);
  set_all_gradients(parameters, 1);
  CHECK_THROWS_WITH(recorded->record(), Contains("take part in the warm-up"));
  parameters[1].mutable_grad().reset();
  parameters[0].mutable_grad() = torch::ones({1}).to_sparse();
  CHECK_THROWS_WITH(recorded->record(), Contains("see ddp::FusedSGD"));
  const auto& state = static_cast<torch::optim::AdamParamState&>(
      *optimizer.state().at(parameters[2].unsafeGetTensorImpl()));
  CHECK(state.step() == 1);
  torch::optim::SGD other(parameters, SGDOptions(0.125));
  CHECK_THROWS_WITH(detail::make_recorded_step(other),
                    Contains("ddp::FusedSGD, FusedAdam or FusedAdamW"));
}

}  // namespace fused_optimizers_test
}  // namespace ddp
