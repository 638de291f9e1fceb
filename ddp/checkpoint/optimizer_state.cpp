#include "ddp/checkpoint/optimizer_state.h"

#include <string>

#include <ATen/Functions.h>

#include "ddp/checkpoint/detail/lbfgs_state.h"
#include "ddp/checkpoint/detail/optimizer_fields.h"
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
// Python stores steps as float32, which is exact up to this number.
constexpr int64_t kFloatSteps = int64_t{1} << 24;

std::string bracket(int64_t index) {
  return "[" + std::to_string(index) + "]";
}

/// Visitor that writes the visited fields into a dict.
struct FieldWriter {
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
      dict.insert(name, tensor);
    }
  }
};

/// Visitor that sets the visited fields from a dict.
struct FieldReader {
  const DictReader& dict;
  at::Tensor param;

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
    const auto saved = dict.tensor(name);
    TORCH_CHECK(saved.sizes() == param.sizes(),
                "its optimizer state \"",
                name,
                "\" has shape ",
                saved.sizes(),
                ", but the parameter has ",
                param.sizes());
    TORCH_CHECK(saved.is_complex() == param.is_complex(),
                "its optimizer state \"",
                name,
                "\" has dtype ",
                saved.scalar_type(),
                ", but the parameter has ",
                param.scalar_type());
    tensor = saved.to(param.options().requires_grad(false))
                 .resolve_conj()
                 .resolve_neg();
  }
};

template <class Kind>
IValue state_to_value(Kind /*kind*/,
                      const torch::optim::OptimizerParamState& state,
                      const torch::optim::OptimizerOptions& options) {
  FieldWriter writer;
  auto copy = static_cast<const typename Kind::State&>(state);
  visit_state(
      copy, static_cast<const typename Kind::Options&>(options), writer);
  return writer.dict;
}

template <class Kind>
IValue options_to_value(Kind /*kind*/,
                        const torch::optim::OptimizerOptions& options,
                        const IValue& params) {
  FieldWriter writer;
  auto copy = static_cast<const typename Kind::Options&>(options);
  visit_options(copy, writer);
  writer.dict.insert(kDecoupled, Kind::kDecoupledWeightDecay);
  writer.dict.insert("params", params);
  return writer.dict;
}

template <class Kind>
auto read_options(Kind kind, const DictReader& group) {
  TORCH_CHECK(!group.has_value(kMaximize) || !group.boolean(kMaximize),
              "its optimizer maximizes, which LibTorch's cannot");
  TORCH_CHECK(!group.has_value(kDecoupled) ||
                  group.boolean(kDecoupled) == Kind::kDecoupledWeightDecay,
              "its optimizer is another one than ",
              kind.name);
  auto options = std::make_unique<typename Kind::Options>(0.0);
  FieldReader reader{group, {}};
  visit_options(*options, reader);
  return options;
}

/// Returns null if the optimizer had no state for the parameter.
template <class Kind>
std::unique_ptr<typename Kind::State> read_state(
    Kind /*kind*/,
    const DictReader& saved,
    const typename Kind::Options& options,
    const at::Tensor& param) {
  // Python's SGD without momentum writes {'momentum_buffer': None}.
  if constexpr (std::is_same_v<typename Kind::State,
                               torch::optim::SGDParamState>) {
    if (!saved.has_value("momentum_buffer")) {
      return nullptr;
    }
  }
  auto state = std::make_unique<typename Kind::State>();
  FieldReader reader{saved, param};
  visit_state(*state, options, reader);
  return state;
}

/// Reads one parameter group; `states` is the dict of all groups.
template <class Kind>
void read_group(Kind kind,
                const torch::optim::OptimizerParamGroup& group,
                const DictReader& saved,
                const c10::Dict<IValue, IValue>& states,
                OptimizerUpdate& update) {
  auto options = read_options(kind, saved);
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
      TORCH_CHECK(!Kind::kStateFromStart,
                  "its optimizer has no state for parameter ",
                  p);
      continue;
    }
    const DictReader entry(found->value(),
                           "optimizer[\"state\"]" + bracket(ids[p].toInt()));
    if (auto state = read_state(kind, entry, *options, param)) {
      update.states.emplace_back(param.unsafeGetTensorImpl(), std::move(state));
    }
  }
  update.options.push_back(std::move(options));
}

template <class Kind>
OptimizerUpdate read(Kind kind,
                     const Optimizer& optimizer,
                     const DictReader& saved) {
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
    read_group(kind, groups[g], group, states, update);
  }
  return update;
}

}  // namespace

IValue optimizer_to_value(const Optimizer& optimizer) {
  if (const auto* lbfgs =
          dynamic_cast<const torch::optim::LBFGS*>(&optimizer)) {
    return lbfgs_to_value(*lbfgs);
  }
  return with_kind(optimizer, [&](auto kind) -> IValue {
    auto states = new_dict();
    auto groups = new_list();
    int64_t id = 0;
    for (const auto& group : optimizer.param_groups()) {
      auto ids = new_list();
      for (const auto& param : group.params()) {
        const auto found = optimizer.state().find(param.unsafeGetTensorImpl());
        if (found != optimizer.state().end()) {
          states.toGenericDict().insert(
              id, state_to_value(kind, *found->second, group.options()));
        }
        ids.toList().push_back(id++);
      }
      groups.toList().push_back(options_to_value(kind, group.options(), ids));
    }
    auto result = new_dict();
    result.toGenericDict().insert("state", states);
    result.toGenericDict().insert("param_groups", groups);
    return result;
  });
}

OptimizerUpdate read_optimizer(const Optimizer& optimizer,
                               const IValue& value) {
  if (const auto* lbfgs =
          dynamic_cast<const torch::optim::LBFGS*>(&optimizer)) {
    return read_lbfgs(*lbfgs, value);
  }
  return with_kind(optimizer, [&](auto kind) {
    return read(kind, optimizer, DictReader(value, "optimizer"));
  });
}

void apply(OptimizerUpdate update, Optimizer& optimizer) {
  optimizer.state().clear();
  for (auto& [param, state] : update.states) {
    optimizer.state()[param] = std::move(state);
  }
  for (size_t g = 0; g < update.options.size(); ++g) {
    optimizer.param_groups()[g].set_options(std::move(update.options[g]));
  }
}

}  // namespace ddp::detail
