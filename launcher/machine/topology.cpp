#include "launcher/machine/topology.h"

#include <dirent.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>

#include "ddp/base/cluster/host_list.h"
#include "ddp/base/text/number.h"
#include "launcher/base/text_file.h"

namespace launcher {
namespace {

constexpr size_t kBitsOfWord = sizeof(unsigned long) * CHAR_BIT;

std::string first_line_of(const std::string& path) {
  const std::string text = read_text(path);
  return text.substr(0, text.find('\n'));
}

std::optional<int> number_in(const std::string& path) {
  return ddp::detail::parse_number<int>(first_line_of(path));
}

std::vector<int> list_in(const std::string& path) {
  return parse_cpu_list(first_line_of(path));
}

int first_in(const std::string& path, int fallback) {
  const auto list = list_in(path);
  return list.empty() ? fallback : list.front();
}

/// Finds the last cache: index numbers are not ordered by cache level.
int last_cache_of(const std::string& cpu_folder) {
  constexpr int kMostCaches = 16;
  int highest = 0;
  int first = 0;
  for (int index = 0; index < kMostCaches; ++index) {
    const std::string cache =
        cpu_folder + "/cache/index" + std::to_string(index);
    const auto level = number_in(cache + "/level");
    if (!level) {
      break;
    }
    if (*level > highest) {
      highest = *level;
      first = first_in(cache + "/shared_cpu_list", first);
    }
  }
  return first;
}

std::map<int, int> nodes_by_cpu(const std::string& folder) {
  std::map<int, int> nodes;
  for (const int node : list_in(folder + "/online")) {
    for (const int cpu :
         list_in(folder + "/node" + std::to_string(node) + "/cpulist")) {
      nodes[cpu] = node;
    }
  }
  return nodes;
}

/// Returns the nodes in PCI order. The driver's folder has a subfolder per GPU,
/// named after its PCI address.
std::vector<int> nodes_of_gpus(const std::string& root) {
  std::vector<std::string> places;
  const std::string folder = root + "/proc/driver/nvidia/gpus";
  const std::unique_ptr<DIR, int (*)(DIR*)> gpus(::opendir(folder.c_str()),
                                                 ::closedir);
  while (const dirent* entry = gpus ? ::readdir(gpus.get()) : nullptr) {
    if (entry->d_name[0] != '.') {
      places.emplace_back(entry->d_name);
    }
  }
  std::sort(places.begin(), places.end());
  std::vector<int> nodes;
  for (const std::string& place : places) {
    nodes.push_back(
        number_in(root + "/sys/bus/pci/devices/" + place + "/numa_node")
            .value_or(-1));
  }
  return nodes;
}

}  // namespace

std::vector<int> usable_cpus() {
  std::vector<int> cpus;
  // Double the size until the kernel's mask fits.
  for (int most = CPU_SETSIZE; most <= (1 << 20) && cpus.empty(); most *= 2) {
    cpu_set_t* set = CPU_ALLOC(most);
    const size_t size = CPU_ALLOC_SIZE(most);
    if (::sched_getaffinity(0, size, set) == 0) {
      for (int cpu = 0; cpu < most; ++cpu) {
        if (CPU_ISSET_S(cpu, size, set)) {
          cpus.push_back(cpu);
        }
      }
    }
    CPU_FREE(set);
  }
  if (cpus.empty()) {
    cpus.push_back(0);
  }
  return cpus;
}

CpuSet::CpuSet(const std::vector<int>& cpus) {
  for (const int cpu : cpus) {
    const size_t word = static_cast<size_t>(cpu) / kBitsOfWord;
    bits_.resize(std::max(bits_.size(), word + 1));
    bits_[word] |= 1UL << (static_cast<size_t>(cpu) % kBitsOfWord);
  }
}

int CpuSet::bind() const {
  if (bits_.empty()) {
    return 0;
  }
  // Override a memory policy set by the caller's numactl. Errors are ignored:
  // if a sandbox forbids the call, memory is mostly local anyway.
  constexpr int kPreferred = 1;  // without nodes: the local node
  ::syscall(SYS_set_mempolicy, kPreferred, nullptr, 0);
  const long result = ::syscall(SYS_sched_setaffinity,
                                0,
                                bits_.size() * sizeof(unsigned long),
                                bits_.data());
  return result < 0 ? errno : 0;
}

Topology read_topology(const std::vector<int>& cpus, const std::string& root) {
  const std::string devices = root + "/sys/devices/system";
  const auto nodes = nodes_by_cpu(devices + "/node");
  Topology topology;
  for (const int id : cpus) {
    const std::string folder = devices + "/cpu/cpu" + std::to_string(id);
    const auto node = nodes.find(id);
    topology.cpus.push_back(
        {.id = id,
         .core = first_in(folder + "/topology/thread_siblings_list", id),
         .cache = last_cache_of(folder),
         .node = node == nodes.end() ? 0 : node->second,
         .socket =
             number_in(folder + "/topology/physical_package_id").value_or(0)});
  }
  topology.gpu_nodes = nodes_of_gpus(root);
  return topology;
}

std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  try {
    // Same syntax as Slurm's host lists between brackets.
    for (const std::string& cpu :
         ddp::detail::expand_host_list("[" + std::string(text) + "]")) {
      cpus.push_back(std::stoi(cpu));
    }
  } catch (const std::logic_error&) {
    cpus.clear();
  }
  return cpus;
}

std::string cpu_list(const std::vector<int>& cpus) {
  std::string text;
  for (size_t begin = 0; begin < cpus.size();) {
    size_t end = begin + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) {
      ++end;
    }
    text += (begin == 0 ? "" : ",") + std::to_string(cpus[begin]);
    if (end - begin > 1) {
      text += "-" + std::to_string(cpus[end - 1]);
    }
    begin = end;
  }
  return text;
}

}  // namespace launcher
