#include <algorithm>
#include <map>
#include <set>

#include "ddp/base/text/number.h"
#include "launcher/base/text.h"
#include "launcher/doctor/diagnose.h"
#include "launcher/doctor/finding.h"
#include "launcher/plan/devices.h"

namespace launcher {
namespace {

constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
constexpr const char* kOrder = "CUDA_DEVICE_ORDER";

int gpu_count_of(const GpuFacts& facts) {
  return facts.gpus.empty() ? facts.device_files
                            : static_cast<int>(facts.gpus.size());
}

/// @throws LaunchError like visible_gpus() of devices.h
std::vector<std::string> gpus_seen(const MachineFacts& machine) {
  HostInfo host;
  host.gpu_count = gpu_count_of(machine.gpu);
  return visible_gpus(host, machine.environment);
}

/// Describes GPUs as "4 NVIDIA H200 of 141 GiB and 1 NVIDIA T4 of 15 GiB".
std::string kinds_text(const std::vector<Gpu>& gpus) {
  std::vector<std::pair<std::string, int>> kinds;
  for (const Gpu& gpu : gpus) {
    const std::string kind = gpu.name + " of " + bytes_text(gpu.memory_bytes);
    const auto known =
        std::find_if(kinds.begin(), kinds.end(), [&](const auto& entry) {
          return entry.first == kind;
        });
    if (known == kinds.end()) {
      kinds.emplace_back(kind, 1);
    } else {
      ++known->second;
    }
  }
  std::vector<std::string> items;
  for (const auto& [kind, count] : kinds) {
    items.push_back(std::to_string(count) + " " + kind);
  }
  return list_text(items);
}

Finding diagnose_devices(const GpuFacts& facts) {
  const std::string subject = "GPUs";
  if (!facts.driver_error.empty()) {
    return failing(
        subject,
        "the NVIDIA driver does not answer (" + facts.driver_error + ")",
        "run nvidia-smi; after an update of the driver, restart the "
        "machine or load its module again");
  }
  if (!facts.gpus.empty()) {
    return all_well(subject,
                    kinds_text(facts.gpus) + ", driver " + facts.driver +
                        " for CUDA up to " + cuda_text(facts.cuda));
  }
  if (facts.device_files > 0) {
    return warning(subject,
                   count_text(facts.device_files, "GPU") + " in /dev, but " +
                       (facts.has_nvidia_smi ? "the driver shows none"
                                             : "no nvidia-smi to ask"),
                   "in a container, start it with --gpus all and "
                   "NVIDIA_DRIVER_CAPABILITIES=compute,utility; else install "
                   "the driver again");
  }
  return all_well(subject, "none: ranks run on CPUs, over Gloo");
}

/// Returns false if an entry such as GPU-5e3, the beginning of a UUID, matches
/// no GPU.
bool matches_gpu(const std::string& id, const std::vector<Gpu>& gpus) {
  return id.rfind("GPU-", 0) != 0 ||
         std::any_of(gpus.begin(), gpus.end(), [&](const Gpu& gpu) {
           return gpu.uuid.rfind(id, 0) == 0;
         });
}

Finding diagnose_visible(const MachineFacts& machine,
                         const std::string& value) {
  const GpuFacts& facts = machine.gpu;
  const std::string setting = kVisible + ("=" + value);
  if (gpu_count_of(facts) == 0) {
    return value.empty() || value[0] == '-'
               ? all_well(kVisible, setting + ", and there are no GPUs")
               : warning(kVisible,
                         setting + " names GPUs, but this host has none",
                         "unset it");
  }
  try {
    const auto ids = gpus_seen(machine);
    for (const std::string& id : ids) {
      if (!facts.gpus.empty() && !matches_gpu(id, facts.gpus)) {
        return failing(
            kVisible,
            setting + " names " + id + ", which no GPU of this host is",
            "take one that nvidia-smi -L lists, or unset it");
      }
    }
    return ids.empty()
               ? warning(kVisible,
                         setting + " hides all GPUs: ranks run on CPUs",
                         "unset it, unless that is meant")
               : all_well(
                     kVisible,
                     setting + " shows " +
                         count_text(static_cast<int64_t>(ids.size()), "GPU") +
                         " of " + std::to_string(gpu_count_of(facts)));
  } catch (const LaunchError& error) {
    return failing(kVisible, error.what());
  }
}

/// Returns whether CUDA may number the GPUs differently from other tools: CUDA
/// puts the fastest GPU first, other tools use the PCI order.
bool are_numbers_doubtful(const MachineFacts& machine) {
  std::set<std::string> names;
  for (const Gpu& gpu : machine.gpu.gpus) {
    names.insert(gpu.name);
  }
  const std::string* order = find_variable(machine.environment, kOrder);
  return names.size() > 1 && (order == nullptr || *order != "PCI_BUS_ID");
}

Finding diagnose_workers(int workers, int gpus) {
  const std::string text =
      count_text(workers, "worker") + " for " + count_text(gpus, "GPU");
  if (workers > gpus) {
    return failing("workers",
                   text + ": NCCL takes a GPU for one rank only",
                   "start --nproc-per-node=" + std::to_string(gpus));
  }
  return all_well("workers", text);
}

/// Number of links in "NV18"; 0: connected by PCI only.
int nvlinks_in(const std::string& link) {
  return link.rfind("NV", 0) == 0
             ? ddp::detail::parse_number<int>(link.substr(2)).value_or(0)
             : 0;
}

/// Reports how many pairs of GPUs have NVLinks, by the number of links.
Finding diagnose_links(const GpuFacts& facts) {
  std::map<int, int> pairs_by_links;
  // Per GPU: number of links to all others.
  std::vector<int> links(facts.links.size());
  for (size_t from = 0; from < facts.links.size(); ++from) {
    for (size_t to = 0; to < facts.links.size(); ++to) {
      if (from != to) {
        const int count = nvlinks_in(facts.links[from][to]);
        links[from] += count;
        pairs_by_links[count] += from < to ? 1 : 0;
      }
    }
  }
  const int most = *std::max_element(links.begin(), links.end());
  if (most == 0) {
    return all_well("links", "no NVLink: GPUs talk over PCI (see the table)");
  }
  std::vector<std::string> lacking;
  for (size_t gpu = 0; gpu < links.size(); ++gpu) {
    if (links[gpu] < most) {
      lacking.push_back(std::to_string(gpu));
    }
  }
  if (!lacking.empty()) {
    return warning("links",
                   (lacking.size() == 1 ? "GPU " : "GPUs ") +
                       list_text(lacking) +
                       " with fewer NVLinks than the others, which set the "
                       "pace of all",
                   "look at nvidia-smi nvlink --status, and at the state of "
                   "nvidia-fabricmanager where there is an NVSwitch");
  }
  return pairs_by_links.size() == 1
             ? all_well("links",
                        "NVLink between all GPUs, " +
                            count_text(pairs_by_links.begin()->first, "link") +
                            " a pair")
             : all_well("links", "NVLink between GPUs (see the table)");
}

Finding diagnose_nodes(const MachineFacts& machine) {
  std::set<int> usable;
  for (const Cpu& cpu : machine.system.topology.cpus) {
    usable.insert(cpu.node);
  }
  std::set<int> nodes;
  for (size_t index = 0; index < machine.gpu.gpus.size(); ++index) {
    const int node = machine.gpu.gpus[index].numa_node;
    if (node >= 0 && !usable.empty() && usable.count(node) == 0) {
      return warning("NUMA",
                     "GPU " + std::to_string(index) + " is on node " +
                         std::to_string(node) +
                         ", of which ddprun may use no CPU",
                     "start it with CPUs of that node too (taskset, cpuset, "
                     "the batch system's options)");
    }
    nodes.insert(node);
  }
  if (nodes.count(-1) > 0) {
    return all_well("NUMA", "the nodes of GPUs are not known here");
  }
  return nodes.size() == 1
             ? all_well(
                   "NUMA",
                   "all GPUs are on node " + std::to_string(*nodes.begin()))
             : all_well(
                   "NUMA",
                   "GPUs are on " +
                       count_text(static_cast<int64_t>(nodes.size()), "node") +
                       "; --numa-binding=node keeps each worker near its "
                       "own");
}

}  // namespace

int visible_gpu_count(const MachineFacts& machine) {
  try {
    return static_cast<int>(gpus_seen(machine).size());
  } catch (const LaunchError&) {
    return 0;
  }
}

int usual_worker_count(const MachineFacts& machine) {
  constexpr int kWithoutGpus = 2;
  const int count = visible_gpu_count(machine);
  return count > 0 ? count : kWithoutGpus;
}

Findings diagnose_gpus(const MachineFacts& machine, const JobShape& job) {
  const GpuFacts& facts = machine.gpu;
  Findings findings{diagnose_devices(facts)};
  const std::string* visible = find_variable(machine.environment, kVisible);
  if (visible != nullptr) {
    findings.push_back(diagnose_visible(machine, *visible));
  }
  if (facts.gpus.empty()) {
    return findings;
  }
  if (are_numbers_doubtful(machine)) {
    findings.push_back(
        warning(kOrder,
                "GPUs differ, and CUDA may number them in another order than "
                "nvidia-smi, --gpus and --numa-binding do",
                std::string("set ") + kOrder + "=PCI_BUS_ID"));
  }
  if (const int seen = visible_gpu_count(machine); seen > 0) {
    findings.push_back(diagnose_workers(job.workers, seen));
  }
  if (facts.links.size() > 1) {
    findings.push_back(diagnose_links(facts));
  }
  findings.push_back(diagnose_nodes(machine));
  return findings;
}

}  // namespace launcher
