#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "ddp/exported/json_value.h"

namespace ddp::detail {

struct ExportedGraph;

/// An argument of a node. A slot holds a value while a graph runs.
struct ExportedArgument {
  enum class Kind {
    constant,          ///< `value`
    slot,              ///< the value of slot `at`
    tensors,           ///< a list of the slots of `parts`
    optional_tensors,  ///< the same; slot -1: no tensor
    integers,          ///< a list of slots and numbers
    module_device,     ///< the device of the module's parameters
    graph              ///< `graph`, for a control-flow node
  };
  Kind kind = Kind::constant;
  c10::IValue value;
  int at = -1;
  std::vector<std::pair<int, int64_t>> parts;  ///< slot, or -1 and a number
  std::shared_ptr<const ExportedGraph> graph;
};

/// An operation on numbers.
struct SymbolicOperation {
  size_t arguments = 0;
  std::function<c10::IValue(const std::vector<c10::IValue>&)> compute;
};

/// Returns the operation of this name ("_operator.add"), or null.
const SymbolicOperation* symbolic_operation(const std::string& target);

/// One call in a graph.
struct ExportedNode {
  enum class Kind { call, symbolic, set_grad_enabled, autocast, cond };
  /// The effect of train() and eval() on a node.
  enum class Mode {
    none,
    training,  ///< argument `mode_at` is true in training
    dropout,   ///< argument `mode_at` is 0 in evaluation
    counter    ///< runs in training only
  };
  std::string target;  ///< "torch.ops.aten.add.Tensor"
  Kind kind = Kind::call;
  std::optional<c10::OperatorHandle> operation;
  const SymbolicOperation* symbolic = nullptr;
  Mode mode = Mode::none;
  size_t mode_at = 0;
  std::vector<ExportedArgument> arguments;
  std::vector<int> outputs;  ///< slots; -1: no value
  std::vector<int> dead;     ///< slots that no later node reads
};

/// A program without its parameters.
struct ExportedGraph {
  std::vector<int> inputs;  ///< slots; -1: a constant
  std::vector<ExportedNode> nodes;
  std::vector<ExportedArgument> outputs;
  size_t slots = 0;
  std::map<std::string, int> names;  ///< slot of each value
};

/// Makes graphs from JSON, and lists the operators that this LibTorch lacks.
class GraphReader {
 public:
  /// @param device  of the parameters when the program was exported, if it has
  ///   parameters.
  explicit GraphReader(std::optional<c10::Device> device) : device_(device) {}

  std::shared_ptr<ExportedGraph> read(const JsonValue& graph);

  /// Names of operators and kinds of arguments that are not supported.
  const std::vector<std::string>& missing() const { return missing_; }

 private:
  ExportedNode read_node(const JsonValue& node, ExportedGraph& graph);
  void read_call(const JsonValue& node,
                 ExportedGraph& graph,
                 ExportedNode& result);
  void read_arguments(const JsonValue& node,
                      ExportedGraph& graph,
                      ExportedNode& result);
  ExportedArgument read_argument(const JsonValue& argument,
                                 const ExportedGraph& graph,
                                 c10::TypePtr type);

  std::optional<c10::Device> device_;
  std::vector<std::string> missing_;
};

/// The mode and the device of a run.
struct RunMode {
  bool training = true;
  c10::Device device = c10::Device(c10::kCPU);
};

/// Runs a graph. Returns its outputs.
std::vector<c10::IValue> run_graph(const ExportedGraph& graph,
                                   std::vector<c10::IValue> inputs,
                                   const RunMode& mode);

}  // namespace ddp::detail
