#include "dp/detail/parameter_server/session.h"

#include <sstream>

#include <c10/core/GradMode.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "ddp/detail/explain.h"
#include "ddp/detail/named_tensors.h"
#include "ddp/detail/process_group/backends.h"
#include "ddp/detail/process_group/job_reach.h"
#include "ddp/detail/process_group/meeting.h"
#include "ddp/process_group.h"
#include "dp/detail/parameter_server/flat_tensors.h"
#include "dp/detail/parameter_server/shard_plan.h"

namespace dp::detail {
namespace {

using Group = c10::intrusive_ptr<c10d::Backend>;
using Store = c10::intrusive_ptr<c10d::Store>;

/// The way to the other ranks.
struct Route {
  Store store;
  std::string reach;
  std::chrono::milliseconds timeout;
};

constexpr const char* kServes = "serve()";
constexpr const char* kWorks = "a ParameterClient";

/// A part of the store for this session alone. A rank comes to the next one
/// only when all have come to this one, so a count of arrivals tells which.
Store session_store(const Store& store, const Topology& topology) {
  const int64_t arrivals = store->add("dp/parameter_server/arrivals", 1);
  const int64_t session = (arrivals - 1) / topology.world_size;
  return c10::make_intrusive<c10d::PrefixStore>(
      "dp/parameter_server/" + std::to_string(session), store);
}

Group connect(const Route& route, const std::string& name, int rank, int size) {
  ddp::detail::BackendSpec spec;
  spec.store = c10::make_intrusive<c10d::PrefixStore>(name, route.store);
  spec.rank = rank;
  spec.size = size;
  spec.timeout = route.timeout;
  spec.reach = route.reach;
  return ddp::detail::make_gloo_backend(spec);
}

void agree(const Route& route,
           const Topology& topology,
           const ParameterServerOptions& options,
           Role role) {
  const auto claims =
      ddp::detail::exchange_texts(*route.store,
                                  topology.rank,
                                  topology.world_size,
                                  claim(options, topology.world_size, role),
                                  route.timeout,
                                  [](const std::string&) { return false; });
  check(topology, options);
  const std::string problem = claims_problem(claims, topology.servers);
  TORCH_CHECK(problem.empty(), problem);
}

/// By way of the CPU: ranks may have different devices.
void take_from_rank_0(c10d::Backend& group,
                      const std::vector<at::Tensor>& tensors) {
  const c10::NoGradGuard no_grad;
  const FlatTensors copies(tensors);
  if (group.getRank() == 0) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      copies.pieces()[i].copy_(tensors[i]);
    }
  }
  ddp::detail::broadcast_from(0, group, {copies.flat()});
  if (group.getRank() != 0) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      at::Tensor(tensors[i]).copy_(copies.pieces()[i]);
    }
  }
}

void equalize(const Route& route,
              const Topology& topology,
              torch::nn::Module& module) {
  auto state = ddp::detail::unique(module.named_parameters());
  const auto buffers = ddp::detail::unique(module.named_buffers());
  const auto group = connect(route, "all", topology.rank, topology.world_size);
  ddp::detail::verify_across_ranks(
      *group, c10::kCPU, ddp::detail::describe_all(state, buffers));
  state.insert(state.end(), buffers.begin(), buffers.end());
  take_from_rank_0(*group, ddp::detail::tensors_of(state));
  // A group that goes early would break a slower rank's broadcast.
  TORCH_CHECK(ddp::detail::store_barrier(
                  *route.store, "equal", topology.world_size, route.timeout),
              "Expected all ranks to take rank 0's parameters, but one did "
              "not. Its own output says why");
}

std::vector<at::Tensor> trained_parameters(const torch::nn::Module& module) {
  std::vector<at::Tensor> trained;
  for (const auto& item : ddp::detail::unique(module.named_parameters())) {
    if (item.tensor.requires_grad()) {
      trained.push_back(item.tensor);
    }
  }
  return trained;
}

