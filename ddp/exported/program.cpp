#include "ddp/exported/program.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/ops/scalar_tensor.h>

#include "ddp/exported/archive.h"

namespace ddp::detail {
namespace {

using Kind = ExportedArgument::Kind;

constexpr const char* kOperators = "torch.ops.";
constexpr const char* kHigherOrder = "torch.ops.higher_order.";

bool starts_with(const std::string& text, const std::string& start) {
  return text.compare(0, start.size(), start) == 0;
}

int slot_of(const ExportedGraph& graph, const JsonValue& name) {
  const auto found = graph.names.find(name.text());
  if (found == graph.names.end()) {
    name.refuse("the name of an earlier value");
  }
  return found->second;
}

int new_slot(ExportedGraph& graph, const JsonValue& name) {
  const auto [at, is_new] =
      graph.names.emplace(name.text(), static_cast<int>(graph.slots));
  if (is_new) {
    ++graph.slots;
  }
  return at->second;
}

double number_of(const JsonValue& value) {
  if (!value.is_text()) {
    return value.number();
  }
  const std::string& text = value.text();
  return text == "Infinity"    ? std::numeric_limits<double>::infinity()
         : text == "-Infinity" ? -std::numeric_limits<double>::infinity()
                               : std::numeric_limits<double>::quiet_NaN();
}

bool is_kind(const c10::TypePtr& type, c10::TypeKind kind) {
  return type && type->kind() == kind;
}

bool is_list_of(const c10::TypePtr& type, c10::TypeKind kind) {
  return is_kind(type, c10::TypeKind::ListType) &&
         type->containedType(0)->kind() == kind;
}

/// A number for a parameter of this type. Python gives a tensor parameter a
/// wrapped number, which takes no part in type promotion.
c10::IValue number_for(const c10::TypePtr& type, const at::Scalar& number) {
  if (is_kind(type, c10::TypeKind::TensorType)) {
    auto tensor = at::scalar_tensor(
        number, number.isFloatingPoint() ? at::kDouble : at::kLong);
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    return tensor;
  }
  if (number.isFloatingPoint() || is_kind(type, c10::TypeKind::FloatType)) {
    return number.toDouble();
  }
  return number.toLong();
}

template <typename T, typename Get>
c10::IValue list_of(const JsonValue& elements, const Get& get) {
  c10::List<T> list;
  for (const auto& element : elements.elements()) {
    list.push_back(get(element));
  }
  return list;
}

int64_t memory_format_of(const JsonValue& number) {
  switch (number.integer()) {
    case 1:
      return static_cast<int64_t>(c10::MemoryFormat::Contiguous);
    case 2:
      return static_cast<int64_t>(c10::MemoryFormat::ChannelsLast);
    case 3:
      return static_cast<int64_t>(c10::MemoryFormat::ChannelsLast3d);
    case 4:
      return static_cast<int64_t>(c10::MemoryFormat::Preserve);
    default:
      number.refuse("a memory format (1 to 4)");
  }
}

/// Returns the slots of a node's results.
std::vector<int> output_slots(const JsonValue& outputs, ExportedGraph& graph) {
  std::vector<int> slots;
  for (const auto& output : outputs.elements()) {
    const auto [kind, value] = output.only_member();
    if (kind == "as_tensor") {
      slots.push_back(new_slot(graph, value.at("name")));
    } else if (kind == "as_tensors") {
      for (const auto& tensor : value.elements()) {
        slots.push_back(new_slot(graph, tensor.at("name")));
      }
    } else if (kind == "as_none") {
      slots.push_back(-1);
    } else if (kind == "as_optional_tensor") {
      const auto tensor = value.find("as_tensor");
      slots.push_back(tensor ? new_slot(graph, tensor->at("name")) : -1);
    } else if (value.is_object() && value.find("as_name")) {
      slots.push_back(new_slot(graph, value.at("as_name")));
    } else {
      output.refuse("an output that is a tensor or a number");
    }
  }
  return slots;
}

template <typename Visit>
void visit_slots(const ExportedArgument& argument, const Visit& visit) {
  if (argument.kind == Kind::slot) {
    visit(argument.at);
  }
  for (const auto& [slot, number] : argument.parts) {
    if (slot >= 0) {
      visit(slot);
    }
  }
}

/// Finds the last node that reads each slot.
void find_last_uses(ExportedGraph& graph) {
  std::vector<char> is_used(graph.slots);
  for (const auto& output : graph.outputs) {
    visit_slots(output, [&](int slot) { is_used[slot] = 1; });
  }
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    const auto use = [&](int slot) {
      if (!is_used[slot]) {
        is_used[slot] = 1;
        node->dead.push_back(slot);
      }
    };
    for (const auto& argument : node->arguments) {
      visit_slots(argument, use);
    }
    for (const int slot : node->outputs) {
      if (slot >= 0) {
        use(slot);
      }
    }
  }
}

}  // namespace

