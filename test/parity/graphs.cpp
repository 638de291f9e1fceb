// One rank of the parity test of graphs: unused parameters, a pass for each
// output, activation checkpointing. graphs.py does the same with PyTorch's DDP.
// Writes all parameters after every step.
//
// usage: parity graphs FOLDER [CASE...]
#include <array>
#include <functional>
#include <memory>

#include <torch/autograd.h>

#include "test/parity/parity.h"
#include "test/parity/passes_support.h"

namespace parity {
namespace graphs_side {

using passes_side::Case;
using passes_side::fill;
using passes_side::inputs;
using passes_side::Log;
using passes_side::targets;
using passes_side::Trained;
using torch::Tensor;
using torch::nn::Linear;
using Options = ddp::DistributedDataParallelOptions;

/// Two branches, of which a step may use one or both, and a layer that is never
/// used.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    register_module("first", first);
    register_module("left", left);
    register_module("right", right);
    register_module("never", never);
    to(torch::kDouble);
    fill(*this);
  }

  Tensor forward(const Tensor& x, int64_t way) {
    const auto hidden = torch::tanh(first(x));
    if (way == 2) {
      return left(hidden) + right(hidden);
    }
    return way == 0 ? left(hidden) : right(hidden);
  }

  Linear first{3, 4}, left{4, 2}, right{4, 2}, never{4, 2};
};
TORCH_MODULE(Branches);

/// Branches of both ranks in each step: different ones, the same, or both
/// branches.
constexpr std::array<std::array<int64_t, 2>, 6> kWays{
    {{2, 2}, {0, 1}, {1, 1}, {0, 2}, {1, 0}, {2, 2}}};

void train_branches(Log& log, const Options& options) {
  Trained<Branches> trained(Branches(), options);
  for (size_t step = 0; step < kWays.size(); ++step) {
    trained.optimizer.zero_grad();
    const auto output =
        trained.model->forward(inputs(step), kWays.at(step).at(ddp::rank()));
    torch::mse_loss(output, targets(step)).backward();
    trained.optimizer.step();
    log.state(trained.net);
  }
}

/// Works like PyTorch's reentrant checkpoint: recomputes in the backward pass,
/// with a nested pass inside it.
struct Reentrant : torch::autograd::Function<Reentrant> {
  using Part = std::function<Tensor(const Tensor&)>;

  static Tensor forward(torch::autograd::AutogradContext* context,
                        const Tensor& x,
                        const std::shared_ptr<Part>& part) {
    context->save_for_backward({x});
    context->saved_data["part"] =
        c10::IValue::make_capsule(c10::make_intrusive<Holder>(part));
    return (*part)(x.detach());
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list gradients) {
    const torch::AutoGradMode with_graph(true);
    const auto held = context->saved_data["part"].toCapsule();
    const auto part = c10::static_intrusive_pointer_cast<Holder>(held)->part;
    auto x = context->get_saved_variables()[0].detach().requires_grad_();
    (*part)(x).backward(gradients[0]);
    return {x.grad(), Tensor()};
  }

 private:
  struct Holder : torch::CustomClassHolder {
    explicit Holder(std::shared_ptr<Part> given) : part(std::move(given)) {}
    std::shared_ptr<Part> part;
  };
};

/// A block that is used three times, each time in a nested pass, and a layer
/// that is never used.
struct FixedImpl : torch::nn::Module {
  FixedImpl() {
    register_module("first", first);
    register_module("block", block);
    register_module("last", last);
    register_module("never", never);
    to(torch::kDouble);
    fill(*this);
  }

  Tensor forward(Tensor x) {
    x = torch::tanh(first(x));
    const auto part = std::make_shared<Reentrant::Part>(
        [this](const Tensor& y) { return torch::tanh(block(y)); });
    for (int use = 0; use < 3; ++use) {
      x = Reentrant::apply(x, part);
    }
    return last(x);
  }

  Linear first{3, 4}, block{4, 4}, last{4, 2}, never{4, 2};
};
TORCH_MODULE(Fixed);

