#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/base/environment.h"
#include "launcher/doctor/all_reduce.h"
#include "launcher/machine/topology.h"

// Facts that ddprun --doctor reads from a machine, separate from the judgement,
// so that facts of any machine can be judged on any other.
namespace launcher {

struct Gpu {
  std::string name;
  std::string uuid;
  std::string pci;  ///< "0000:3b:00.0", as in /sys
  int64_t memory_bytes = 0;
  int numa_node = -1;  ///< -1: unknown
  std::string cpus;    ///< nearest CPUs, kernel format; empty: unknown
};

struct GpuFacts {
  int device_files = 0;         ///< /dev/nvidia0, ...
  bool has_nvidia_smi = false;  ///< nvidia-smi is in PATH
  std::string driver_error;     ///< why nvidia-smi fails; empty: it works
  std::string driver;           ///< "580.65.06"
  int cuda = 0;  ///< newest supported by the driver: 13000 is 13.0; 0: unknown
  std::vector<Gpu> gpus;  ///< in PCI order
  /// Indexed by two GPUs, as `nvidia-smi topo -m` names the connection: "NV18",
  /// "PIX", "SYS"; "?": unknown.
  std::vector<std::vector<std::string>> links;
};

struct HostAddress {
  std::string text;
  bool is_own = false;  ///< belongs to an interface of this host
  bool is_loopback = false;
};

/// A host name and the addresses that it resolves to.
struct NameFacts {
  std::string name;
  std::string error;  ///< why there is no address
  std::vector<HostAddress> addresses;
};

/// A port of this host that a job would listen on.
struct PortFacts {
  int port = 0;
  std::string option;   ///< command line option that names the port
  std::string refusal;  ///< "port 80 is in use"; empty: free
  /// Whether another ddprun of the job may already listen there, on this host.
  bool may_be_met = false;
};

struct NetworkFacts {
  NameFacts host;
  std::optional<NameFacts> endpoint;  ///< where the job's ranks would connect
  std::vector<PortFacts> ports;       ///< if the endpoint is this host
};

struct SystemFacts {
  int cpu_count = 1;  ///< usable CPUs, see HostInfo
  Topology topology;
  std::optional<int64_t> shared_memory_bytes;       ///< size of /dev/shm
  std::optional<int64_t> free_shared_memory_bytes;  ///< free space in /dev/shm
  uint64_t open_files = 0;       ///< soft limit of open files
  uint64_t most_open_files = 0;  ///< hard limit of open files
};

struct MachineFacts {
  Environment environment;  ///< ddprun's own
  GpuFacts gpu;
  NetworkFacts network;
  SystemFacts system;
  AllReduceFacts all_reduce;
};

/// Size of the job for which the machine is judged.
struct JobShape {
  int workers = 1;  ///< on this host
  int hosts = 1;
  std::optional<int> host_rank{};  ///< if it is fixed
  std::string refusal{};  ///< why ddprun would not start the job; empty: none
};

}  // namespace launcher
