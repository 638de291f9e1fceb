#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "ddp/exported/archive.h"
#include "ddp/exported/graph.h"
#include "ddp/exported/guard.h"
#include "ddp/exported/tree_spec.h"

namespace ddp::detail {

/// A parameter, a buffer or a constant of a program.
struct StateInput {
  enum class Kind { parameter, buffer, constant };
  Kind kind = Kind::parameter;
  std::string name;
  /// Whether this is a counter of batch normalisation, which rests in eval().
  bool is_counter = false;
};

/// A leaf of the arguments of forward.
struct UserInput {
  std::string name;
  std::optional<std::vector<int64_t>> sizes;  ///< of a tensor; -1: any size
  std::optional<c10::IValue> fixed;           ///< the only value of a number
};

/// A condition on the inputs, which the code of forward has asked for.
struct Guard {
  std::string text;
  Expression holds;
  std::set<size_t> users;  ///< the inputs that it reads
};

/// A graph, with the structure of the arguments and results of forward.
struct ExportedProgram {
  std::shared_ptr<const ExportedGraph> graph;
  std::vector<StateInput> state;  ///< the first inputs of the graph
  std::vector<UserInput> users;   ///< the inputs of the graph after the state
  TreeSpec arguments;             ///< a tuple
  TreeSpec kwargs;                ///< a dict
  TreeSpec results;
  std::vector<Guard> guards;

  /// @param tensors  the tensors of the file.
  /// @param check_guards  whether to read the guards.
  ExportedProgram(const JsonValue& file,
                  const std::map<std::string, ExportedTensor>& tensors,
                  bool check_guards);

  /// Returns the leaves of arguments, one for each of `users`, and checks them.
  Values leaves_of(
      Values inputs,
      const std::unordered_map<std::string, c10::IValue>& given) const;
};

}  // namespace ddp::detail
