#pragma once

#include <string>
#include <vector>

#include "ddp/exported/graph.h"

namespace ddp::detail {

/// How nested containers of Python hold values: torch.utils._pytree.TreeSpec.
struct TreeSpec {
  enum class Kind { leaf, tuple, list, dict };
  Kind kind = Kind::leaf;
  std::vector<std::string> keys;  ///< of a dict
  std::vector<TreeSpec> children;
  size_t size = 1;  ///< number of leaves
};

/// Parses the text of torch.utils._pytree.treespec_dumps. A named tuple is a
/// tuple.
/// @throws c10::Error for containers of other classes, and keys that are no
///   strings.
TreeSpec parse_tree_spec(const JsonValue& text);

/// Appends the leaves of `value` to `leaves`.
/// @param place  names the value in errors: "argument 0".
/// @throws c10::Error if a container of `value` differs from `spec`.
void flatten_tree(const TreeSpec& spec,
                  const c10::IValue& value,
                  const std::string& place,
                  Values& leaves);

/// Builds the containers. Takes the leaves from `next` on.
c10::IValue unflatten_tree(const TreeSpec& spec,
                           const Values& leaves,
                           size_t& next);

}  // namespace ddp::detail
