// Synchronous SGD with parameter servers.
//
// Purpose: rank 0 (or the first --servers ranks) holds the parameters and the
// optimizer; the other ranks compute gradients of their part of each batch. A
// step waits for all of them, so the training equals that of
// DistributedDataParallel, which --compare-ddp checks. The difference is the
// traffic: it passes through the servers instead of around a ring.
//
//   ddprun --nproc-per-node=3 sync_sgd
//   ddprun --nproc-per-node=4 sync_sgd --servers 2 --compare-ddp
#include <ddp/ddp.h>
#include <dp/parameter_server.h>
#include <torch/types.h>

#include <iostream>
#include <numeric>

#include "samples/experiments/servers/server_job.h"
#include "samples/experiments/servers/update_log.h"
#include "samples/support/command_line.h"
#include "samples/support/schedule.h"
#include "samples/support/text.h"

namespace {

using namespace samples;

// One write per line, because the ranks share the terminal.
void print(const std::string& text) {
  std::cout << text + "\n" << std::flush;
}

torch::Tensor loss_of(Classifier& network,
                      const torch::data::Example<>& batch) {
  network.train();
  return torch::cross_entropy_loss(network.forward(batch.data), batch.target);
}

void serve(const ServerJob& job, dp::ParameterServerOptions options) {
  UpdateLog log;
  const int64_t steps = job.steps(ddp::world_size() - options.servers());
  options.before_update(
      [&](const dp::Update& update, torch::optim::Optimizer& optimizer) {
        log.add(update);
        set_learning_rate(
            optimizer, job.options.learning_rate, update.number, steps);
      });
  const auto report = dp::serve(
      *job.network,
      [&](const auto& parameters) { return job.make_optimizer(parameters); },
      options);
  if (ddp::rank() == 0) {
    std::cout << log.loss_bars(job.options.epochs) << std::flush;
    if (!job.options.csv.empty()) {
      log.write_csv(job.options.csv);
    }
  }
  print(format("server %d: %ld updates, %s",
               ddp::rank(),
               report.updates,
               to_text(report.moved).c_str()));
}

void work(const ServerJob& job, const dp::ParameterServerOptions& options) {
  dp::ParameterClient client(job.network, options);
  const bool tests = client.worker() == 0;
  job.run(
      client.worker(),
      client.workers(),
      [&](const auto& batch) {
        client.pull();
        job.network->zero_grad();
        const auto loss = loss_of(*job.network, batch);
        loss.backward();
        client.push(loss.template item<double>());
      },
      [&](int64_t epoch) {
        client.pull();  // receives the epoch's last update
        if (tests) {
          print(format("epoch %ld/%ld: test accuracy %s",
                       epoch,
                       job.options.epochs,
                       to_text(job.test(*job.network)).c_str()));
        }
      });
  client.finish();
  print(format(
      "worker %d: %s", client.worker(), to_text(client.moved()).c_str()));
  if (tests) {
    print("test accuracy " + to_text(job.test(*job.network)));
  }
}

// Trains with all-reduce instead, from the same parameters and on the same
// batches.
std::shared_ptr<Classifier> train_by_ddp(
    const ServerJob& job, const c10::intrusive_ptr<c10d::Backend>& workers) {
  const auto network = job.make_network();
  ddp::DistributedDataParallel model(
      network, ddp::DistributedDataParallelOptions().process_group(workers));
  const auto optimizer = job.make_optimizer(network->parameters());
  int64_t step = 0;
  job.run(workers->getRank(), workers->getSize(), [&](const auto& batch) {
    set_learning_rate(*optimizer,
                      job.options.learning_rate,
                      step++,
                      job.steps(workers->getSize()));
    optimizer->zero_grad();
    network->train();
    torch::cross_entropy_loss(model->forward(batch.data), batch.target)
        .backward();
    optimizer->step();
  });
  return network;
}

void compare(const ServerJob& job) {
  std::vector<int> ranks(ddp::world_size() - job.options.servers);
  std::iota(ranks.begin(), ranks.end(), job.options.servers);
  const auto workers = ddp::new_group(ranks);
  if (!workers) {
    return;  // this rank is a server
  }
  const auto network = train_by_ddp(job, workers);
  if (workers->getRank() != 0) {
    return;
  }
  double difference = 0;
  double bytes = 0;
  for (const auto& item : network->named_parameters()) {
    const auto served = job.network->named_parameters()[item.key()];
    difference = std::max(difference,
                          (served - item.value()).abs().max().item<double>());
    bytes += static_cast<double>(item.value().nbytes());
  }
  const double count = workers->getSize();
  print("DistributedDataParallel: test accuracy " +
        to_text(job.test(*network)));
  print(format("largest difference of a parameter: %g", difference));
  print(format(
      "a ring all-reduce would send and receive %.1f MiB on each "
      "worker",
      2 * (count - 1) / count * bytes *
          static_cast<double>(job.steps(workers->getSize())) / (1024 * 1024)));
}

void run(const ServerJobOptions& options, bool compares) {
  ddp::init_process_group(ddp::ProcessGroupOptions().backend("gloo"));
  const ServerJob job(options);
  const auto servers = dp::ParameterServerOptions().servers(options.servers);
  dp::is_server(servers) ? serve(job, servers) : work(job, servers);
  if (compares) {
    compare(job);
  }
  ddp::destroy_process_group();
}

}  // namespace

int main(int argc, char** argv) {
  ServerJobOptions options;
  bool compares = false;
  CommandLine line(
      "sync_sgd",
      "Trains on the digits by synchronous SGD with parameter servers: ddprun "
      "--nproc-per-node=3 sync_sgd.");
  add_server_job_options(line, options);
  line.add("--compare-ddp",
           compares,
           "Train by DistributedDataParallel, too, and compare");
  return line.run(argc, argv, [&] { run(options, compares); });
}
