#include "ddp/exported/graph.h"

#include <tuple>

#include <ATen/ScalarOps.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include "ddp/amp/autocast.h"
#include "ddp/exported/archive.h"

namespace ddp::detail {
namespace {

using Graphs = std::vector<std::shared_ptr<const ExportedGraph>>;

bool starts_with(const std::string& text, const std::string& start) {
  return text.compare(0, start.size(), start) == 0;
}

bool is_kind(const c10::TypePtr& type, c10::TypeKind kind) {
  return type && type->kind() == kind;
}

/// Returns the slot of a value that the next node reads.
size_t slot_of(ExportedGraph& graph, const JsonValue& name) {
  const auto found = graph.slots.find(name.text());
  if (found == graph.slots.end()) {
    name.refuse("the name of an earlier value");
  }
  graph.last_uses[found->second] = graph.nodes.size();
  return found->second;
}

/// Returns the slot of a value that is made here. Values without a name share
/// one.
size_t new_slot(ExportedGraph& graph, const std::optional<JsonValue>& name) {
  return graph.slots.emplace(name ? name->text() : "", graph.slots.size())
      .first->second;
}

/// A number for a parameter of this type. Python gives a tensor parameter a
/// wrapped number, which takes no part in type promotion.
c10::IValue number_for(const c10::TypePtr& type, const at::Scalar& number) {
  if (is_kind(type, c10::TypeKind::TensorType)) {
    return at::native::wrapped_scalar_tensor(number);
  }
  return is_kind(type, c10::TypeKind::FloatType) ? number.toDouble() : number;
}

Argument constant_of(const c10::IValue& value) {
  return
      [=](const Values& /*slots*/, const RunMode& /*mode*/) { return value; };
}

/// Returns the slots of a node's results.
std::vector<size_t> output_slots(const JsonValue& outputs,
                                 ExportedGraph& graph) {
  std::vector<size_t> slots;
  for (const auto& output : outputs.elements()) {
    const auto [kind, value] = output.only_member();
    if (kind == "as_tensors") {
      for (const auto& tensor : value.elements()) {
        slots.push_back(new_slot(graph, tensor.at("name")));
      }
    } else {
      slots.push_back(new_slot(graph, read_value(kind, value).name));
    }
  }
  return slots;
}

/// Lists the values that a node reads, and no later one. Values that no node
/// reads get the slot of values without a name.
void find_last_uses(ExportedGraph& graph) {
  const auto nameless = new_slot(graph, std::nullopt);
  for (auto& node : graph.nodes) {
    for (auto& slot : node.outputs) {
      slot = graph.last_uses.count(slot) > 0 ? slot : nameless;
    }
  }
  for (const auto& [slot, node] : graph.last_uses) {
    if (node < graph.nodes.size()) {
      graph.nodes[node].last_uses.push_back(slot);
    }
  }
}

/// Takes the first `count` values from the stack.
Values take_first(Values& stack, size_t count) {
  const auto end = stack.begin() + static_cast<std::ptrdiff_t>(count);
  Values first(stack.begin(), end);
  stack.erase(stack.begin(), end);
  return first;
}

void run_with_grad_mode(const Graphs& graphs,
                        Values& stack,
                        const RunMode& mode) {
  const auto enabled = take_first(stack, 1)[0].toBool();
  const at::AutoGradMode guard(enabled && at::GradMode::is_enabled());
  stack = graphs[0]->run(std::move(stack), mode);
}

void run_with_autocast(const Graphs& graphs,
                       Values& stack,
                       const RunMode& mode) {
  // The device type, the dtype, whether it is enabled, and whether copies are.
  const auto options = take_first(stack, 4);
  AutocastOptions autocast;
  autocast.enabled(options[2].toBool());
  if (!options[1].isNone()) {
    autocast.dtype(options[1].toScalarType());
  }
  if (!options[3].isNone()) {
    autocast.cache_enabled(options[3].toBool());
  }
  const AutocastGuard guard(mode.device.type(), autocast);
  stack = graphs[0]->run(std::move(stack), mode);
}

/// Gives each operand of a cond a gradient, as Python does: zeros for the
/// operands of the other branch. The sum of no elements of an operand is 0 and
/// depends on the operand.
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

void run_branch(const Graphs& graphs, Values& stack, const RunMode& mode) {
  const bool is_true = stack[0].isTensor() ? stack[0].toTensor().item<bool>()
                                           : stack[0].toBool();
  const auto operands = stack[1].toListRef().vec();
  stack = graphs[is_true ? 0 : 1]->run(operands, mode);
  add_zero_gradients(operands, stack);
}

Values evaluate(const std::vector<Argument>& arguments,
                const Values& slots,
                const RunMode& mode) {
  Values values;
  values.reserve(arguments.size());
  for (const auto& argument : arguments) {
    values.push_back(argument(slots, mode));
  }
  return values;
}

}  // namespace

Values ExportedGraph::run(Values given, const RunMode& mode) const {
  TORCH_CHECK(given.size() == inputs.size(),
              "Expected another number of inputs of a graph");
  Values values(slots.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    values[inputs[i]] = std::move(given[i]);
  }
  for (const auto& node : nodes) {
    TORCH_CHECK(mode.training || !node.unknown_in_eval,
                "Expected an ExportedModuleOptions::eval_program for forward "
                "in eval(), because the file does not say whether ",
                node.target,
                " follows the mode in \"",
                *node.unknown_in_eval,
                "\"; export the module in eval(), too");
    auto stack = evaluate(node.arguments, values, mode);
    for (const auto slot : node.last_uses) {
      values[slot] = {};
    }
    node.operation(stack, mode);
    TORCH_CHECK(stack.size() >= node.outputs.size(),
                "Expected more results of ",
                node.target);
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      values[node.outputs[i]] = std::move(stack[i]);
    }
  }
  return evaluate(outputs, values, mode);
}