std::shared_ptr<ExportedGraph> GraphReader::read(const JsonValue& graph) {
  auto result = std::make_shared<ExportedGraph>();
  for (const auto& input : graph.at("inputs").elements()) {
    const auto [kind, value] = input.only_member();
    if (kind == "as_tensor") {
      result->inputs.push_back(new_slot(*result, value.at("name")));
    } else if (value.is_object() && value.find("as_name")) {
      result->inputs.push_back(new_slot(*result, value.at("as_name")));
    } else {
      result->inputs.push_back(-1);
    }
  }
  for (const auto& node : graph.at("nodes").elements()) {
    result->nodes.push_back(read_node(node, *result));
  }
  for (const auto& output : graph.at("outputs").elements()) {
    result->outputs.push_back(read_argument(output, *result, nullptr));
  }
  find_last_uses(*result);
  return result;
}

ExportedNode GraphReader::read_node(const JsonValue& node,
                                    ExportedGraph& graph) {
  static const std::map<std::string, ExportedNode::Kind> control_flow{
      {"wrap_with_set_grad_enabled", ExportedNode::Kind::set_grad_enabled},
      {"wrap_with_autocast", ExportedNode::Kind::autocast},
      {"cond", ExportedNode::Kind::cond}};
  ExportedNode result;
  result.target = node.at("target").text();
  if (starts_with(result.target, kHigherOrder)) {
    const auto found = control_flow.find(
        result.target.substr(std::string(kHigherOrder).size()));
    if (found == control_flow.end()) {
      missing_.push_back(result.target);
    } else {
      result.kind = found->second;
      read_arguments(node, graph, result);
    }
  } else if (starts_with(result.target, kOperators)) {
    read_call(node, graph, result);
  } else {
    result.kind = ExportedNode::Kind::symbolic;
    result.symbolic = symbolic_operation(result.target);
    if (result.symbolic == nullptr) {
      missing_.push_back(result.target);
    }
    read_arguments(node, graph, result);
  }
  result.outputs = output_slots(node.at("outputs"), graph);
  return result;
}

void GraphReader::read_arguments(const JsonValue& node,
                                 ExportedGraph& graph,
                                 ExportedNode& result) {
  for (const auto& input : node.at("inputs").elements()) {
    result.arguments.push_back(read_argument(input.at("arg"), graph, nullptr));
  }
}

/// Orders the arguments as the operator's schema does: the file names them.
void GraphReader::read_call(const JsonValue& node,
                            ExportedGraph& graph,
                            ExportedNode& result) {
  // torch.ops.NAMESPACE.NAME.OVERLOAD
  const auto name = result.target.substr(std::string(kOperators).size());
  const auto first = name.find('.');
  const auto last = name.rfind('.');
  if (first == last) {
    node.at("target").refuse("torch.ops.NAMESPACE.NAME.OVERLOAD");
  }
  const auto overload = name.substr(last + 1);
  result.operation = c10::Dispatcher::singleton().findSchema(
      {name.substr(0, first) + "::" + name.substr(first + 1, last - first - 1),
       overload == "default" ? "" : overload});
  if (!result.operation) {
    missing_.push_back(result.target);
    return;
  }
  std::map<std::string, JsonValue> given;
  for (const auto& input : node.at("inputs").elements()) {
    given.emplace(input.at("name").text(), input.at("arg"));
  }
  for (const auto& parameter : result.operation->schema().arguments()) {
    const bool is_bool = parameter.type()->kind() == c10::TypeKind::BoolType;
    if (parameter.name() == "dropout_p") {
      result.mode = ExportedNode::Mode::dropout;
      result.mode_at = result.arguments.size();
    } else if (is_bool &&
               (parameter.name() == "training" || parameter.name() == "train" ||
                parameter.name() == "is_training")) {
      result.mode = ExportedNode::Mode::training;
      result.mode_at = result.arguments.size();
    }
    const auto argument = given.find(parameter.name());
    if (argument != given.end()) {
      result.arguments.push_back(
          read_argument(argument->second, graph, parameter.type()));
      given.erase(argument);
      continue;
    }
    if (!parameter.default_value()) {
      node.refuse("a call of " + result.target + " with the argument \"" +
                  parameter.name() + "\"");
    }
    ExportedArgument otherwise;
    otherwise.value = *parameter.default_value();
    result.arguments.push_back(std::move(otherwise));
  }
  if (!given.empty()) {
    missing_.push_back(result.target + " with the argument \"" +
                       given.begin()->first + "\"");
  }
}

