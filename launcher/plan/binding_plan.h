#pragma once

#include <optional>
#include <vector>

#include "launcher/machine/topology.h"
#include "launcher/options/binding.h"

namespace launcher {

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
