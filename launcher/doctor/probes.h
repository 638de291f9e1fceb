#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/doctor/machine.h"
#include "launcher/machine/host.h"
#include "launcher/options/options.h"

namespace launcher {

/// Reads GPU facts from nvidia-smi, which is looked up in PATH, and the NUMA
/// nodes of GPUs from /sys. Does not initialize CUDA. Ends within two minutes,
/// also if the driver hangs.
///
/// @param device_files number of GPUs, as in HostInfo
GpuFacts probe_gpus(int device_files, const Environment& environment);

/// Parses a line of `nvidia-smi --query-gpu=` with the fields
/// pci.bus_id,uuid,name,memory.total,driver_version and
/// `--format=csv,noheader,nounits`. Sets the driver's version, too. Pure.
///
/// @returns whether the line describes a GPU
bool parse_gpu(std::string_view line, Gpu& gpu, std::string& driver);

/// Parses the table of `nvidia-smi topo -m`. Pure.
///
/// @returns the connection of each pair of `count` GPUs, "?" if it is not there
std::vector<std::vector<std::string>> parse_links(std::string_view text,
                                                  size_t count);

/// Parses the CUDA version of `nvidia-smi -q`: 13000 is 13.0; 0 if there is
/// none. Pure.
int parse_cuda_version(std::string_view text);

/// Endpoint where the hosts of a command line's job would connect.
struct RendezvousEndpoint {
  struct Port {
    int number;
    std::string option;
    bool may_be_met = false;  ///< see PortFacts
  };

  /// std::nullopt: ddprun chooses an address of this host.
  std::optional<std::string> host;
  /// Ports that this host would listen on; empty if only another process
  /// listens, which may already do so on the same machine.
  std::vector<Port> ports;
};

/// Returns the endpoint of a command line's rendezvous. Pure function.
RendezvousEndpoint rendezvous_endpoint(const LaunchOptions& options);

/// Reads network facts from the kernel and the name service. May block for
/// long.
///
/// @param host_name of this machine
NetworkFacts probe_network(const std::string& host_name,
                           const RendezvousEndpoint& point);

/// Reads limits and sizes.
SystemFacts probe_system(const HostInfo& host);

}  // namespace launcher
