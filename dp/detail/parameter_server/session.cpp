#include "dp/detail/parameter_server/session.h"

#include <algorithm>

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

constexpr const char* kSession = "dp/parameter_server/session";

Store base_store(const ParameterServerOptions& options) {
  return options.worker_env() ? options.store() : ddp::store();
}

std::string reach_of_job(const ParameterServerOptions& options) {
  return options.worker_env() ? ddp::detail::reach_of(*options.worker_env())
                              : ddp::detail::job_reach();
}

/// A part of the store for one session alone.
Store session_store(const Store& store, const std::string& session) {
  return c10::make_intrusive<c10d::PrefixStore>(
      "dp/parameter_server/" + session, store);
}

/// A rank comes to the next session only when all have come to this one, so a
/// count of arrivals tells which.
std::string next_session(const Store& store, const Topology& topology) {
  const int64_t arrivals = store->add("dp/parameter_server/arrivals", 1);
  return std::to_string((arrivals - 1) / topology.world_size);
}

Group connect(const Route& route, const std::string& name, int rank, int size) {
  ddp::detail::BackendSpec spec;
  spec.store = c10::make_intrusive<c10d::PrefixStore>(name, route.store);
  spec.rank = rank;
  spec.size = size;
  spec.timeout = route.timeout;
  spec.connect_timeout = route.timeout;
  spec.reach = route.reach;
  return ddp::detail::make_gloo_backend(spec);
}

/// By server the update to go on from.
std::vector<int64_t> agree(const Route& route,
                           const Topology& topology,
                           const ParameterServerOptions& options,
                           Role role,
                           const SavedStates& saved) {
  const auto claims = ddp::detail::exchange_texts(
      *route.store,
      topology.rank,
      topology.world_size,
      claim(options, topology.world_size, role, saved),
      route.timeout,
      [](const std::string&) { return false; });
  check(topology, options);
  const std::string problem = claims_problem(claims, topology.servers);
  TORCH_CHECK(problem.empty(), problem);
  auto plan =
      plan_resume(claims_saved(claims, topology.servers), options.mode());
  TORCH_CHECK(plan.problem.empty(), plan.problem);
  return std::move(plan.updates);
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

std::vector<ddp::NamedParameter> trained_parameters(
    const torch::nn::Module& module) {
  auto trained = ddp::detail::unique(module.named_parameters());
  trained.erase(std::remove_if(trained.begin(),
                               trained.end(),
                               [](const auto& item) {
                                 return !item.tensor.requires_grad();
                               }),
                trained.end());
  return trained;
}

void make_shards(const std::vector<ddp::NamedParameter>& trained,
                 int servers,
                 Session& session) {
  TORCH_CHECK(trained.size() >= static_cast<size_t>(servers),
              "Expected at most as many servers as parameters that require a "
              "gradient, but got ",
              servers,
              " for ",
              trained.size(),
              trained.size() == 1 ? " parameter" : " parameters");
  std::vector<int64_t> bytes;
  for (const auto& parameter : trained) {
    bytes.push_back(static_cast<int64_t>(parameter.tensor.nbytes()));
  }
  for (const auto& members : plan_shards(bytes, static_cast<size_t>(servers))) {
    auto& tensors = session.shards.emplace_back();
    auto& names = session.names.emplace_back();
    for (const size_t member : members) {
      tensors.push_back(trained[member].tensor);
      names.push_back(trained[member].name);
    }
  }
}

/// Servers take workers in order and workers servers, so no two wait for each
/// other.
std::vector<std::unique_ptr<Link>> connect_pairs(
    const Session& session,
    const std::string& name,
    std::chrono::milliseconds timeout) {
  std::vector<std::unique_ptr<Link>> links;
  const auto& topology = session.topology;
  const int peers =
      topology.is_server() ? topology.workers() : topology.servers;
  for (int peer = 0; peer < peers; ++peer) {
    links.push_back(connect_pair(session, name, peer, timeout));
  }
  return links;
}

}  // namespace

std::unique_ptr<Link> connect_pair(const Session& session,
                                   const std::string& name,
                                   int peer,
                                   std::chrono::milliseconds timeout) {
  const auto& topology = session.topology;
  const int server = topology.is_server() ? topology.rank : peer;
  const int worker = topology.is_server() ? peer : topology.worker();
  const std::string peer_name = topology.is_server()
                                    ? worker_name(peer, topology.servers)
                                    : server_name(peer);
  return std::make_unique<Link>(
      ddp::detail::explain("cannot connect with " + peer_name,
                           [&] {
                             return connect(session.route,
                                            name + "/" +
                                                std::to_string(server) + "/" +
                                                std::to_string(worker),
                                            topology.is_server() ? 0 : 1,
                                            2);
                           }),
      peer_name,
      timeout);
}

Session find_session(torch::nn::Module& module,
                     const ParameterServerOptions& options) {
  Session session;
  session.topology = topology_of(options);
  check(session.topology, options);
  const auto store = base_store(options);
  TORCH_CHECK(store->check({kSession}),
              "Expected servers that wait for this worker to come back, but "
              "got none; set await_return() on them");
  const auto number = store->get(kSession);
  session.route = {
      session_store(store, std::string(number.begin(), number.end())),
      reach_of_job(options),
      options.connect_timeout()};
  TORCH_CHECK(!session.route.store->check({kSessionOver}),
              "Expected servers at work to come back to, but they have ended");
  make_shards(trained_parameters(module), session.topology.servers, session);
  return session;
}

Session join_session(torch::nn::Module& module,
                     const ParameterServerOptions& options,
                     Role role,
                     const SavedStates& saved) {
  Session session;
  session.topology = topology_of(options);
  const auto store = base_store(options);
  const auto number = next_session(store, session.topology);
  session.route = {session_store(store, number),
                   reach_of_job(options),
                   options.connect_timeout()};
  session.resume_at =
      agree(session.route, session.topology, options, role, saved);
  if (session.topology.rank == 0 && options.await_return().count() > 0) {
    store->set(kSession, number);
  }
  equalize(session.route, session.topology, module);
  make_shards(trained_parameters(module), session.topology.servers, session);
  session.links = connect_pairs(session, "pair", options.timeout());
  return session;
}

}  // namespace dp::detail
