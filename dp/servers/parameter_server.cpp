#include "dp/servers/parameter_server.h"

#include <utility>

#include "ddp/job/current_job.h"
#include "ddp/job/error_text.h"
#include "dp/servers/detail/coordinator.h"
#include "dp/servers/detail/serve_workers.h"
#include "dp/servers/detail/server_file.h"
#include "dp/servers/detail/session.h"

namespace dp {
namespace {

std::unique_ptr<detail::UpdatePolicy> make_policy(
    const detail::Topology& topology, const ParameterServerOptions& options) {
  std::vector<std::string> names;
  for (int worker = 0; worker < topology.workers(); ++worker) {
    names.push_back(detail::worker_name(worker, topology.servers));
  }
  return options.mode() == UpdateMode::synchronous
             ? detail::synchronous_updates(std::move(names))
             : detail::asynchronous_updates(std::move(names),
                                            options.staleness_bound());
}

/// Lets no rank of the job wait for the lost workers when it ends.
void report_lost_workers(const detail::Topology& topology,
                         const std::vector<int>& lost) {
  for (const int worker : lost) {
    ddp::detail::report_lost_rank(topology.servers + worker);
  }
}

}  // namespace

bool is_server(const ParameterServerOptions& options) {
  const auto topology = detail::topology_of(options);
  detail::check(topology, options);
  return topology.is_server();
}

ServerReport serve(torch::nn::Module& module,
                   const OptimizerFactory& make_optimizer,
                   const ParameterServerOptions& options) {
  detail::ServerFile file(options.checkpoint(),
                          detail::topology_of(options).rank);
  auto saved = options.resume() ? file.read() : detail::ResumePoints();
  if (saved.updates.empty()) {
    saved.run = detail::new_run();
  }
  auto session =
      detail::join_session(module, options, detail::Role::server, saved);
  const auto& topology = session.topology;
  const auto server = static_cast<size_t>(topology.rank);
  const auto& parameters = session.shards[server];
  detail::Coordinator coordinator(make_policy(topology, options),
                                  parameters,
                                  topology.workers(),
                                  options.gradients_held());
  std::optional<detail::Shard> shard;
  try {
    TORCH_CHECK(session.problem.empty(), session.problem);
    shard.emplace(parameters, make_optimizer, options.before_update());
    const int64_t updates =
        session.resume_at.empty() ? 0 : session.resume_at[server];
    if (!session.resume_at.empty()) {
      file.restore(updates, session.names[server], *shard);
    }
    coordinator.serve(*shard, updates, [&](int64_t now) {
      if (options.checkpoint_every() > 0 &&
          now % options.checkpoint_every() == 0) {
        file.write(session.names[server], *shard, now, session.run);
      }
    });
  } catch (const std::exception& error) {
    coordinator.fail(ddp::detail::text_of(error));
  }
  // The server sends several signs of life within a worker's time-out.
  detail::serve_workers(
      session.links, coordinator, /*patience=*/options.timeout() / 4);
  if (shard) {
    shard->copy_to(parameters);
  }
  if (!options.worker_env()) {
    report_lost_workers(topology, coordinator.report().lost);
  }
  const std::string failure = coordinator.failure();
  TORCH_CHECK(
      failure.empty(), detail::server_name(topology.rank), " ended: ", failure);
  return coordinator.report();
}

}  // namespace dp
