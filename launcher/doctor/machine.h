#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/base/environment.h"
#include "launcher/doctor/all_reduce_facts.h"
#include "launcher/doctor/paths/hosts_facts.h"
#include "launcher/machine/topology.h"

// What ddprun --doctor has read of a machine: facts without a judgement, so
// that any machine can be judged on any other.
namespace launcher {

/// What two GPUs have between them on the PCI bus, from near to far.
enum class PciPath { unknown, switch_, switches, host_bridge, node, system };

struct GpuLink {
  PciPath path = PciPath::unknown;
  int nvlinks = 0;  ///< 0: they talk over PCI
};

struct Gpu {
  std::string name;
  std::string uuid;
  std::string pci;  ///< "0000:3b:00.0", as in /sys
  int64_t memory_bytes = 0;
  int numa_node = -1;  ///< -1: not known
  std::string cpus;    ///< near it, as the kernel lists them; empty: not known
};

struct GpuFacts {
  int device_files = 0;    ///< /dev/nvidia0, ...
  bool has_nvml = false;   ///< the driver's library could be loaded
  std::string nvml_error;  ///< why it tells nothing; empty: it does
  std::string driver;      ///< "580.65.06"
  int cuda = 0;            ///< the newest that the driver runs: 13000 is 13.0
  std::vector<Gpu> gpus;   ///< in the order of the PCI bus
  std::vector<std::vector<GpuLink>> links;  ///< by GPU and GPU
};

struct HostAddress {
  std::string text;
  bool is_own = false;  ///< an interface of this host has it
  bool is_loopback = false;
  /// That the name service has for it; empty: none, or it was not asked, as of
  /// loopback and of all addresses but the first.
  std::string name{};
  bool is_of_name = true;  ///< that name has this address
};

/// A host name and what it is turned into.
struct NameFacts {
  std::string name;
  std::string error;  ///< why there is no address
  std::vector<HostAddress> addresses;
};

/// A port of this host that a job would listen on.
struct PortFacts {
  int port = 0;
  std::string option;   ///< that names it
  std::string refusal;  ///< "port 80 is in use"; empty: it is free
  std::string holder;   ///< "nginx (pid 77)"; empty: not known
  /// Another ddprun of the job may listen there already, on this host.
  bool may_be_met = false;
};

struct NetworkInterface {
  std::string name;
  bool is_up = false;
  bool is_loopback = false;
  std::vector<std::string> addresses{};  ///< IPv4 and IPv6
};

struct NetworkFacts {
  NameFacts host;
  std::optional<NameFacts> endpoint;  ///< where the job's ranks would meet
  std::vector<PortFacts> ports;       ///< where the endpoint is this host's
  std::vector<NetworkInterface> interfaces;
  std::string way_to_endpoint;  ///< the interface; empty: not known
};

struct SystemFacts {
  int cpu_count = 1;  ///< that may be used, see HostInfo
  Topology topology;
  std::optional<int64_t> shared_memory_bytes;       ///< of /dev/shm
  std::optional<int64_t> free_shared_memory_bytes;  ///< of it
  uint64_t open_files = 0;       ///< that a process may have: the soft limit
  uint64_t most_open_files = 0;  ///< and the hard one
  bool has_job_cgroup = false;   ///< ddprun may make one
  int64_t memory_bytes = 0;      ///< of the machine, or of the cgroup if less
  int64_t free_memory_bytes = 0;
  bool is_memory_of_cgroup = false;
  std::string temporary_folder;
  std::string temporary_error;  ///< why it cannot be written to
};

struct MachineFacts {
  Environment environment;  ///< ddprun's own
  GpuFacts gpu;
  NetworkFacts network;
  SystemFacts system;
  AllReduceFacts all_reduce;
  std::optional<HostsFacts> hosts;  ///< of a job with several
};

/// The job that the machine is to be fit for.
struct JobShape {
  int workers = 1;  ///< on this host
  int hosts = 1;
  std::optional<int> host_rank{};  ///< where it is fixed
};

}  // namespace launcher
