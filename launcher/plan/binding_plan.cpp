#include "launcher/plan/binding_plan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>

#include "launcher/base/error.h"

namespace launcher {
namespace {

using Cpus = std::vector<int>;

/// Groups CPU ids by one of the shared resources.
std::map<int, Cpus> grouped(const std::vector<Cpu>& cpus, int Cpu::*key) {
  std::map<int, Cpus> groups;
  for (const Cpu& cpu : cpus) {
    groups[cpu.*key].push_back(cpu.id);
  }
  return groups;
}

std::vector<Cpu> those_of(const std::vector<Cpu>& cpus,
                          int Cpu::*key,
                          int value) {
  std::vector<Cpu> result;
  std::copy_if(cpus.begin(),
               cpus.end(),
               std::back_inserter(result),
               [&](const Cpu& cpu) { return cpu.*key == value; });
  return result;
}

Cpus ids_of(const std::vector<Cpu>& cpus) {
  Cpus ids;
  for (const Cpu& cpu : cpus) {
    ids.push_back(cpu.id);
  }
  return ids;
}

/// Returns a NUMA node with usable CPUs for each worker.
std::vector<int> nodes_of_workers(
    const Topology& topology,
    const std::vector<std::optional<int>>& gpu_nodes) {
  std::vector<int> all;
  for (const auto& [node, cpus] : grouped(topology.cpus, &Cpu::node)) {
    all.push_back(node);
  }
  std::vector<int> nodes;
  for (size_t worker = 0; worker < gpu_nodes.size(); ++worker) {
    const auto of_gpu = gpu_nodes[worker];
    const bool is_usable =
        of_gpu && std::find(all.begin(), all.end(), *of_gpu) != all.end();
    nodes.push_back(is_usable ? *of_gpu
                              : all[worker * all.size() / gpu_nodes.size()]);
  }
  return nodes;
}

/// Divides the cores of a node evenly; the first workers get the remaining
/// cores.
Cpus share_of_cores(const std::vector<Cpu>& cpus,
                    size_t place,
                    size_t workers) {
  const auto cores = grouped(cpus, &Cpu::core);
  if (cores.size() < workers) {
    throw UsageError("--numa-binding: exclusive asks for a core for each of " +
                     std::to_string(workers) + " workers on NUMA node " +
                     std::to_string(cpus.front().node) + ", but it has " +
                     std::to_string(cores.size()) +
                     "; start fewer workers, or bind them to the node");
  }
  const size_t each = cores.size() / workers;
  const size_t more = cores.size() % workers;
  const size_t begin = place * each + std::min(place, more);
  const size_t end = begin + each + (place < more ? 1 : 0);
  Cpus result;
  for (size_t core = begin; core < end; ++core) {
    const Cpus& threads =
        std::next(cores.begin(), static_cast<std::ptrdiff_t>(core))->second;
    result.insert(result.end(), threads.begin(), threads.end());
  }
  std::sort(result.begin(), result.end());
  return result;
}

/// Assigns the core complexes in turn, starting with the complexes that have
/// most CPUs.
Cpus complex_of(const std::vector<Cpu>& cpus, size_t place) {
  std::vector<Cpus> complexes;
  for (const auto& [cache, members] : grouped(cpus, &Cpu::cache)) {
    complexes.push_back(members);
  }
  std::stable_sort(
      complexes.begin(), complexes.end(), [](const Cpus& a, const Cpus& b) {
        return a.size() > b.size();
      });
  return complexes[place % complexes.size()];
}

}  // namespace

std::vector<std::vector<int>> plan_binding(
    Binding binding,
    const Topology& topology,
    const std::vector<std::optional<int>>& gpu_nodes) {
  const auto nodes = nodes_of_workers(topology, gpu_nodes);
  std::map<int, size_t> placed;  // number of workers so far, by node
  std::vector<Cpus> result;
  for (const int node : nodes) {
    const auto cpus = those_of(topology.cpus, &Cpu::node, node);
    const size_t place = placed[node]++;
    const auto workers =
        static_cast<size_t>(std::count(nodes.begin(), nodes.end(), node));
    switch (binding) {
      case Binding::node:
        result.push_back(ids_of(cpus));
        break;
      case Binding::socket:
        result.push_back(
            ids_of(those_of(topology.cpus, &Cpu::socket, cpus.front().socket)));
        break;
      case Binding::exclusive:
        result.push_back(share_of_cores(cpus, place, workers));
        break;
      case Binding::core_complex:
        result.push_back(complex_of(cpus, place));
        break;
    }
  }
  return result;
}

}  // namespace launcher
