#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include "ddp/exported/json_value.h"

namespace ddp::detail {

using Values = std::vector<c10::IValue>;

/// The mode and the device of a run.
struct RunMode {
  /// Whether dropout and batch normalisation run as they were exported.
  bool training = true;
  c10::Device device = c10::Device(c10::kCPU);
};

/// Computes a node: replaces its arguments on the stack by its results.
using Operation = std::function<void(Values& stack, const RunMode& mode)>;

/// Returns the operation on numbers of this name ("_operator.add"), or null.
Operation number_operation(const std::string& name);

/// Computes an argument of a node from the values of a run, which lie in slots.
using Argument =
    std::function<c10::IValue(const Values& slots, const RunMode& mode)>;

/// One call in a graph.
struct ExportedNode {
  std::string target;  ///< "torch.ops.aten.add.Tensor"
  Operation operation;
  std::vector<Argument> arguments;
  std::vector<size_t> outputs;    ///< slots
  std::vector<size_t> last_uses;  ///< slots that no later node reads
  /// The line of Python, if the file does not state the effect of eval().
  std::optional<std::string> unknown_in_eval;
};

/// A program without its parameters.
struct ExportedGraph {
  std::vector<size_t> inputs;  ///< slots
  std::vector<ExportedNode> nodes;
  std::vector<Argument> outputs;
  std::map<std::string, size_t> slots;  ///< by the names of values
  /// The number of the last node that reads a slot, of `nodes.size()` for a
  /// result. Unread slots are missing.
  std::map<size_t, size_t> last_uses;

  Values run(Values given, const RunMode& mode) const;
};

/// Meaning of an argument, an input or a result: the name of a value or a
/// constant. Neither is set for an unsupported kind.
struct ExportedValue {
  std::optional<JsonValue> name;        ///< of a value of the graph
  std::optional<c10::IValue> constant;  ///< of the type of its parameter
};

ExportedValue read_value(const std::string& kind,
                         const JsonValue& value,
                         const c10::TypePtr& type = nullptr);

/// Reads a graph.
/// @param device  of the parameters when the program was exported, if it has
///   parameters.
/// @param missing  gets the operators and the kinds of arguments that this
///   LibTorch and this library lack.
std::shared_ptr<ExportedGraph> read_graph(
    const JsonValue& json,
    const std::optional<c10::Device>& device,
    std::set<std::string>& missing);

}  // namespace ddp::detail
