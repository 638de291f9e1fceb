#include "ddp/checkpoint/detail/lbfgs_state.h"

#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "ddp/checkpoint/pickle/python_value.h"

namespace ddp::detail {
namespace {

using c10::IValue;
using torch::optim::LBFGS;
using torch::optim::LBFGSOptions;
using torch::optim::LBFGSParamState;

// A step allocates a list of this length, and crashes for length 0.
constexpr int64_t kLongestHistory = int64_t{1} << 20;

IValue list_of(const std::deque<at::Tensor>& tensors) {
  auto list = new_list();
  for (const auto& tensor : tensors) {
    list.toList().push_back(tensor);
  }
  return list;
}

/// `al` is omitted, since each step computes it anew.
IValue state_to_value(const LBFGSParamState& state) {
  auto dict = new_dict().toGenericDict();
  dict.insert("func_evals", state.func_evals());
  dict.insert("n_iter", state.n_iter());
  if (state.d().defined()) {
    dict.insert("d", state.d());
    dict.insert("t", state.t());
    dict.insert("old_dirs", list_of(state.old_dirs()));
    dict.insert("old_stps", list_of(state.old_stps()));
    dict.insert("ro", list_of(state.ro()));
    dict.insert("H_diag", state.H_diag());
    dict.insert("prev_flat_grad", state.prev_flat_grad());
    dict.insert("prev_loss", state.prev_loss());
  }
  return dict;
}

IValue options_to_value(const LBFGSOptions& options, size_t params) {
  auto ids = new_list();
  for (size_t id = 0; id < params; ++id) {
    ids.toList().push_back(static_cast<int64_t>(id));
  }
  auto dict = new_dict().toGenericDict();
  dict.insert("lr", options.lr());
  dict.insert("max_iter", options.max_iter());
  dict.insert("max_eval", options.max_eval());
  dict.insert("tolerance_grad", options.tolerance_grad());
  dict.insert("tolerance_change", options.tolerance_change());
  dict.insert("history_size", options.history_size());
  dict.insert("line_search_fn", options.line_search_fn());
  dict.insert("params", ids);
  return dict;
}

std::unique_ptr<LBFGSOptions> read_options(const DictReader& group) {
  auto options = std::make_unique<LBFGSOptions>();
  const auto history = group.integer("history_size");
  TORCH_CHECK(history >= 1 && history <= kLongestHistory,
              "expected a history_size from 1 to ",
              kLongestHistory,
              " of its optimizer, but got ",
              history);
  options->lr(group.number("lr"))
      .max_iter(group.integer("max_iter"))
      .tolerance_grad(group.number("tolerance_grad"))
      .tolerance_change(group.number("tolerance_change"))
      .history_size(history);
  if (group.has_value("max_eval")) {
    options->max_eval(group.integer("max_eval"));
  }
  if (group.has_value("line_search_fn")) {
    const auto name = group.get("line_search_fn");
    TORCH_CHECK(name.isString() && name.toStringRef() == "strong_wolfe",
                "expected \"strong_wolfe\" or None as its optimizer's "
                "line_search_fn, but got ",
                describe(name));
    options->line_search_fn(name.toStringRef());
  }
  return options;
}

/// Reads the state's tensors and checks their numbers of elements.
class TensorReader {
 public:
  TensorReader(const DictReader& dict, const at::Tensor& param)
      : dict_(dict), param_(param) {}

  at::Tensor one(const char* name, int64_t size) const {
    return fitting(dict_.get(name), name, size);
  }

  std::deque<at::Tensor> list(const char* name,
                              int64_t size,
                              size_t longest) const {
    const auto values = dict_.list(name);
    TORCH_CHECK(values.size() <= longest,
                "its optimizer's \"",
                name,
                "\" has ",
                values.size(),
                " entries, more than its history");
    std::deque<at::Tensor> tensors;
    for (const auto& value : values) {
      tensors.push_back(fitting(value, name, size));
    }
    return tensors;
  }

