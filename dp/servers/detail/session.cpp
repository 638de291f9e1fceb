#include "dp/servers/detail/session.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <numeric>

#include <c10/core/GradMode.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "ddp/base/job_files/progress_file.h"
#include "ddp/base/text/record.h"
#include "ddp/job/backends.h"
#include "ddp/job/current_job.h"
#include "ddp/job/error_text.h"
#include "ddp/job/monitored_backend.h"
#include "ddp/job/process_group.h"
#include "ddp/job/rendezvous.h"
#include "ddp/job/state_sync.h"
#include "ddp/job/text_collectives.h"
#include "dp/servers/detail/flat_tensors.h"
#include "dp/servers/detail/shard_plan.h"

namespace dp::detail {
namespace {

using Group = c10::intrusive_ptr<c10d::Backend>;
using Store = c10::intrusive_ptr<c10d::Store>;

/// Settings for connections to the other ranks of a session.
struct Route {
  Store store;
  std::string interface_hint;
  std::chrono::milliseconds timeout;
  bool is_job;  // the session uses the process group of this process
};

Store base_store(const ParameterServerOptions& options) {
  return options.worker_env() ? options.store() : ddp::store();
}

std::string reach_of_job(const ParameterServerOptions& options) {
  return options.worker_env()
             ? ddp::detail::interface_hint_of(*options.worker_env())
             : ddp::detail::interface_hint();
}

std::string opened_key(int64_t number) {
  return "dp/parameter_server/opened/" + std::to_string(number);
}

std::string closed_key(int64_t number) {
  return "dp/parameter_server/closed/" + std::to_string(number);
}

/// Returns the failure of a rank of this process's job, or "".
std::string failure_in_job() {
  const auto state = ddp::detail::peer_state_of(*ddp::process_group());
  const auto failure = state->first_failure();
  return failure ? describe(*failure, state->passes()) : "";
}

/// Waits for the session that rank 0 opened last and that this rank has not
/// joined yet, and returns its number. A rank that failed to join one session
/// joins the next one.
int64_t next_session(c10d::Store& store,
                     const Topology& topology,
                     std::chrono::milliseconds timeout) {
  const std::string own_key =
      "dp/parameter_server/last/" + std::to_string(topology.rank);
  if (topology.rank == 0) {
    const int64_t number = store.add(own_key, 1);
    store.set(opened_key(number), "");
    return number;
  }
  const int64_t last = store.add(own_key, 0);
  const auto end = std::chrono::steady_clock::now() + timeout;
  for (int64_t number = last + 1;; ++number) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    try {
      store.wait({opened_key(number)},
                 std::max(left, std::chrono::milliseconds(1)));
    } catch (const c10::DistNetworkError& error) {
      TORCH_CHECK(false,
                  "Expected rank 0 to open a session of parameter servers, but "
                  "the store is gone, which rank 0 or the launcher hosts; its "
                  "own output says why (",
                  ddp::detail::text_of(error),
                  ")");
    } catch (const c10::Error&) {
      TORCH_CHECK(false,
                  "Expected ",
                  topology.world_size,
                  " ranks to arrive within ",
                  static_cast<double>(timeout.count()) / 1000.0,
                  " s, but rank 0 did not; its own output says why");
    }
    if (!store.check({closed_key(number)}) &&
        !store.check({opened_key(number + 1)})) {
      store.add(own_key, number - last);
      return number;
    }
  }
}

Group connect(const Route& route, const std::string& name, int rank, int size) {
  ddp::detail::BackendSpec spec;
  spec.store = c10::make_intrusive<c10d::PrefixStore>(name, route.store);
  spec.rank = rank;
  spec.size = size;
  spec.timeout = route.timeout;
  spec.connect_timeout = route.timeout;
  spec.interface_hint = route.interface_hint;
  if (route.is_job) {
    spec.peer_failure = failure_in_job;
  }
  return ddp::detail::make_gloo_backend(spec);
}

/// Connects all ranks. In the job of this process's group, errors name the
/// ranks that have left.
Group connect_all(const Route& route, int rank, int size) {
  const auto group = connect(route, "all", rank, size);
  if (!route.is_job) {
    return group;
  }
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return c10::make_intrusive<ddp::detail::MonitoredBackend>(
      group,
      ddp::detail::GroupMembers{"parameter_servers", ranks},
      route.timeout,
      ddp::detail::peer_state_of(*ddp::process_group()));
}

/// Agrees with the other ranks on the options, the training and the states from
/// which the servers resume.
void agree(const Route& route,
           const ParameterServerOptions& options,
           Role role,
           const ResumePoints& saved,
           Session& session) {
  const auto& topology = session.topology;
  const auto answer = ddp::detail::exchange_texts(
      *route.store,
      {topology.rank, topology.world_size},
      claim(options, topology.world_size, role, saved),
      route.timeout,
      ddp::detail::join_fields);
  const auto claims = ddp::detail::split_fields(answer).value();
  check(topology, options);
  const std::string problem = handshake_problem(claims, topology.servers);
  TORCH_CHECK(problem.empty(), problem);
  auto plan =
      plan_resume(resume_points_of(claims, topology.servers), options.mode());
  TORCH_CHECK(plan.problem.empty(), plan.problem);
  session.resume_at = std::move(plan.updates);
  session.run = plan.run;
}

/// Copies rank 0's tensors to the other ranks. The broadcast uses CPU memory,
/// because the ranks may have different devices.
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
  auto state = ddp::detail::distinct_tensors(module.named_parameters());
  const auto buffers = ddp::detail::distinct_tensors(module.named_buffers());
  const auto group = connect_all(route, topology.rank, topology.world_size);
  ddp::detail::verify_across_ranks(*group,
                                   c10::kCPU,
                                   ddp::detail::describe_all(state, buffers),
                                   "module",
                                   "build it in the same way on every rank");
  state.insert(state.end(), buffers.begin(), buffers.end());
  take_from_rank_0(*group, ddp::detail::tensors_of(state));
  // Destroying the group early would break the broadcast of a slower rank.
  const bool all_have = ddp::detail::store_barrier(
      *route.store, "equal", topology.world_size, route.timeout);
  TORCH_CHECK(all_have,
              "Expected all ranks to take rank 0's parameters, but one did "
              "not. Its own output says why");
}