ExportedValue read_value(const std::string& kind,
                         const JsonValue& value,
                         const c10::TypePtr& type) {
  using Read = c10::IValue (*)(const JsonValue&);
  static const std::map<std::string, Read> constants{
      {"as_none", [](const JsonValue&) { return c10::IValue(); }},
      {"as_int", [](const JsonValue& v) { return c10::IValue(v.integer()); }},
      {"as_float", [](const JsonValue& v) { return c10::IValue(v.number()); }},
      {"as_bool", [](const JsonValue& v) { return c10::IValue(v.boolean()); }},
      {"as_complex",
       [](const JsonValue& v) {
         return c10::IValue(c10::complex<double>(v.at("real").number(),
                                                 v.at("imag").number()));
       }},
      {"as_string", [](const JsonValue& v) { return c10::IValue(v.text()); }},
      {"as_scalar_type", exported_dtype},
      {"as_memory_format", exported_memory_format},
      {"as_layout", exported_layout},
      {"as_device", exported_device}};
  if (kind == "as_tensor") {
    return {value.at("name"), std::nullopt};
  }
  if (kind == "as_name") {
    return {value, std::nullopt};
  }
  if (kind == "as_optional_tensor" || starts_with(kind, "as_sym_")) {
    const auto [inner_kind, inner] = value.only_member();
    return read_value(inner_kind, inner, type);
  }
  const auto read = constants.find(kind);
  if (read == constants.end()) {
    return {};
  }
  const auto constant = read->second(value);
  return {
      std::nullopt,
      constant.isScalar() ? number_for(type, constant.toScalar()) : constant};
}

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Returns a text of the node's metadata, or "".
std::string metadata_of(const JsonValue& node, const std::string& name) {
  const auto metadata = node.find("metadata");
  const auto text = metadata ? metadata->find(name) : std::nullopt;
  return text ? text->text() : "";
}

bool has_running_statistics(const JsonValue& node) {
  for (const auto& input : node.at("inputs").elements()) {
    if (input.at("name").text() == "running_mean") {
      return input.at("arg").only_member().first != "as_none";
    }
  }
  return false;
}

/// Returns the line of Python that calls the node, as the file quotes it.
std::string line_of(const JsonValue& node) {
  // File "net.py", line 12, in forward
  //   x = F.dropout(x)
  const auto trace = metadata_of(node, "stack_trace");
  const auto file = trace.rfind("File \"");
  const auto begin = file == trace.npos ? file : trace.find('\n', file);
  const auto first = trace.find_first_not_of(" \n", begin);
  return first == trace.npos
             ? ""
             : trace.substr(first, trace.find('\n', first) - first);
}

/// Effect of the mode of the module on a call of an operator.
enum class ModeUse {
  ignores,  ///< the same in train() and in eval()
  follows,  ///< `value_in_eval` holds in eval()
  unknown   ///< the file does not say
};

/// A norm without running statistics ignores the mode. A call in a module of
/// torch.nn follows it, and so does the one call of its operator in a line of
/// Python that reads `self.training`.
ModeUse mode_use(const c10::FunctionSchema& schema, const JsonValue& node) {
  if (contains(schema.name(), "_norm") && !has_running_statistics(node)) {
    return ModeUse::ignores;
  }
  const auto modules = metadata_of(node, "nn_module_stack");
  if (modules.compare(modules.rfind(',') + 1, 9, "torch.nn.") == 0) {
    return ModeUse::follows;
  }
  const auto line = line_of(node);
  const auto call = schema.name().substr(schema.name().find("::") + 2) + "(";
  const bool is_single =
      contains(line, call) && line.find(call) == line.rfind(call);
  return is_single && contains(line, "self.training") ? ModeUse::follows
                                                      : ModeUse::unknown;
}

