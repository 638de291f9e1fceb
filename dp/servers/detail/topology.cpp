#include "dp/servers/detail/topology.h"

#include "ddp/job/process_group.h"

namespace dp::detail {

Topology topology_of(const ParameterServerOptions& options) {
  TORCH_CHECK((options.store() == nullptr) == !options.worker_env(),
              "Expected both of store and worker_env or none of them");
  Topology topology;
  topology.servers = options.servers();
  topology.rank =
      options.worker_env() ? options.worker_env()->rank : ddp::rank();
  topology.world_size = options.worker_env() ? options.worker_env()->world_size
                                             : ddp::world_size();
  return topology;
}

void check(const Topology& topology, const ParameterServerOptions& options) {
  TORCH_CHECK(topology.servers >= 1 && topology.servers < topology.world_size,
              "Expected at least one server and one worker, but got ",
              topology.servers,
              topology.servers == 1 ? " server" : " servers",
              " in a world of ",
              topology.world_size,
              topology.world_size == 1 ? " rank" : " ranks",
              "; start more ranks, or fewer servers");
  TORCH_CHECK(options.staleness_bound() >= 0,
              "Expected a staleness_bound of 0 or more, but got ",
              options.staleness_bound());
  TORCH_CHECK(options.gradients_held() >= 1,
              "Expected gradients_held of 1 or more, but got ",
              options.gradients_held());
  TORCH_CHECK(options.checkpoint_every() >= 0,
              "Expected a checkpoint_every of 0 or more, but got ",
              options.checkpoint_every());
  TORCH_CHECK(!options.checkpoint().empty() ||
                  (options.checkpoint_every() == 0 && !options.resume()),
              "Expected a path in checkpoint() with checkpoint_every() and "
              "resume(), but got none");
}

std::string server_name(int server) {
  const auto number = std::to_string(server);
  return "parameter server " + number + " (rank " + number + ")";
}

std::string worker_name(int worker, int servers) {
  return "worker " + std::to_string(worker) + " (rank " +
         std::to_string(servers + worker) + ")";
}

}  // namespace dp::detail
