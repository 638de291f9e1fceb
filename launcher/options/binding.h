#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace launcher {

/// --numa-binding: the CPUs that a worker may run on.
enum class Binding {
  node,          ///< all of the worker's NUMA node
  socket,        ///< all of that node's socket
  exclusive,     ///< whole cores of that node that no other worker gets
  core_complex,  ///< one set of that node's CPUs that share the last cache
};

/// The names that parse_binding() takes.
const std::vector<std::string>& binding_names();

/// "node", "socket", "exclusive" or "core-complex".
///
/// @throws std::invalid_argument "expected ..., but got ..."
Binding parse_binding(std::string_view text);

}  // namespace launcher