std::vector<std::vector<at::Tensor>> make_shards(
    const std::vector<at::Tensor>& trained, int servers) {
  TORCH_CHECK(trained.size() >= static_cast<size_t>(servers),
              "Expected at most as many servers as parameters that require a "
              "gradient, but got ",
              servers,
              " for ",
              trained.size(),
              trained.size() == 1 ? " parameter" : " parameters");
  std::vector<int64_t> bytes;
  for (const auto& parameter : trained) {
    bytes.push_back(static_cast<int64_t>(parameter.nbytes()));
  }
  std::vector<std::vector<at::Tensor>> shards;
  for (const auto& members : plan_shards(bytes, static_cast<size_t>(servers))) {
    shards.emplace_back();
    for (const size_t member : members) {
      shards.back().push_back(trained[member]);
    }
  }
  return shards;
}

/// Servers take workers in order and workers servers, so no two wait for each
/// other.
std::vector<std::unique_ptr<Link>> connect_pairs(
    const Route& route,
    const Topology& topology,
    std::chrono::milliseconds timeout) {
  std::vector<std::unique_ptr<Link>> links;
  const int peers =
      topology.is_server() ? topology.workers() : topology.servers;
  for (int peer = 0; peer < peers; ++peer) {
    const int server = topology.is_server() ? topology.rank : peer;
    const int worker = topology.is_server() ? peer : topology.worker();
    const std::string name = topology.is_server()
                                 ? worker_name(peer, topology.servers)
                                 : server_name(peer);
    links.push_back(std::make_unique<Link>(
        ddp::detail::explain("cannot connect with " + name,
                             [&] {
                               return connect(route,
                                              "pair/" + std::to_string(server) +
                                                  "/" + std::to_string(worker),
                                              topology.is_server() ? 0 : 1,
                                              2);
                             }),
        name,
        timeout));
  }
  return links;
}

}  // namespace

std::string claim(const ParameterServerOptions& options,
                  int world_size,
                  Role role) {
  std::ostringstream text;
  text << "servers(" << options.servers() << "), ";
  if (options.mode() == UpdateMode::synchronous) {
    text << "mode(synchronous)";
  } else {
    text << "mode(asynchronous), staleness_bound(" << options.staleness_bound()
         << ")";
  }
  text << ", timeout(" << options.timeout().count() << " ms) in a world of "
       << world_size << "\n"
       << (role == Role::server ? kServes : kWorks);
  return text.str();
}

std::string claims_problem(const std::vector<std::string>& claims,
                           int servers) {
  const auto options = [](const std::string& claim) {
    return claim.substr(0, claim.find('\n'));
  };
  for (size_t rank = 0; rank < claims.size(); ++rank) {
    const std::string who = "rank " + std::to_string(rank);
    if (options(claims[rank]) != options(claims[0])) {
      return "Expected the same ParameterServerOptions on all ranks, but rank "
             "0 has " +
             options(claims[0]) + ", and " + who + " has " +
             options(claims[rank]);
    }
    const std::string role = claims[rank].substr(claims[rank].find('\n') + 1);
    const bool is_server = rank < static_cast<size_t>(servers);
    if (role != (is_server ? kServes : kWorks)) {
      return "Expected " + std::string(is_server ? kServes : kWorks) + " on " +
             who + ", but got " + role + "; with servers(" +
             std::to_string(servers) + ") the first " +
             std::to_string(servers) + " serve";
    }
  }
  return "";
}

Session join_session(torch::nn::Module& module,
                     const ParameterServerOptions& options,
                     Role role) {
  Session session;
  session.topology = topology_of(options);
  const bool is_given = options.worker_env().has_value();
  const Route route{session_store(is_given ? options.store() : ddp::store(),
                                  session.topology),
                    is_given ? ddp::detail::reach_of(*options.worker_env())
                             : ddp::detail::job_reach(),
                    options.connect_timeout()};
  agree(route, session.topology, options, role);
  equalize(route, session.topology, module);
  session.shards =
      make_shards(trained_parameters(module), session.topology.servers);
  session.links = connect_pairs(route, session.topology, options.timeout());
  return session;
}

}  // namespace dp::detail
