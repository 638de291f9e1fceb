#include <algorithm>
#include <cmath>
#include <functional>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include "ddp/exported/program.h"

namespace ddp::detail {
namespace {

using Kind = ExportedArgument::Kind;
using Values = std::vector<c10::IValue>;

double real(const c10::IValue& value) {
  return value.isInt()    ? static_cast<double>(value.toInt())
         : value.isBool() ? static_cast<double>(value.toBool())
                          : value.toDouble();
}

bool are_integers(const Values& values) {
  return std::all_of(values.begin(), values.end(), [](const auto& value) {
    return value.isInt();
  });
}

int64_t floor_divide(int64_t left, int64_t right) {
  TORCH_CHECK(right != 0, "Expected no division by zero, but got one");
  TORCH_CHECK(right != -1 || left != INT64_MIN,
              "Expected a quotient of 64 bits, but got a larger one");
  const int64_t quotient = left / right;
  return left % right != 0 && (left < 0) != (right < 0) ? quotient - 1
                                                        : quotient;
}

/// An operation that keeps integers. Python's do not overflow; sizes of tensors
/// stay far below 2^63, where unsigned numbers wrap around without an error.
template <typename Operation>
SymbolicOperation arithmetic(size_t count, Operation compute) {
  return {count, [compute](const Values& v) -> c10::IValue {
            const auto right = v.size() - 1;
            return are_integers(v)
                       ? c10::IValue(static_cast<int64_t>(
                             compute(static_cast<uint64_t>(v[0].toInt()),
                                     static_cast<uint64_t>(v[right].toInt()))))
                       : c10::IValue(compute(real(v[0]), real(v[right])));
          }};
}

template <typename Operation>
SymbolicOperation comparison(Operation compute) {
  return {2, [compute](const Values& v) -> c10::IValue {
            return compute(real(v[0]), real(v[1]));
          }};
}

c10::IValue power(const Values& v) {
  if (!are_integers(v) || v[1].toInt() < 0) {
    return std::pow(real(v[0]), real(v[1]));
  }
  uint64_t result = 1;
  auto base = static_cast<uint64_t>(v[0].toInt());
  for (int64_t exponent = v[1].toInt(); exponent > 0; exponent /= 2) {
    result *= exponent % 2 == 1 ? base : 1;
    base *= base;
  }
  return static_cast<int64_t>(result);
}

c10::IValue modulo(const Values& v) {
  const int64_t left = v[0].toInt();
  const int64_t right = v[1].toInt();
  return right == -1 ? 0 : left - right * floor_divide(left, right);
}

c10::IValue item_at(const Values& v) {
  const auto items = v[0].isTuple() ? v[0].toTupleRef().elements().vec()
                                    : v[0].toListRef().vec();
  const int64_t at = v[1].toInt();
  TORCH_CHECK(at >= 0 && at < static_cast<int64_t>(items.size()),
              "Expected an index below ",
              items.size(),
              ", but got ",
              at);
  return items[static_cast<size_t>(at)];
}

c10::IValue to_integer(const Values& v) {
  const double value = real(v[0]);
  TORCH_CHECK(
      std::abs(value) < 9e18, "Expected a number of 64 bits, but got ", value);
  return v[0].isInt() ? v[0].toInt() : static_cast<int64_t>(value);
}

const std::map<std::string, SymbolicOperation>& symbolic_operations() {
  using Result = c10::IValue;
  static const std::map<std::string, SymbolicOperation> operations{
      {"_operator.add", arithmetic(2, std::plus<>())},
      {"_operator.sub", arithmetic(2, std::minus<>())},
      {"_operator.mul", arithmetic(2, std::multiplies<>())},
      {"_operator.neg", arithmetic(1, [](auto x, auto) { return 0 - x; })},
      {"_operator.pos", {1, [](const Values& v) { return v[0]; }}},
      {"_operator.floordiv",
       {2,
        [](const Values& v) -> Result {
          return floor_divide(v[0].toInt(), v[1].toInt());
        }}},
      {"_operator.mod", {2, modulo}},
      {"_operator.truediv",
       {2, [](const Values& v) -> Result { return real(v[0]) / real(v[1]); }}},
      {"_operator.pow", {2, power}},
      {"_operator.eq", comparison(std::equal_to<>())},
      {"_operator.ne", comparison(std::not_equal_to<>())},
      {"_operator.lt", comparison(std::less<>())},
      {"_operator.le", comparison(std::less_equal<>())},
      {"_operator.gt", comparison(std::greater<>())},
      {"_operator.ge", comparison(std::greater_equal<>())},
      {"_operator.and_", comparison(std::logical_and<>())},
      {"_operator.or_", comparison(std::logical_or<>())},
      {"_operator.getitem", {2, item_at}},
      {"torch.sym_not",
       {1, [](const Values& v) -> Result { return !v[0].toBool(); }}},
      {"torch.sym_int", {1, to_integer}},
      {"torch.sym_float",
       {1, [](const Values& v) -> Result { return real(v[0]); }}},
      {"torch.sym_max",
       {2,
        [](const Values& v) { return real(v[0]) < real(v[1]) ? v[1] : v[0]; }}},
      {"torch.sym_min",
       {2,
        [](const Values& v) { return real(v[1]) < real(v[0]) ? v[1] : v[0]; }}},
      {"torch.sym_ite",
       {3, [](const Values& v) { return v[0].toBool() ? v[1] : v[2]; }}},
      {"torch._sym_sqrt",
       {1, [](const Values& v) -> Result { return std::sqrt(real(v[0])); }}}};
  return operations;
}

class AutocastScope {
 public:
  AutocastScope(c10::DeviceType device, bool enabled, const c10::IValue& dtype)
      : device_(device),
        was_enabled_(at::autocast::is_autocast_enabled(device)),
        dtype_(at::autocast::get_autocast_dtype(device)) {
    at::autocast::set_autocast_enabled(device, enabled);
    if (!dtype.isNone()) {
      at::autocast::set_autocast_dtype(
          device, static_cast<c10::ScalarType>(dtype.toInt()));
    }
    at::autocast::increment_nesting();
  }
  ~AutocastScope() {
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
    at::autocast::set_autocast_enabled(device_, was_enabled_);
    at::autocast::set_autocast_dtype(device_, dtype_);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  const c10::DeviceType device_;
  const bool was_enabled_;
  const c10::ScalarType dtype_;
};

/// Gives operands of the branch of a cond that was not taken a gradient of
/// zeros, as Python does: the sum of no elements is 0 and depends on them.
void add_zero_gradients(const Values& operands, Values& results) {
  if (!at::GradMode::is_enabled()) {
    return;
  }
  for (const auto& operand : operands) {
    if (!operand.isTensor() || !operand.toTensor().requires_grad()) {
      continue;
    }
    const auto zero = operand.toTensor().flatten().narrow(0, 0, 0).sum();
    for (auto& result : results) {
      if (result.isTensor() && result.toTensor().is_floating_point()) {
        const auto tensor = result.toTensor();
        result = tensor + zero.to(tensor.scalar_type());
      }
    }
  }
}

/// One run of a graph: the values of its slots.
class Run {
 public:
  Run(const ExportedGraph& graph, const RunMode& mode)
      : graph_(graph), mode_(mode), slots_(graph.slots) {}

