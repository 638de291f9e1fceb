#pragma once

#include <string>

#include "dp/servers/parameter_server.h"

namespace dp::detail {

/// Role of a rank: ranks [0, servers) are servers, the others are workers.
struct Topology {
  int rank = 0;
  int world_size = 1;
  int servers = 1;

  bool is_server() const { return rank < servers; }
  int workers() const { return world_size - servers; }
  /// Number of this worker, from 0.
  int worker() const { return rank - servers; }
};

Topology topology_of(const ParameterServerOptions& options);

/// Checks the options.
/// @throws c10::Error if the world is too small for the servers and one worker,
///   or if an option is invalid.
void check(const Topology& topology, const ParameterServerOptions& options);

/// Returns, for example, "parameter server 1 (rank 1)".
std::string server_name(int server);
/// Returns, for example, "worker 0 (rank 2)".
std::string worker_name(int worker, int servers);

}  // namespace dp::detail
