#include "ddp/checkpoint/state/optimizer_state.h"

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "ddp/checkpoint/pickle/python_value.h"

namespace ddp::detail {
namespace {

using c10::IValue;
using torch::optim::Optimizer;
using Betas = std::tuple<double, double>;

// Python's option that distinguishes AdamW from Adam, and an option that
// LibTorch lacks.
constexpr const char* kDecoupled = "decoupled_weight_decay";
constexpr const char* kMaximize = "maximize";
// An option of LBFGS alone.
constexpr const char* kHistorySize = "history_size";
// Python stores steps as float32, which is exact up to this number.
constexpr int64_t kFloatSteps = int64_t{1} << 24;

// The classes of optimizers. `visit_options` calls the visitor with (name,
// reference) for each option, `visit_state` with (name, reference, needed) for
// each tensor of a parameter's state, under the names of Python's optimizers.
// `needed` is true if the optimizer cannot step without the tensor.

struct SgdKind {
  static constexpr const char* kName = "SGD";
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;

  template <class Visitor>
  static void visit_options(Options& options, Visitor& visit) {
    visit("lr", options.lr());
    visit("momentum", options.momentum());
    visit("dampening", options.dampening());
    visit("weight_decay", options.weight_decay());
    visit("nesterov", options.nesterov());
  }
  template <class Visitor>
  static void visit_state(State& state,
                          const Options& /*options*/,
                          Visitor& visit) {
    visit("momentum_buffer", state.momentum_buffer(), true);
  }
};

template <class OptionsType, class StateType>
struct AdamLikeKind {
  static constexpr const char* kName =
      std::is_same_v<OptionsType, torch::optim::AdamWOptions> ? "AdamW"
                                                              : "Adam";
  using Options = OptionsType;
  using State = StateType;

  template <class Visitor>
  static void visit_options(Options& options, Visitor& visit) {
    visit("lr", options.lr());
    visit("betas", options.betas());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("amsgrad", options.amsgrad());
  }
  template <class Visitor>
  static void visit_state(State& state,
                          const Options& options,
                          Visitor& visit) {
    visit("step", state.step());
    visit("exp_avg", state.exp_avg(), true);
    visit("exp_avg_sq", state.exp_avg_sq(), true);
    visit("max_exp_avg_sq", state.max_exp_avg_sq(), options.amsgrad());
  }
};
using AdamKind =
    AdamLikeKind<torch::optim::AdamOptions, torch::optim::AdamParamState>;
using AdamWKind =
    AdamLikeKind<torch::optim::AdamWOptions, torch::optim::AdamWParamState>;

template <class Kind>
constexpr bool kIsDecoupled = std::is_same_v<Kind, AdamWKind>;

struct RmspropKind {
  static constexpr const char* kName = "RMSprop";
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;

  template <class Visitor>
  static void visit_options(Options& options, Visitor& visit) {
    visit("lr", options.lr());
    visit("alpha", options.alpha());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("momentum", options.momentum());
    visit("centered", options.centered());
  }
  template <class Visitor>
  static void visit_state(State& state,
                          const Options& options,
                          Visitor& visit) {
    visit("step", state.step());
    visit("square_avg", state.square_avg(), true);
    visit("momentum_buffer", state.momentum_buffer(), options.momentum() > 0);
    visit("grad_avg", state.grad_avg(), options.centered());
  }
};

struct AdagradKind {
  static constexpr const char* kName = "Adagrad";
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;

  template <class Visitor>
  static void visit_options(Options& options, Visitor& visit) {
    visit("lr", options.lr());
    visit("lr_decay", options.lr_decay());
    visit("weight_decay", options.weight_decay());
    visit("initial_accumulator_value", options.initial_accumulator_value());
    visit("eps", options.eps());
  }
  template <class Visitor>
  static void visit_state(State& state,
                          const Options& /*options*/,
                          Visitor& visit) {
    visit("step", state.step());
    visit("sum", state.sum(), true);
  }
};

template <class Type>
bool is_a(const Optimizer& optimizer) {
  return dynamic_cast<const Type*>(&optimizer) != nullptr;
}

/// Calls `work` with the kind of an optimizer and returns its result.
/// @throws c10::Error for any other optimizer than these five.
template <class Work>
auto with_kind(const Optimizer& optimizer, const Work& work) {
  if (is_a<torch::optim::SGD>(optimizer)) {
    return work(SgdKind());
  }
  if (is_a<torch::optim::Adam>(optimizer)) {
    return work(AdamKind());
  }
  if (is_a<torch::optim::AdamW>(optimizer)) {
    return work(AdamWKind());
  }
  if (is_a<torch::optim::RMSprop>(optimizer)) {
    return work(RmspropKind());
  }
  TORCH_CHECK(is_a<torch::optim::Adagrad>(optimizer),
              "expected SGD, Adam, AdamW, RMSprop, Adagrad or an optimizer "
              "that is ddp::Stateful to keep in a checkpoint, but got ",
              is_a<torch::optim::LBFGS>(optimizer)
                  ? "LBFGS; leave it out of the Checkpoint"
                  : "another one");
  return work(AdagradKind());
}

std::string bracket(int64_t index) {
  return "[" + std::to_string(index) + "]";
}

/// Visitor that writes the visited fields into a dict.
struct FieldWriter {
  at::Tensor param;
  StateToValue convert;
  c10::Dict<IValue, IValue> dict = new_dict().toGenericDict();