std::vector<ddp::NamedParameter> trained_parameters(
    const torch::nn::Module& module) {
  auto trained = ddp::detail::distinct_tensors(module.named_parameters());
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

std::unique_ptr<Link> connect_pair(const Topology& topology,
                                   const Route& route,
                                   int peer,
                                   std::chrono::milliseconds timeout) {
  const int server = topology.is_server() ? topology.rank : peer;
  const int worker = topology.is_server() ? peer : topology.worker();
  const std::string peer_name = topology.is_server()
                                    ? worker_name(peer, topology.servers)
                                    : server_name(peer);
  return std::make_unique<Link>(
      ddp::detail::explain("cannot connect with " + peer_name,
                           [&] {
                             return connect(route,
                                            "pair/" + std::to_string(server) +
                                                "/" + std::to_string(worker),
                                            topology.is_server() ? 0 : 1,
                                            2);
                           }),
      peer_name,
      timeout);
}

/// Connects the pairs. Servers connect to workers, and workers to servers, in
/// ascending order, so that no two ranks wait for each other.
void connect_pairs(const Route& route,
                   std::chrono::milliseconds timeout,
                   Session& session) {
  const auto& topology = session.topology;
  const int peers =
      topology.is_server() ? topology.workers() : topology.servers;
  try {
    for (int peer = 0; peer < peers; ++peer) {
      session.links.push_back(connect_pair(topology, route, peer, timeout));
    }
  } catch (const std::exception& error) {
    session.problem = ddp::detail::text_of(error);
  }
}

Session join(torch::nn::Module& module,
             const ParameterServerOptions& options,
             Role role,
             const ResumePoints& saved,
             const Route& route) {
  Session session;
  session.topology = topology_of(options);
  agree(route, options, role, saved, session);
  equalize(route, session.topology, module);
  make_shards(trained_parameters(module), session.topology.servers, session);
  connect_pairs(route, options.timeout(), session);
  return session;
}

}  // namespace

Session join_session(torch::nn::Module& module,
                     const ParameterServerOptions& options,
                     Role role,
                     const ResumePoints& saved) {
  const ddp::detail::RankWaitScope waits("ranks of the parameter servers");
  const auto topology = topology_of(options);
  const auto store = base_store(options);
  const int64_t number =
      next_session(*store, topology, options.connect_timeout());
  const Route route{c10::make_intrusive<c10d::PrefixStore>(
                        "dp/parameter_server/" + std::to_string(number), store),
                    reach_of_job(options),
                    options.connect_timeout(),
                    !options.worker_env()};
  // A rank that arrives later waits for the next session.
  const auto close = [&](const std::string& reason) {
    if (topology.rank == 0) {
      store->set(closed_key(number), reason);
    }
  };
  try {
    auto session = join(module, options, role, saved, route);
    if (!session.problem.empty()) {
      close(session.problem);
    }
    return session;
  } catch (...) {
    close(ddp::detail::text_of(std::current_exception()));
    throw;
  }
}

}  // namespace dp::detail