  Values run(Values inputs) {
    TORCH_CHECK(inputs.size() == graph_.inputs.size(),
                "Expected ",
                graph_.inputs.size(),
                " inputs of a graph, but got ",
                inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (graph_.inputs[i] >= 0) {
        slot(graph_.inputs[i]) = std::move(inputs[i]);
      }
    }
    for (const auto& node : graph_.nodes) {
      if (node.mode != ExportedNode::Mode::counter || mode_.training) {
        store(node, compute(node));
      }
      for (const int dead : node.dead) {
        slot(dead) = {};
      }
    }
    Values outputs;
    for (const auto& output : graph_.outputs) {
      outputs.push_back(value(output));
    }
    return outputs;
  }

 private:
  c10::IValue& slot(int number) { return slots_[static_cast<size_t>(number)]; }

  c10::IValue value(const ExportedArgument& argument) {
    switch (argument.kind) {
      case Kind::constant:
        return argument.value;
      case Kind::slot:
        return slot(argument.at);
      case Kind::module_device:
        return mode_.device;
      case Kind::tensors: {
        c10::List<at::Tensor> list;
        list.reserve(argument.parts.size());
        for (const auto& [at, number] : argument.parts) {
          list.push_back(slot(at).toTensor());
        }
        return list;
      }
      case Kind::optional_tensors: {
        c10::List<std::optional<at::Tensor>> list;
        for (const auto& [at, number] : argument.parts) {
          list.push_back(at < 0 ? std::optional<at::Tensor>()
                                : slot(at).toTensor());
        }
        return list;
      }
      case Kind::integers: {
        c10::List<int64_t> list;
        list.reserve(argument.parts.size());
        for (const auto& [at, number] : argument.parts) {
          list.push_back(at < 0 ? number : slot(at).toInt());
        }
        return list;
      }
      case Kind::graph:
        break;
    }
    TORCH_CHECK(false, "Expected a value, but got a graph");
  }

