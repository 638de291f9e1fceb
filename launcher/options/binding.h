#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace launcher {

/// --numa-binding: the CPUs that a worker may run on.
enum class Binding {
  node,          ///< all CPUs of the worker's NUMA node
  socket,        ///< all CPUs of that node's socket
  exclusive,     ///< whole cores of that node, not shared
  core_complex,  ///< CPUs of that node with a common last cache
};

/// Returns the names that parse_binding() accepts.
const std::vector<std::string>& binding_names();

/// Parses "node", "socket", "exclusive" or "core-complex".
///
/// @throws std::invalid_argument "expected ..., but got ..."
Binding parse_binding(std::string_view text);

}  // namespace launcher