/// The value of an operator's argument in eval(), if eval() may change it.
std::optional<c10::IValue> value_in_eval(const c10::Argument& parameter) {
  static const std::set<std::string> flags{
      "train", "training", "is_training", "use_input_stats"};
  if (parameter.name() == "dropout_p") {
    return 0.0;
  }
  if (flags.count(parameter.name()) > 0 &&
      c10::BoolType::get()->isSubtypeOf(*parameter.type())) {
    return false;
  }
  return std::nullopt;
}

/// Reads a graph and the graphs inside of it.
class GraphReader {
 public:
  GraphReader(const std::optional<c10::Device>& device,
              std::set<std::string>& missing)
      : device_(device), missing_(missing) {}

  std::shared_ptr<ExportedGraph> read(const JsonValue& json) {
    auto graph = std::make_shared<ExportedGraph>();
    for (const auto& input : json.at("inputs").elements()) {
      const auto [kind, value] = input.only_member();
      graph->inputs.push_back(new_slot(*graph, read_value(kind, value).name));
    }
    for (const auto& node : json.at("nodes").elements()) {
      graph->nodes.push_back(read_node(node, *graph));
    }
    for (const auto& output : json.at("outputs").elements()) {
      graph->outputs.push_back(read_argument(output, *graph));
    }
    find_last_uses(*graph);
    return graph;
  }

 private:
  ExportedNode read_node(const JsonValue& json, ExportedGraph& graph) {
    ExportedNode node;
    node.target = json.at("target").text();
    if (starts_with(node.target, "torch.ops.higher_order.")) {
      read_control_flow(json, graph, node);
    } else if (starts_with(node.target, "torch.ops.")) {
      read_call(json, graph, node);
    } else {
      node.operation = number_operation(node.target);
      for (const auto& input : json.at("inputs").elements()) {
        node.arguments.push_back(read_argument(input.at("arg"), graph));
      }
    }
    if (!node.operation) {
      missing_.insert(node.target);
    }
    node.outputs = output_slots(json.at("outputs"), graph);
    return node;
  }

  void read_control_flow(const JsonValue& json,
                         ExportedGraph& graph,
                         ExportedNode& node) {
    using Run = void (*)(const Graphs&, Values&, const RunMode&);
    // The numbers of graphs and, at least, of other arguments.
    static const std::map<std::string, std::tuple<size_t, size_t, Run>> all{
        {"wrap_with_set_grad_enabled", {1, 1, run_with_grad_mode}},
        {"wrap_with_autocast", {1, 4, run_with_autocast}},
        {"cond", {2, 2, run_branch}}};
    const auto found = all.find(node.target.substr(node.target.rfind('.') + 1));
    if (found == all.end()) {
      return;
    }
    const auto [least_graphs, least_arguments, run] = found->second;
    Graphs graphs;
    for (const auto& input : json.at("inputs").elements()) {
      const auto [kind, value] = input.at("arg").only_member();
      if (kind == "as_graph") {
        graphs.push_back(read(value.at("graph")));
      } else {
        node.arguments.push_back(read_argument(kind, value, graph));
      }
    }
    if (graphs.size() != least_graphs ||
        node.arguments.size() < least_arguments) {
      json.at("inputs").refuse("the arguments of " + node.target);
    }
    node.operation = [run = run, graphs = std::move(graphs)](
                         Values& stack, const RunMode& mode) {
      run(graphs, stack, mode);
    };
  }

  /// LibTorch's operators look up these numbers without a check.
  static void check_enumeration(const c10::Argument& parameter,
                                const JsonValue& argument) {
    static const std::map<c10::TypeKind, std::string> kinds{
        {c10::TypeKind::ScalarTypeType, "as_scalar_type"},
        {c10::TypeKind::LayoutType, "as_layout"},
        {c10::TypeKind::MemoryFormatType, "as_memory_format"}};
    const auto type = parameter.real_type();
    const auto expected = kinds.find(is_kind(type, c10::TypeKind::OptionalType)
                                         ? type->containedType(0)->kind()
                                         : type->kind());
    const auto kind = argument.only_member().first;
    if (expected != kinds.end() && kind != expected->second &&
        kind != "as_none") {
      argument.refuse(expected->second);
    }
  }

