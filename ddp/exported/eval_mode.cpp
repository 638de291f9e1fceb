#include "ddp/exported/eval_mode.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

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

/// Returns the line of Python that calls the node, without spaces.
std::string line_of(const JsonValue& node) {
  const auto trace = metadata_of(node, "stack_trace");
  // File "net.py", line 12, in forward
  //   x = F.dropout(x)
  const auto begin = trace.find('\n', trace.rfind("File \""));
  if (begin == std::string::npos) {
    return "";
  }
  auto line = trace.substr(begin + 1, trace.find('\n', begin + 1) - begin - 1);
  line.erase(std::remove(line.begin(), line.end(), ' '), line.end());
  return line;
}

/// Returns the arguments of the one call of dropout in a line; none if there
/// are several calls, or if the call goes on in the next line. The line may be
/// that of a function around the call, such as with_dropout(x).
std::vector<std::string> dropout_arguments(const std::string& line) {
  size_t begin = 0;
  for (const std::string function : {"F.", "functional.", "torch."}) {
    for (const std::string call :
         {"dropout(", "dropout1d(", "dropout2d(", "dropout3d("}) {
      const auto at = line.find(function + call);
      if (at != std::string::npos) {
        if (begin > 0 || line.rfind(function + call) != at) {
          return {};
        }
        begin = at + function.size() + call.size();
      }
    }
  }
  std::vector<std::string> arguments(1);
  int depth = begin > 0 ? 1 : 0;
  for (auto at = begin; depth > 0 && at < line.size(); ++at) {
    const char one = line[at];
    depth += contains("([{", {one}) ? 1 : contains(")]}", {one}) ? -1 : 0;
    if (depth == 1 && one == ',') {
      arguments.emplace_back();
    } else if (depth > 0) {
      arguments.back() += one;
    }
  }
  return depth > 0 || begin == 0 ? std::vector<std::string>() : arguments;
}

/// Whether dropout stays on in eval(), as far as the line of its call tells.
/// Lines of torch.nn's modules ask for the mode.
bool is_always_on(const JsonValue& node) {
  auto line = line_of(node);
  for (const std::string literal : {"training=True", "train=True"}) {
    const auto at = line.find(literal);
    line.erase(std::min(at, line.size()), literal.size());
  }
  const auto arguments = dropout_arguments(line);
  const auto third = arguments.size() > 2 ? arguments[2] : "";
  const auto stack = metadata_of(node, "nn_module_stack");
  return !arguments.empty() && !contains(line, "train") &&
         (third.empty() || third == "True" || contains(third, "=")) &&
         stack.compare(stack.rfind(',') + 1, 9, "torch.nn.") != 0;
}

}  // namespace

bool ignores_mode(const c10::FunctionSchema& schema, const JsonValue& node) {
  if (contains(schema.name(), "_norm")) {
    for (const auto& input : node.at("inputs").elements()) {
      if (input.at("name").text() == "running_mean") {
        return input.at("arg").only_member().first == "as_none";
      }
    }
    return true;
  }
  return contains(schema.name(), "dropout") && is_always_on(node);
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

}  // namespace ddp::detail
