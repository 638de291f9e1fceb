#include <algorithm>
#include <cmath>

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

// Python's integers do not overflow; sizes of tensors stay far below.
int64_t wrap(uint64_t value) {
  return static_cast<int64_t>(value);
}
uint64_t bits(const c10::IValue& value) {
  return static_cast<uint64_t>(value.toInt());
}

c10::IValue power(const Values& v) {
  if (!are_integers(v) || v[1].toInt() < 0) {
    return std::pow(real(v[0]), real(v[1]));
  }
  uint64_t result = 1;
  uint64_t base = bits(v[0]);
  for (uint64_t exponent = bits(v[1]); exponent > 0; exponent /= 2) {
    result *= exponent % 2 == 1 ? base : 1;
    base *= base;
  }
  return wrap(result);
}

c10::IValue item_at(const Values& v) {
  TORCH_CHECK(v[0].isList() || v[0].isTuple(), "Expected a list");
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

struct Symbolic {
  SymbolicOperation compute;
  size_t arguments;
};

const std::map<std::string, Symbolic>& symbolic_operations() {
  static const std::map<std::string, Symbolic> operations{
      {"_operator.add",
       {[](const Values& v) -> c10::IValue {
          return are_integers(v) ? c10::IValue(wrap(bits(v[0]) + bits(v[1])))
                                 : c10::IValue(real(v[0]) + real(v[1]));
        },
        2}},
      {"_operator.sub",
       {[](const Values& v) -> c10::IValue {
          return are_integers(v) ? c10::IValue(wrap(bits(v[0]) - bits(v[1])))
                                 : c10::IValue(real(v[0]) - real(v[1]));
        },
        2}},
      {"_operator.mul",
       {[](const Values& v) -> c10::IValue {
          return are_integers(v) ? c10::IValue(wrap(bits(v[0]) * bits(v[1])))
                                 : c10::IValue(real(v[0]) * real(v[1]));
        },
        2}},
      {"_operator.floordiv",
       {[](const Values& v) -> c10::IValue {
          return floor_divide(v[0].toInt(), v[1].toInt());
        },
        2}},
      {"_operator.mod",
       {[](const Values& v) -> c10::IValue {
          const int64_t left = v[0].toInt();
          const int64_t right = v[1].toInt();
          return right == -1 ? int64_t{0}
                             : left - right * floor_divide(left, right);
        },
        2}},
      {"_operator.truediv",
       {[](const Values& v) -> c10::IValue { return real(v[0]) / real(v[1]); },
        2}},
      {"_operator.pow", {power, 2}},
      {"_operator.neg",
       {[](const Values& v) -> c10::IValue {
          return are_integers(v) ? c10::IValue(wrap(0 - bits(v[0])))
                                 : c10::IValue(-real(v[0]));
        },
        1}},
      {"_operator.pos", {[](const Values& v) { return v[0]; }, 1}},
      {"_operator.eq",
       {[](const Values& v) -> c10::IValue { return real(v[0]) == real(v[1]); },
        2}},
      {"_operator.ne",
       {[](const Values& v) -> c10::IValue { return real(v[0]) != real(v[1]); },
        2}},
      {"_operator.lt",
       {[](const Values& v) -> c10::IValue { return real(v[0]) < real(v[1]); },
        2}},
      {"_operator.le",
       {[](const Values& v) -> c10::IValue { return real(v[0]) <= real(v[1]); },
        2}},
      {"_operator.gt",
       {[](const Values& v) -> c10::IValue { return real(v[0]) > real(v[1]); },
        2}},
      {"_operator.ge",
       {[](const Values& v) -> c10::IValue { return real(v[0]) >= real(v[1]); },
        2}},
      {"_operator.and_",
       {[](const Values& v) -> c10::IValue {
          return v[0].toBool() && v[1].toBool();
        },
        2}},
      {"_operator.or_",
       {[](const Values& v) -> c10::IValue {
          return v[0].toBool() || v[1].toBool();
        },
        2}},
      {"_operator.getitem", {item_at, 2}},
      {"torch.sym_not",
       {[](const Values& v) -> c10::IValue { return !v[0].toBool(); }, 1}},
      {"torch.sym_int",
       {[](const Values& v) -> c10::IValue {
          return v[0].isInt() ? v[0].toInt() : static_cast<int64_t>(real(v[0]));
        },
        1}},
      {"torch.sym_float",
       {[](const Values& v) -> c10::IValue { return real(v[0]); }, 1}},
      {"torch.sym_max",
       {[](const Values& v) { return real(v[0]) < real(v[1]) ? v[1] : v[0]; },
        2}},
      {"torch.sym_min",
       {[](const Values& v) { return real(v[1]) < real(v[0]) ? v[1] : v[0]; },
        2}},
      {"torch.sym_ite",
       {[](const Values& v) { return v[0].toBool() ? v[1] : v[2]; }, 3}},
      {"torch._sym_sqrt",
       {[](const Values& v) -> c10::IValue { return std::sqrt(real(v[0])); },
        1}}};
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
        const auto& expected = symbolic_operations().at(node.target).arguments;
        TORCH_CHECK(arguments.size() == expected,
                    "Expected ",
                    expected,
                    " arguments of ",
                    node.target,
                    ", but got ",
                    arguments.size());
        return {node.symbolic(arguments)};
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

SymbolicOperation symbolic_operation(const std::string& target) {
  const auto found = symbolic_operations().find(target);
  return found == symbolic_operations().end() ? nullptr : found->second.compute;
}

std::vector<c10::IValue> run_graph(const ExportedGraph& graph,
                                   std::vector<c10::IValue> inputs,
                                   const RunMode& mode) {
  return Run(graph, mode).run(std::move(inputs));
}

}  // namespace ddp::detail
