#pragma once

#include <string>

#include "dp/servers/parameter_server.h"

namespace dp::detail {

/// Who a rank is: ranks [0, servers) serve, the others work.
struct Topology {
  int rank = 0;
  int world_size = 1;
  int servers = 1;

  bool is_server() const { return rank < servers; }
  int workers() const { return world_size - servers; }
  /// This worker's number.
  int worker() const { return rank - servers; }
};

Topology topology_of(const ParameterServerOptions& options);

/// @throws c10::Error when there is no room for the servers and a worker, or an
///   option makes no sense.
void check(const Topology& topology, const ParameterServerOptions& options);

/// "parameter server 1 (rank 1)"
std::string server_name(int server);
/// "worker 0 (rank 2)"
std::string worker_name(int worker, int servers);

}  // namespace dp::detail
