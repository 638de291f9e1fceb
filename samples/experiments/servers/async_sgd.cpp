// Asynchronous SGD with parameter servers.
//
// Purpose: a server applies each worker's gradients on arrival, so no worker
// waits for a slow one. In the meantime other workers may have updated the
// parameters from which the gradients were computed. The number of these
// updates is the staleness. Its histogram is printed, and it can be bounded:
// with a bound of 0 the workers take turns. A worker may die; the others
// finish.
//
//   ddprun --nproc-per-node=4 async_sgd
//   ddprun --nproc-per-node=4 async_sgd --slow-worker 50 --staleness-bound 16
#include <ddp/ddp.h>
#include <dp/parameter_server.h>
#include <torch/types.h>

#include <iostream>
#include <thread>

#include "samples/experiments/servers/server_job.h"
#include "samples/experiments/servers/update_log.h"
#include "samples/support/command_line.h"
#include "samples/support/schedule.h"
#include "samples/support/text.h"

namespace {

using namespace samples;

struct Options : ServerJobOptions {
  int64_t staleness_bound = 8;
  int64_t slow_worker = 0;  // milliseconds that the last worker sleeps per step
  int64_t log_every = 0;
};

// One write per line, because the ranks share the terminal.
void print(const std::string& text) {
  std::cout << text + "\n" << std::flush;
}

void serve(const ServerJob& job, dp::ParameterServerOptions options) {
  UpdateLog log;
  const int workers = ddp::world_size() - options.servers();
  const int64_t updates = workers * job.steps(workers);
  options.before_update(
      [&](const dp::Update& update, torch::optim::Optimizer& optimizer) {
        log.add(update);
        set_learning_rate(
            optimizer, job.options.learning_rate, update.number, updates);
      });
  const auto report = dp::serve(
      *job.network,
      [&](const auto& parameters) { return job.make_optimizer(parameters); },
      options);
  if (ddp::rank() == 0) {
    std::cout << log.loss_bars(job.options.epochs) +
                     staleness_bars(report.staleness)
              << std::flush;
    if (!job.options.csv.empty()) {
      log.write_csv(job.options.csv);
    }
  }
  print(format("server %d: %ld updates, at most %zu updates stale, %s",
               ddp::rank(),
               report.updates,
               report.staleness.size() - 1,
               to_text(report.moved).c_str()));
  for (const int worker : report.lost) {
    print(format("server %d: worker %d died", ddp::rank(), worker));
  }
}

void work(const ServerJob& job,
          const Options& own,
          const dp::ParameterServerOptions& options) {
  dp::ParameterClient client(job.network, options);
  const bool is_slow = client.worker() == client.workers() - 1;
  int64_t step = 0;
  job.run(client.worker(), client.workers(), [&](const auto& batch) {
    client.pull();
    job.network->train();
    job.network->zero_grad();
    const auto loss = torch::cross_entropy_loss(
        job.network->forward(batch.data), batch.target);
    loss.backward();
    if (is_slow) {
      std::this_thread::sleep_for(std::chrono::milliseconds(own.slow_worker));
    }
    client.push(loss.template item<double>());
    if (own.log_every > 0 && ++step % own.log_every == 0) {
      print(format("worker %d: step %ld of %ld",
                   client.worker(),
                   step,
                   job.steps(client.workers())));
    }
  });
  client.finish();
  print(format("worker %d: test accuracy %s, %s",
               client.worker(),
               to_text(job.test(*job.network)).c_str(),
               to_text(client.moved()).c_str()));
}

void run(const Options& options) {
  ddp::init_process_group(ddp::ProcessGroupOptions().backend("gloo"));
  const ServerJob job(options);
  const auto servers = dp::ParameterServerOptions()
                           .servers(options.servers)
                           .mode(dp::UpdateMode::asynchronous)
                           .staleness_bound(options.staleness_bound);
  dp::is_server(servers) ? serve(job, servers) : work(job, options, servers);
  ddp::destroy_process_group();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  options.epochs = 15;
  options.momentum = 0.5;  // stale gradients act like momentum themselves
  CommandLine line(
      "async_sgd",
      "Trains on the digits by asynchronous SGD with parameter servers: ddprun "
      "--nproc-per-node=4 async_sgd.");
  add_server_job_options(line, options);
  line.add("--staleness-bound",
           options.staleness_bound,
           "Updates that may come between a worker's pull and its own")
      .at_least(0);
  line.add("--slow-worker",
           options.slow_worker,
           "Milliseconds that the last worker rests in each step")
      .at_least(0);
  line.add("--log-every",
           options.log_every,
           "Each worker says so every so many steps (0: never)")
      .at_least(0);
  return line.run(argc, argv, [&] { run(options); });
}