void train_fixed(Log& log) {
  Trained<Fixed> trained(Fixed(), Options().static_graph(true));
  for (int64_t step = 0; step < 4; ++step) {
    trained.train(inputs(step), targets(step));
    log.state(trained.net);
  }
}

/// Two outputs of independent layers.
struct PairImpl : torch::nn::Module {
  PairImpl() {
    register_module("left", left);
    register_module("right", right);
    to(torch::kDouble);
    fill(*this);
  }

  std::tuple<Tensor, Tensor> forward(const Tensor& x) {
    return {left(x), torch::tanh(right(x))};
  }

  Linear left{3, 2}, right{3, 2};
};
TORCH_MODULE(Pair);

void train_pair(Log& log) {
  Trained<Pair> trained(Pair(), Options().find_unused_parameters(true));
  for (int64_t step = 0; step < 4; ++step) {
    trained.optimizer.zero_grad();
    const auto [left, right] = trained.model->forward(inputs(step));
    torch::mse_loss(left, targets(step)).backward();
    torch::mse_loss(right, targets(step + 1)).backward();
    trained.optimizer.step();
    log.state(trained.net);
  }
}

void train_nested(Log& log) {
  Trained<Pair> trained{Pair()};
  for (int64_t step = 0; step < 4; ++step) {
    trained.optimizer.zero_grad();
    const auto [left, right] = trained.model->forward(inputs(step));
    const auto loss = torch::mse_loss(left, targets(step));
    loss.register_hook([&](const Tensor&) {
      const torch::AutoGradMode with_graph(true);
      const auto output = torch::tanh(trained.net->right(inputs(step)));
      torch::mse_loss(output, targets(step + 1)).backward();
    });
    loss.backward();
    trained.optimizer.step();
    log.state(trained.net);
  }
}

/// A block that is used three times; `parts` selects the calls that are
/// checkpointed.
struct DeepImpl : torch::nn::Module {
  explicit DeepImpl(std::array<bool, 3> parts) : parts_(parts) {
    register_module("first", first);
    register_module("block", block);
    register_module("last", last);
    to(torch::kDouble);
    fill(*this);
  }

  Tensor forward(Tensor x) {
    x = torch::tanh(first(x));
    const auto part = [this](const Tensor& y) {
      return torch::dropout(torch::tanh(block(y)), 0.25, is_training());
    };
    for (const bool is_checkpointed : parts_) {
      x = is_checkpointed ? ddp::checkpoint_activations(part, x) : part(x);
    }
    return last(x);
  }

  Linear first{3, 4}, block{4, 4}, last{4, 2};

 private:
  std::array<bool, 3> parts_;
};
TORCH_MODULE(Deep);

void train_deep(Log& log, std::array<bool, 3> parts) {
  Trained<Deep> trained{Deep(parts)};
  torch::manual_seed(3 + ddp::rank());
  for (int64_t step = 0; step < 4; ++step) {
    trained.train(inputs(step), targets(step));
    log.note("next draw", torch::rand({2}));
    log.state(trained.net);
  }
}

const std::vector<Case> kCases{
    {"unused",
     [](Log& log) {
       train_branches(log, Options().find_unused_parameters(true));
     }},
    {"static_graph", train_fixed},
    {"a_pass_for_each_output", train_pair},
    {"nested_before_the_outputs", train_nested},
    {"checkpoint_none",
     [](Log& log) {
       train_deep(log, {false, false, false});
     }},
    {"checkpoint_once",
     [](Log& log) {
       train_deep(log, {false, true, false});
     }},
    {"checkpoint_twice",
     [](Log& log) {
       train_deep(log, {true, true, false});
     }},
    {"checkpoint_all",
     [](Log& log) {
       train_deep(log, {true, true, true});
     }},
};

}  // namespace graphs_side

int graphs(const Arguments& args) {
  return passes_side::run_cases(args, graphs_side::kCases);
}

}  // namespace parity