  template <class T>
  void operator()(const char* name, const T& value) {
    dict.insert(name, value);
  }
  void operator()(const char* name, int64_t step) {
    dict.insert(name,
                at::scalar_tensor(
                    step, step <= kFloatSteps ? at::kFloat : at::kDouble));
  }
  void operator()(const char* name, const at::Tensor& tensor, bool) {
    if (tensor.defined()) {
      dict.insert(name, convert ? convert(param, tensor) : IValue(tensor));
    }
  }
};

/// Visitor that sets the visited fields from a dict.
struct FieldReader {
  const DictReader& dict;
  at::Tensor param;
  ValueToState convert;
  bool copies = false;  // tensors to the device and dtype of the parameter

  void operator()(const char* name, double& value) {
    value = dict.number(name);
  }
  void operator()(const char* name, bool& value) { value = dict.boolean(name); }
  void operator()(const char* name, int64_t& step) {
    step = dict.integer(name);
  }
  void operator()(const char* name, Betas& value) {
    const auto both = dict.numbers(name);
    TORCH_CHECK(both.size() == 2,
                "expected two numbers as its optimizer's ",
                name,
                ", but got ",
                both.size());
    value = {both[0], both[1]};
  }
  void operator()(const char* name, at::Tensor& tensor, bool needed) {
    if (!needed && !dict.has_value(name)) {
      return;
    }
    tensor = dict.tensor(name);
    if (convert) {
      tensor = convert(param, tensor);
    }
    TORCH_CHECK(tensor.sizes() == param.sizes(),
                "its optimizer state \"",
                name,
                "\" has shape ",
                tensor.sizes(),
                ", but the parameter has ",
                param.sizes());
    TORCH_CHECK(tensor.is_complex() == param.is_complex(),
                "its optimizer state \"",
                name,
                "\" has dtype ",
                tensor.scalar_type(),
                ", but the parameter has ",
                param.scalar_type());
    if (copies) {
      // A copy, because the file's memory may be larger than a rank's part.
      tensor = tensor
                   .to(param.options().requires_grad(false),
                       /*non_blocking=*/false,
                       /*copy=*/true)
                   .resolve_conj()
                   .resolve_neg();
    }
  }
};

template <class Kind>
IValue state_to_value(const at::Tensor& param,
                      const torch::optim::OptimizerParamState& state,
                      const torch::optim::OptimizerOptions& options,
                      const StateToValue& convert) {
  FieldWriter writer{param, convert};
  auto copy = static_cast<const typename Kind::State&>(state);
  Kind::visit_state(
      copy, static_cast<const typename Kind::Options&>(options), writer);
  return writer.dict;
}

template <class Kind>
IValue options_to_value(const torch::optim::OptimizerOptions& options,
                        const IValue& params) {
  FieldWriter writer{};
  auto copy = static_cast<const typename Kind::Options&>(options);
  Kind::visit_options(copy, writer);
  writer.dict.insert(kDecoupled, kIsDecoupled<Kind>);
  writer.dict.insert("params", params);
  return writer.dict;
}

/// New options and states for an optimizer.
struct OptimizerUpdate {
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;
  std::vector<
      std::pair<void*, std::unique_ptr<torch::optim::OptimizerParamState>>>
      states;
};

template <class Kind>
auto read_options(const DictReader& group) {
  TORCH_CHECK(!group.has(kHistorySize),
              "its optimizer is LBFGS, whose state is not loaded; leave the "
              "optimizer out of the Checkpoint");
  TORCH_CHECK(!group.has_value(kMaximize) || !group.boolean(kMaximize),
              "its optimizer maximizes, which LibTorch's cannot");
  TORCH_CHECK(!group.has_value(kDecoupled) ||
                  group.boolean(kDecoupled) == kIsDecoupled<Kind>,
              "its optimizer is another one than ",
              Kind::kName);
  auto options = std::make_unique<typename Kind::Options>(0.0);
  FieldReader reader{group, {}, {}};
  Kind::visit_options(*options, reader);
  return options;
}

/// Returns null if the optimizer had no state for the parameter.
template <class Kind>
std::unique_ptr<typename Kind::State> read_state(
    const typename Kind::Options& options, FieldReader reader) {
  // Python's SGD without momentum writes {'momentum_buffer': None}.
  if (std::is_same_v<Kind, SgdKind> &&
      !reader.dict.has_value("momentum_buffer")) {
    return nullptr;
  }
  auto state = std::make_unique<typename Kind::State>();
  Kind::visit_state(*state, options, reader);
  return state;
}

/// Reads one parameter group; `states` is the dict of all groups.
template <class Kind>
void read_group(const torch::optim::OptimizerParamGroup& group,
                const DictReader& saved,
                const c10::Dict<IValue, IValue>& states,
                const ValueToState& convert,
                bool copies,
                OptimizerUpdate& update) {
  auto options = read_options<Kind>(saved);
  const auto ids = saved.list("params");
  TORCH_CHECK(ids.size() == group.params().size(),
              "its optimizer has a group of ",
              ids.size(),
              " parameters, but this one's has ",
              group.params().size());
  for (size_t p = 0; p < ids.size(); ++p) {
    const auto& param = group.params()[p];
    TORCH_CHECK(ids[p].isInt(),
                "expected ints as its optimizer's parameter numbers, but got ",
                describe(ids[p]));
    const auto found = states.find(ids[p]);
    if (found == states.end()) {
      // LibTorch's Adagrad creates its states in its constructor.
      TORCH_CHECK((!std::is_same_v<Kind, AdagradKind>),
                  "its optimizer has no state for parameter ",
                  p);
      continue;
    }
    const DictReader entry(found->value(),
                           "optimizer[\"state\"]" + bracket(ids[p].toInt()));
    if (auto state =
            read_state<Kind>(*options, {entry, param, convert, copies})) {
      update.states.emplace_back(param.unsafeGetTensorImpl(), std::move(state));
    }
  }
  update.options.push_back(std::move(options));
}

OptimizerUpdate read_update(const Optimizer& optimizer,
                            const IValue& value,
                            const ValueToState& convert,
                            bool copies) {
  return with_kind(optimizer, [&](auto kind) {
    const DictReader saved(value, "optimizer");
    const auto& groups = optimizer.param_groups();
    const auto saved_groups = saved.list("param_groups");
    TORCH_CHECK(saved_groups.size() == groups.size(),
                "its optimizer has ",
                saved_groups.size(),
                " parameter groups, but this one has ",
                groups.size());
    const auto states = saved.dict("state").entries();
    OptimizerUpdate update;
    for (size_t g = 0; g < groups.size(); ++g) {
      const DictReader group(
          saved_groups[g],
          "optimizer[\"param_groups\"]" + bracket(static_cast<int64_t>(g)));
      read_group<decltype(kind)>(
          groups[g], group, states, convert, copies, update);
    }
    return update;
  });
}

}  // namespace

IValue optimizer_to_value(const Optimizer& optimizer,
                          const StateToValue& convert) {
  return with_kind(optimizer, [&](auto kind) -> IValue {
    using Kind = decltype(kind);
    auto states = new_dict();
    auto groups = new_list();
    int64_t id = 0;
    for (const auto& group : optimizer.param_groups()) {
      auto ids = new_list();
      for (const auto& param : group.params()) {
        const auto found = optimizer.state().find(param.unsafeGetTensorImpl());
        if (found != optimizer.state().end()) {
          states.toGenericDict().insert(
              id,
              state_to_value<Kind>(
                  param, *found->second, group.options(), convert));
        }
        ids.toList().push_back(id++);
      }
      groups.toList().push_back(options_to_value<Kind>(group.options(), ids));
    }
    auto result = new_dict();
    result.toGenericDict().insert("state", states);
    result.toGenericDict().insert("param_groups", groups);
    return result;
  });
}

void check_optimizer(const Optimizer& optimizer,
                     const IValue& value,
                     const ValueToState& convert) {
  read_update(optimizer, value, convert, /*copies=*/false);
}

void load_optimizer(Optimizer& optimizer,
                    const IValue& value,
                    const ValueToState& convert) {
  auto update = read_update(optimizer, value, convert, /*copies=*/true);
  optimizer.state().clear();
  for (auto& [param, state] : update.states) {
    optimizer.state()[param] = std::move(state);
  }
  for (size_t g = 0; g < update.options.size(); ++g) {
    optimizer.param_groups()[g].set_options(std::move(update.options[g]));
  }
}

}  // namespace ddp::detail