  /// The values of the arguments from `first` on.
  Values values(const ExportedNode& node, size_t first = 0) {
    Values values;
    for (size_t i = first; i < node.arguments.size(); ++i) {
      values.push_back(value(node.arguments[i]));
    }
    return values;
  }

  const ExportedGraph& graph_of(const ExportedNode& node, size_t at) const {
    TORCH_CHECK(at < node.arguments.size() && node.arguments[at].graph,
                "Expected a graph as argument ",
                at,
                " of ",
                node.target);
    return *node.arguments[at].graph;
  }

  Values compute(const ExportedNode& node) {
    switch (node.kind) {
      case ExportedNode::Kind::call:
        return call(node);
      case ExportedNode::Kind::symbolic: {
        const auto arguments = values(node);
        TORCH_CHECK(arguments.size() == node.symbolic->arguments,
                    "Expected ",
                    node.symbolic->arguments,
                    " arguments of ",
                    node.target,
                    ", but got ",
                    arguments.size());
        return {node.symbolic->compute(arguments)};
      }
      case ExportedNode::Kind::set_grad_enabled: {
        const auto& body = graph_of(node, 1);
        const at::AutoGradMode mode(value(node.arguments[0]).toBool() &&
                                    at::GradMode::is_enabled());
        return run_graph(body, values(node, 2), mode_);
      }
      case ExportedNode::Kind::autocast: {
        const auto& body = graph_of(node, 4);
        const AutocastScope autocast(mode_.device.type(),
                                     value(node.arguments[2]).toBool(),
                                     value(node.arguments[1]));
        return run_graph(body, values(node, 5), mode_);
      }
      case ExportedNode::Kind::cond:
        return run_branch(node);
    }
    return {};
  }

  Values call(const ExportedNode& node) {
    torch::jit::Stack stack = values(node);
    if (node.mode == ExportedNode::Mode::training) {
      stack[node.mode_at] = mode_.training;
    } else if (node.mode == ExportedNode::Mode::dropout && !mode_.training) {
      stack[node.mode_at] = 0.0;
    }
    node.operation->callBoxed(stack);
    // The file names the elements of a list.
    if (stack.size() == 1 && stack[0].isTensorList()) {
      const auto list = stack[0].toTensorVector();
      return {list.begin(), list.end()};
    }
    return stack;
  }

  Values run_branch(const ExportedNode& node) {
    const auto& taken = graph_of(node, 1);
    const auto& other = graph_of(node, 2);
    TORCH_CHECK(
        node.arguments.size() == 4, "Expected four arguments of ", node.target);
    const auto condition = value(node.arguments[0]);
    const bool is_true = condition.isTensor()
                             ? condition.toTensor().item<bool>()
                             : condition.toBool();
    Values operands;
    for (const auto& [at, number] : node.arguments[3].parts) {
      operands.push_back(at < 0 ? c10::IValue(number) : slot(at));
    }
    auto results = run_graph(is_true ? taken : other, operands, mode_);
    add_zero_gradients(operands, results);
    return results;
  }

  void store(const ExportedNode& node, Values results) {
    TORCH_CHECK(results.size() >= node.outputs.size(),
                "Expected ",
                node.outputs.size(),
                " results of ",
                node.target,
                ", but got ",
                results.size());
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] >= 0) {
        slot(node.outputs[i]) = std::move(results[i]);
      }
    }
  }

  const ExportedGraph& graph_;
  const RunMode mode_;
  Values slots_;
};

}  // namespace

const SymbolicOperation* symbolic_operation(const std::string& target) {
  const auto found = symbolic_operations().find(target);
  return found == symbolic_operations().end() ? nullptr : &found->second;
}

std::vector<c10::IValue> run_graph(const ExportedGraph& graph,
                                   std::vector<c10::IValue> inputs,
                                   const RunMode& mode) {
  return Run(graph, mode).run(std::move(inputs));
}

}  // namespace ddp::detail
