#pragma once

#include <optional>
#include <vector>

#include "launcher/machine/topology.h"
#include "launcher/options/values.h"

namespace launcher {

/// Chooses the CPUs of each worker, by local rank. Pure function.
///
/// A worker's NUMA node is the node of its GPU. Without GPUs, the workers are
/// distributed over the nodes in order and evenly: four workers on two nodes
/// are two per node.
///
/// @param topology with at least one CPU
/// @param gpu_nodes node of each worker's GPU; std::nullopt if unknown
/// @throws LaunchError if a node has fewer cores than workers that need
///   exclusive cores
std::vector<std::vector<int>> plan_binding(
    Binding binding,
    const Topology& topology,
    const std::vector<std::optional<int>>& gpu_nodes);

}  // namespace launcher