ExportedArgument GraphReader::read_argument(const JsonValue& argument,
                                            const ExportedGraph& graph,
                                            c10::TypePtr type) {
  const auto [kind, value] = argument.only_member();
  ExportedArgument result;
  if (is_kind(type, c10::TypeKind::OptionalType)) {
    type = type->castRaw<c10::OptionalType>()->getElementType();
  }
  const auto set_slot = [&](const JsonValue& name) {
    result.kind = Kind::slot;
    result.at = slot_of(graph, name);
  };
  if (kind == "as_none") {
    return result;
  }
  if (kind == "as_tensor") {
    set_slot(value.at("name"));
  } else if (kind == "as_optional_tensor") {
    if (const auto tensor = value.find("as_tensor")) {
      set_slot(tensor->at("name"));
    }
  } else if (kind == "as_int") {
    result.value = number_for(type, value.integer());
  } else if (kind == "as_float") {
    result.value = number_for(type, number_of(value));
  } else if (kind == "as_bool") {
    result.value = value.boolean();
  } else if (kind == "as_string") {
    result.value = value.text();
  } else if (kind == "as_ints" && !is_list_of(type, c10::TypeKind::FloatType)) {
    result.value = list_of<int64_t>(
        value, [](const JsonValue& one) { return one.integer(); });
  } else if (kind == "as_ints" || kind == "as_floats") {
    result.value = list_of<double>(value, number_of);
  } else if (kind == "as_bools") {
    result.value = list_of<bool>(
        value, [](const JsonValue& one) { return one.boolean(); });
  } else if (kind == "as_scalar_type") {
    result.value = static_cast<int64_t>(exported_dtype(value));
  } else if (kind == "as_memory_format") {
    result.value = memory_format_of(value);
  } else if (kind == "as_layout") {
    check_strided(value);
    result.value = static_cast<int64_t>(c10::kStrided);
  } else if (kind == "as_device") {
    const auto device = exported_device(value);
    if (device_ && device == *device_) {
      result.kind = Kind::module_device;
    } else {
      result.value = device;
    }
  } else if (kind == "as_sym_int" || kind == "as_sym_float" ||
             kind == "as_sym_bool") {
    if (const auto name = value.find("as_name")) {
      set_slot(*name);
    } else if (kind == "as_sym_int") {
      result.value = value.at("as_int").integer();
    } else if (kind == "as_sym_float") {
      result.value = number_of(value.at("as_float"));
    } else {
      result.value = value.at("as_bool").boolean();
    }
  } else if (kind == "as_sym_ints") {
    result.kind = Kind::integers;
    for (const auto& one : value.elements()) {
      const auto name = one.find("as_name");
      result.parts.emplace_back(name ? slot_of(graph, *name) : -1,
                                name ? 0 : one.at("as_int").integer());
    }
  } else if (kind == "as_tensors") {
    result.kind = is_list_of(type, c10::TypeKind::OptionalType)
                      ? Kind::optional_tensors
                      : Kind::tensors;
    for (const auto& one : value.elements()) {
      result.parts.emplace_back(slot_of(graph, one.at("name")), 0);
    }
  } else if (kind == "as_optional_tensors") {
    result.kind = Kind::optional_tensors;
    for (const auto& one : value.elements()) {
      const auto tensor = one.find("as_tensor");
      result.parts.emplace_back(
          tensor ? slot_of(graph, tensor->at("name")) : -1, 0);
    }
  } else if (kind == "as_graph") {
    result.kind = Kind::graph;
    result.graph = read(value.at("graph"));
  } else {
    missing_.push_back("an argument of kind " + kind);
  }
  return result;
}

}  // namespace ddp::detail
