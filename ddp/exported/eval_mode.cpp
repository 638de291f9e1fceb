#include "ddp/exported/eval_mode.h"

#include <set>

#include <ATen/core/jit_type.h>

namespace ddp::detail {
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

}  // namespace

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

}  // namespace ddp::detail
