#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/binding/topology.h"

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

/// The CPUs of each worker, by local rank. Pure.
///
/// A worker's NUMA node is that of its GPU. Without GPUs the workers spread
/// over the nodes in order and evenly: four on two nodes are two on each.
///
/// @param topology with one CPU at least
/// @param gpu_nodes a node for each worker, or nothing where none is known
/// @throws LaunchError when a node has fewer cores than workers that each want
///   some for themselves
std::vector<std::vector<int>> plan_binding(
    Binding binding,
    const Topology& topology,
    const std::vector<std::optional<int>>& gpu_nodes);

}  // namespace launcher