 private:
  /// Converts a tensor to the device and dtype of the parameters, as Python
  /// does.
  at::Tensor fitting(const IValue& value,
                     const char* name,
                     int64_t size) const {
    TORCH_CHECK(value.isTensor() && value.toTensor().numel() == size &&
                    value.toTensor().dim() <= 1 &&
                    value.toTensor().is_complex() == param_.is_complex(),
                "expected a ",
                param_.scalar_type(),
                " tensor of ",
                size,
                " elements as its optimizer's \"",
                name,
                "\", but got ",
                describe(value));
    return value.toTensor()
        .to(param_.options().requires_grad(false))
        .resolve_conj()
        .resolve_neg();
  }

  const DictReader& dict_;
  const at::Tensor& param_;
};

std::unique_ptr<LBFGSParamState> read_state(
    const DictReader& saved,
    const std::vector<at::Tensor>& params,
    int64_t history_size) {
  int64_t size = 0;
  for (const auto& param : params) {
    size += param.numel();
  }
  auto state = std::make_unique<LBFGSParamState>();
  state->func_evals(saved.integer("func_evals"));
  state->n_iter(saved.integer("n_iter"));
  // If the first step ended without an update, only these two entries exist.
  if (!saved.has_value("d")) {
    TORCH_CHECK(state->n_iter() == 0,
                "it has no optimizer[\"state\"][0][\"d\"]");
    return state;
  }
  const TensorReader read(saved, params.front());
  const auto longest = static_cast<size_t>(history_size);
  state->t(saved.number("t"));
  state->prev_loss(saved.number("prev_loss"));
  state->d(read.one("d", size));
  state->prev_flat_grad(read.one("prev_flat_grad", size));
  const auto diagonal = saved.get("H_diag");  // Python's initial value is 1
  state->H_diag(
      diagonal.isInt() || diagonal.isDouble()
          ? at::scalar_tensor(diagonal.toScalar(), params.front().options())
          : read.one("H_diag", 1));
  state->old_dirs(read.list("old_dirs", size, longest));
  state->old_stps(read.list("old_stps", size, longest));
  state->ro(read.list("ro", 1, longest));
  TORCH_CHECK(state->old_dirs().size() == state->old_stps().size() &&
                  state->old_dirs().size() == state->ro().size(),
              "its optimizer's \"old_dirs\", \"old_stps\" and \"ro\" have ",
              state->old_dirs().size(),
              ", ",
              state->old_stps().size(),
              " and ",
              state->ro().size(),
              " entries, but should have the same number");
  return state;
}

}  // namespace

IValue lbfgs_to_value(const LBFGS& optimizer) {
  const auto& group = optimizer.param_groups().front();
  auto states = new_dict();
  for (const auto& [param, state] : optimizer.state()) {
    states.toGenericDict().insert(
        int64_t{0},
        state_to_value(static_cast<const LBFGSParamState&>(*state)));
  }
  auto groups = new_list();
  groups.toList().push_back(
      options_to_value(static_cast<const LBFGSOptions&>(group.options()),
                       group.params().size()));
  auto result = new_dict();
  result.toGenericDict().insert("state", states);
  result.toGenericDict().insert("param_groups", groups);
  return result;
}

OptimizerUpdate read_lbfgs(const LBFGS& optimizer, const IValue& value) {
  const auto& params = optimizer.param_groups().front().params();
  const DictReader saved(value, "optimizer");
  const auto groups = saved.list("param_groups");
  TORCH_CHECK(groups.size() == 1,
              "its optimizer has ",
              groups.size(),
              " parameter groups, but this one has 1");
  const DictReader group(groups[0], "optimizer[\"param_groups\"][0]");
  auto options = read_options(group);
  const auto ids = group.list("params");
  TORCH_CHECK(ids.size() == params.size(),
              "its optimizer has a group of ",
              ids.size(),
              " parameters, but this one's has ",
              params.size());
  const auto states = saved.dict("state").entries();
  OptimizerUpdate update;
  const auto found = ids.empty() ? states.end() : states.find(ids[0]);
  if (found != states.end()) {
    const DictReader state(found->value(), "optimizer[\"state\"][0]");
    update.states.emplace_back(
        params.front().unsafeGetTensorImpl(),
        read_state(state, params, options->history_size()));
  }
  update.options.push_back(std::move(options));
  return update;
}

}  // namespace ddp::detail