  /// Orders the arguments as the operator's schema does: the file names them.
  void read_call(const JsonValue& json,
                 ExportedGraph& graph,
                 ExportedNode& node) {
    // torch.ops.NAMESPACE.NAME.OVERLOAD
    const auto name = node.target.substr(std::string("torch.ops.").size());
    const auto first = name.find('.');
    const auto last = name.rfind('.');
    const auto overload = name.substr(last + 1);
    const auto handle = c10::Dispatcher::singleton().findSchema(
        {name.substr(0, first) +
             "::" + name.substr(first + 1, last - first - 1),
         overload == "default" ? "" : overload});
    if (!handle) {
      return;
    }
    node.operation = [handle = *handle](Values& stack,
                                        const RunMode& /*mode*/) {
      handle.callBoxed(stack);
      // The file names the elements of a list.
      if (stack.size() == 1 && stack[0].isTensorList()) {
        const auto list = stack[0].toTensorVector();
        stack.assign(list.begin(), list.end());
      }
    };
    std::map<std::string, JsonValue> given;
    for (const auto& input : json.at("inputs").elements()) {
      given.emplace(input.at("name").text(), input.at("arg"));
    }
    const auto use = mode_use(handle->schema(), json);
    for (const auto& parameter : handle->schema().arguments()) {
      Argument argument;
      auto constant = parameter.default_value();
      const auto in_eval = value_in_eval(parameter);
      const auto found = given.find(parameter.name());
      if (found != given.end()) {
        check_enumeration(parameter, found->second);
        const auto [kind, value] = found->second.only_member();
        argument = read_argument(kind, value, graph, parameter.type());
        if (in_eval) {  // a number
          constant = read_value(kind, value, parameter.type()).constant;
        }
        given.erase(found);
      } else if (constant) {
        argument = constant_of(*constant);
      } else {
        json.refuse("a call of " + node.target + " with the argument \"" +
                    parameter.name() + "\"");
      }
      if (use == ModeUse::follows && in_eval) {
        argument = [=](const Values& slots, const RunMode& mode) {
          return mode.training ? argument(slots, mode) : *in_eval;
        };
      } else if (use == ModeUse::unknown && in_eval && constant != in_eval) {
        node.unknown_in_eval = line_of(json);
      }
      node.arguments.push_back(std::move(argument));
    }
    if (!given.empty()) {
      missing_.insert(node.target + " with the argument \"" +
                      given.begin()->first + "\"");
    }
  }

  Argument read_argument(const JsonValue& json, ExportedGraph& graph) {
    const auto [kind, value] = json.only_member();
    return read_argument(kind, value, graph);
  }

  Argument read_argument(const std::string& kind,
                         const JsonValue& value,
                         ExportedGraph& graph,
                         c10::TypePtr type = nullptr) {
    if (is_kind(type, c10::TypeKind::OptionalType)) {
      type = type->containedType(0);
    }
    if (!kind.empty() && kind.back() == 's') {  // as_ints: a list of as_int
      const auto element = is_kind(type, c10::TypeKind::ListType)
                               ? type->containedType(0)
                               : nullptr;
      std::vector<Argument> parts;
      for (const auto& part : value.elements()) {
        parts.push_back(read_argument(
            kind.substr(0, kind.size() - 1), part, graph, element));
      }
      return [=](const Values& slots, const RunMode& mode) {
        c10::impl::GenericList list(element ? element : c10::AnyType::get());
        for (auto& one : evaluate(parts, slots, mode)) {
          list.push_back(std::move(one));
        }
        return list;
      };
    }
    const auto [name, constant] = read_value(kind, value, type);
    if (name) {
      const auto at = slot_of(graph, *name);
      if (type && starts_with(kind, "as_sym_")) {
        return [=](const Values& slots, const RunMode& /*mode*/) {
          return number_for(type, slots[at].toScalar());
        };
      }
      return [=](const Values& slots, const RunMode& /*mode*/) {
        return slots[at];
      };
    }
    if (!constant) {
      missing_.insert("an argument of kind " + kind);
      return nullptr;
    }
    if (device_ && *constant == c10::IValue(*device_)) {
      return [](const Values& /*slots*/, const RunMode& mode) {
        return mode.device;
      };
    }
    return constant_of(*constant);
  }

  const std::optional<c10::Device> device_;
  std::set<std::string>& missing_;
};

}  // namespace

std::shared_ptr<ExportedGraph> read_graph(
    const JsonValue& json,
    const std::optional<c10::Device>& device,
    std::set<std::string>& missing) {
  return GraphReader(device, missing).read(json);
}

}  // namespace ddp::detail
