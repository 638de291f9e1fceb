#include "dp/detail/parameter_server/server_place.h"

#include "ddp/process_group.h"

namespace dp::detail {

Place place_of(const ParameterServerOptions& options) {
  TORCH_CHECK((options.store() == nullptr) == !options.worker_env(),
              "Expected both of store and worker_env or none of them");
  Place place;
  place.servers = options.servers();
  place.rank = options.worker_env() ? options.worker_env()->rank : ddp::rank();
  place.world_size = options.worker_env() ? options.worker_env()->world_size
                                          : ddp::world_size();
  return place;
}

void check(const Place& place, const ParameterServerOptions& options) {
  TORCH_CHECK(place.servers >= 1 && place.servers < place.world_size,
              "Expected at least one server and one worker, but got ",
              place.servers,
              place.servers == 1 ? " server" : " servers",
              " in a world of ",
              place.world_size,
              place.world_size == 1 ? " rank" : " ranks",
              "; start more ranks, or fewer servers");
  TORCH_CHECK(options.staleness_bound() >= 0,
              "Expected a staleness_bound of 0 or more, but got ",
              options.staleness_bound());
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
