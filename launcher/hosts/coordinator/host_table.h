#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "launcher/hosts/protocol/message.h"
#include "launcher/plan/world.h"

namespace launcher {

/// State of a host in the coordinator of its job.
struct KnownHost {
  Hello hello;
  HostState state{};
  std::optional<World> world{};  ///< the present one, or the last one
  /// Time at which the host is lost, unless it sends a message before.
  std::chrono::steady_clock::time_point lost_at{};
  int64_t arrival = 0;  ///< its number among all hosts ever admitted
  bool is_connected = true;
  std::string how_lost{};  ///< reason for the end of its last connection

  /// Whether the host waits for the next world and is connected.
  bool has_joined() const { return state.joins && is_connected; }

  /// Whether that world is the last one that the host knows.
  bool is_in(int generation) const { return state.generation == generation; }
  /// Whether the workers of the host have succeeded in that world.
  bool has_succeeded_in(int generation) const;
};

/// The hosts of a job by their connections.
using HostTable = std::map<uint64_t, KnownHost>;

/// Number of hosts that wait for the next world.
int count_joined(const HostTable& hosts);

/// "a, b": names of the first hosts for which `is_meant` is true, and the
/// number of the others.
std::string names_of(const HostTable& hosts,
                     const std::function<bool(const KnownHost&)>& is_meant);
/// Names of the hosts that wait for the next world.
std::string names_of_joined(const HostTable& hosts);

}  // namespace launcher
