#pragma once

#include <type_traits>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

// Fields of LibTorch's optimizers, with the names of Python's optimizers. A
// visitor is called with (name, reference) for each option, and with (name,
// reference, needed) for each tensor of a parameter's state. `needed` is true
// if the optimizer cannot step without the tensor.
namespace ddp::detail {

template <class Visitor>
void visit_options(torch::optim::SGDOptions& options, Visitor& visit) {
  visit("lr", options.lr());
  visit("momentum", options.momentum());
  visit("dampening", options.dampening());
  visit("weight_decay", options.weight_decay());
  visit("nesterov", options.nesterov());
}

template <class Visitor>
void visit_state(torch::optim::SGDParamState& state,
                 const torch::optim::SGDOptions& /*options*/,
                 Visitor& visit) {
  visit("momentum_buffer", state.momentum_buffer(), true);
}

template <class Options, class Visitor>
void visit_adam_options(Options& options, Visitor& visit) {
  visit("lr", options.lr());
  visit("betas", options.betas());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("amsgrad", options.amsgrad());
}

template <class State, class Options, class Visitor>
void visit_adam_state(State& state, const Options& options, Visitor& visit) {
  visit("step", state.step());
  visit("exp_avg", state.exp_avg(), true);
  visit("exp_avg_sq", state.exp_avg_sq(), true);
  visit("max_exp_avg_sq", state.max_exp_avg_sq(), options.amsgrad());
}

template <class Visitor>
void visit_options(torch::optim::AdamOptions& options, Visitor& visit) {
  visit_adam_options(options, visit);
}

template <class Visitor>
void visit_state(torch::optim::AdamParamState& state,
                 const torch::optim::AdamOptions& options,
                 Visitor& visit) {
  visit_adam_state(state, options, visit);
}

template <class Visitor>
void visit_options(torch::optim::AdamWOptions& options, Visitor& visit) {
  visit_adam_options(options, visit);
}

template <class Visitor>
void visit_state(torch::optim::AdamWParamState& state,
                 const torch::optim::AdamWOptions& options,
                 Visitor& visit) {
  visit_adam_state(state, options, visit);
}

template <class Visitor>
void visit_options(torch::optim::RMSpropOptions& options, Visitor& visit) {
  visit("lr", options.lr());
  visit("alpha", options.alpha());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("momentum", options.momentum());
  visit("centered", options.centered());
}

template <class Visitor>
void visit_state(torch::optim::RMSpropParamState& state,
                 const torch::optim::RMSpropOptions& options,
                 Visitor& visit) {
  visit("step", state.step());
  visit("square_avg", state.square_avg(), true);
  visit("momentum_buffer", state.momentum_buffer(), options.momentum() > 0);
  visit("grad_avg", state.grad_avg(), options.centered());
}

template <class Visitor>
void visit_options(torch::optim::AdagradOptions& options, Visitor& visit) {
  visit("lr", options.lr());
  visit("lr_decay", options.lr_decay());
  visit("weight_decay", options.weight_decay());
  visit("initial_accumulator_value", options.initial_accumulator_value());
  visit("eps", options.eps());
}

template <class Visitor>
void visit_state(torch::optim::AdagradParamState& state,
                 const torch::optim::AdagradOptions& /*options*/,
                 Visitor& visit) {
  visit("step", state.step());
  visit("sum", state.sum(), true);
}

/// The types of one optimizer. `decoupled` is Python's option
/// `decoupled_weight_decay`, the only difference between the states of AdamW
/// and Adam.
template <class OptionsType, class StateType, bool kDecoupled = false>
struct OptimizerKind {
  using Options = OptionsType;
  using State = StateType;
  static constexpr bool kDecoupledWeightDecay = kDecoupled;
  static constexpr bool kStateFromStart =
      std::is_same_v<State, torch::optim::AdagradParamState>;
  const char* name;
};

/// Calls `work` with the OptimizerKind of an optimizer and returns its result.
/// @throws c10::Error for any other optimizer than these five.
template <class Work>
auto with_kind(const torch::optim::Optimizer& optimizer, const Work& work) {
  using namespace torch::optim;
  if (dynamic_cast<const SGD*>(&optimizer) != nullptr) {
    return work(OptimizerKind<SGDOptions, SGDParamState>{"SGD"});
  }
  if (dynamic_cast<const Adam*>(&optimizer) != nullptr) {
    return work(OptimizerKind<AdamOptions, AdamParamState>{"Adam"});
  }
  if (dynamic_cast<const AdamW*>(&optimizer) != nullptr) {
    return work(OptimizerKind<AdamWOptions, AdamWParamState, true>{"AdamW"});
  }
  if (dynamic_cast<const RMSprop*>(&optimizer) != nullptr) {
    return work(OptimizerKind<RMSpropOptions, RMSpropParamState>{"RMSprop"});
  }
  TORCH_CHECK(dynamic_cast<const Adagrad*>(&optimizer) != nullptr,
              "expected SGD, Adam, AdamW, RMSprop, Adagrad or LBFGS to keep in "
              "a checkpoint, but got another optimizer");
  return work(OptimizerKind<AdagradOptions, AdagradParamState>{"Adagrad"});
}

}  // namespace ddp::detail
