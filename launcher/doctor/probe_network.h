#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/doctor/machine.h"
#include "launcher/options/options.h"

namespace launcher {

/// Where a job of this command line would meet.
struct MeetingPoint {
  struct Port {
    int number;
    std::string option;
    bool may_be_met = false;  ///< see PortFacts
  };

  std::optional<std::string> host;  ///< none: ddprun chooses, on this host
  /// On that host; none where another host than this one is to listen, which
  /// may already do so on the same machine.
  std::vector<Port> ports;
};

/// Pure.
MeetingPoint meeting_point(const LaunchOptions& options);

/// Asks the kernel and the name service, which may take its time.
///
/// @param host_name of this machine
NetworkFacts probe_network(const std::string& host_name,
                           const MeetingPoint& point);

/// The first address of the interface of that name that is no IPv6 link's, else
/// empty. Pure.
std::string address_of_interface(const NetworkFacts& network,
                                 const std::string& name);

}  // namespace launcher
