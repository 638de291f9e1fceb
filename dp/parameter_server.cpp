#include "dp/parameter_server.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include <c10/util/StringUtil.h>

#include "ddp/detail/process_group/farewell.h"
#include "dp/detail/parameter_server/coordinator.h"
#include "dp/detail/parameter_server/link.h"
#include "dp/detail/parameter_server/session.h"
#include "dp/detail/thread_error.h"

namespace dp {
namespace {

using detail::Coordinator;
using detail::Link;
using detail::Message;
using detail::Op;
using std::chrono::milliseconds;

/// How long workers may take to come and hear why the job has ended.
constexpr milliseconds kDrainTimeout{10'000};

template <class Take>
void answer(Link& link, const Take& take) {
  auto parameters = take();
  for (; !parameters; parameters = take()) {
    link.send({.op = Op::wait});
  }
  link.send({.op = Op::parameters, .version = parameters->version},
            parameters->flat);
}

/// Until the worker has finished.
void converse(Link& link,
              Coordinator& coordinator,
              int worker,
              milliseconds patience) {
  for (;;) {
    const Message request = link.receive();
    switch (request.op) {
      case Op::push:
        link.receive_payload(coordinator.flat_gradients(worker));
        coordinator.push(worker, request.loss);
        break;
      case Op::pull:
        coordinator.ask(worker);
        answer(link, [&] { return coordinator.take(worker, patience); });
        break;
      case Op::leave:
        coordinator.leave(worker);
        break;
      case Op::last:
        answer(link, [&] { return coordinator.take_last(patience); });
        return;
      case Op::wait:
        break;
      default:
        coordinator.fail(request.text);
        return;
    }
  }
}

void serve_worker(Link& link,
                  Coordinator& coordinator,
                  int worker,
                  milliseconds patience) {
  try {
    try {
      converse(link, coordinator, worker, patience);
    } catch (const detail::JobEnded& ended) {
      link.send({.op = Op::failure, .text = ended.what()});
    }
  } catch (const c10::Error& error) {
    coordinator.lose(worker, error.what_without_backtrace());
  } catch (const std::exception& error) {
    coordinator.fail(error.what());
  }
  coordinator.close();
}

void serve_workers(detail::Session& session,
                   Coordinator& coordinator,
                   milliseconds timeout) {
  const size_t workers = session.links.size();
  const auto serve_one = [&](size_t i) {
    // A few messages before the worker gives up on this server.
    serve_worker(*session.links[i],
                 coordinator,
                 static_cast<int>(i),
                 /*patience=*/timeout / 4);
  };
  std::vector<std::thread> threads;
  threads.reserve(workers);
  try {
    while (threads.size() < workers) {
      threads.emplace_back(serve_one, threads.size());
    }
  } catch (const std::system_error& error) {
    coordinator.fail(detail::thread_error(
        c10::str("worker ", threads.size(), " of ", workers), error));
  }
  // Without a thread they are told here why the job has ended.
  for (size_t i = threads.size(); i < workers; ++i) {
    serve_one(i);
  }
  if (!coordinator.drain(std::min(timeout, kDrainTimeout))) {
    for (const auto& link : session.links) {
      link->abort();
    }
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

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

/// Lost workers do not come to the end of the job.
void note_deaths(const detail::Topology& topology,
                 const std::vector<int>& lost) {
  for (const int worker : lost) {
    ddp::detail::note_death(topology.servers + worker);
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
  auto session = detail::join_session(module, options, detail::Role::server);
  const auto& topology = session.topology;
  const auto& parameters = session.shards[static_cast<size_t>(topology.rank)];
  Coordinator coordinator(
      make_policy(topology, options), parameters, topology.workers());
  std::optional<detail::Shard> shard;
  try {
    shard.emplace(parameters, make_optimizer, options.before_update());
    coordinator.serve(*shard);
  } catch (const c10::Error& error) {
    coordinator.fail(error.what_without_backtrace());
  } catch (const std::exception& error) {
    coordinator.fail(error.what());
  }
  serve_workers(session, coordinator, options.timeout());
  if (shard) {
    shard->copy_to(parameters);
  }
  if (!options.worker_env()) {
    note_deaths(topology, coordinator.report().lost);
  }
  const std::string failure = coordinator.failure();
  TORCH_CHECK(
      failure.empty(), detail::server_name(topology.rank), " ended: ", failure);
  return coordinator.report();
}

}  // namespace dp
