// Two views of data parallel training in one process.
//
// Purpose: several replicas of a network, on GPUs or here on the CPU, are kept
// equal by a parameter server (the first replica sums the gradients, steps and
// broadcasts the parameters) or by an all-reduce (each replica sums its part
// and steps itself). The resulting networks are bitwise equal. With the
// parameter server the first device carries the load that the all-reduce
// spreads over all devices. The program prints the traffic of each replica for
// both.
//
//   two_views
//   two_views --replicas 8
#include <torch/types.h>

#include <iostream>

#include "samples/experiments/servers/local_views.h"
#include "samples/experiments/servers/server_job.h"
#include "samples/support/command_line.h"
#include "samples/support/devices.h"
#include "samples/support/parameter_hash.h"
#include "samples/support/text.h"

namespace {

using namespace samples;

using Replicas = std::vector<std::shared_ptr<Classifier>>;

Replicas make_replicas(const ServerJob& job, int count) {
  const bool has_gpus = gpu_count() >= count;
  Replicas replicas;
  for (int i = 0; i < count; ++i) {
    replicas.push_back(job.make_network());
    if (has_gpus) {
      replicas.back()->to(
          torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(i)));
    }
  }
  return replicas;
}

// Trains: each replica computes its part of every batch, and the view makes one
// step with all parts. Returns the number of steps.
template <class View>
int64_t train(const ServerJob& job, const Replicas& replicas, View& view) {
  int64_t steps = 0;
  job.run(0, 1, [&](const torch::data::Example<>& batch) {
    const auto count = static_cast<int64_t>(replicas.size());
    const auto images = batch.data.tensor_split(count);
    const auto targets = batch.target.tensor_split(count);
    std::vector<double> shares;
    for (size_t i = 0; i < replicas.size(); ++i) {
      const auto device = replicas[i]->parameters().front().device();
      replicas[i]->train();
      replicas[i]->zero_grad();
      shares.push_back(static_cast<double>(images[i].size(0)) /
                       static_cast<double>(batch.data.size(0)));
      if (images[i].size(0) > 0) {
        torch::cross_entropy_loss(replicas[i]->forward(images[i].to(device)),
                                  targets[i].to(device))
            .backward();
      }
    }
    view.step(shares);
    ++steps;
  });
  return steps;
}

struct Result {
  std::string device;
  Score score;
  uint64_t hash;
  int64_t steps;
  std::vector<dp::MovedBytes> moved;  // by replica
};

template <class View>
Result run_view(const ServerJob& job, int count) {
  const auto replicas = make_replicas(job, count);
  View view({replicas.begin(), replicas.end()}, [&](const auto& parameters) {
    return job.make_optimizer(parameters);
  });
  const int64_t steps = train(job, replicas, view);
  auto& first = *replicas.front();
  return {first.parameters().front().device().str(),
          job.test(first),
          parameter_hash(first),
          steps,
          view.moved()};
}

void run(const ServerJobOptions& options, int count) {
  const ServerJob job(options);
  const auto server = run_view<LocalParameterServer>(job, count);
  const auto ranks = run_view<LocalAllReduce>(job, count);
  std::cout
      << format("%d replicas, the first on %s\n", count, server.device.c_str())
      << format("parameter server: test accuracy %s, parameters %016lx\n",
                to_text(server.score).c_str(),
                server.hash)
      << format("all-reduce:       test accuracy %s, parameters %016lx\n",
                to_text(ranks.score).c_str(),
                ranks.hash)
      << "bytes a step        parameter server             all-reduce\n"
      << "                    sent    received          sent    received\n";
  for (size_t i = 0; i < server.moved.size(); ++i) {
    const auto a = server.moved[i];
    const auto b = ranks.moved[i];
    std::cout << format("replica %-3zu %12ld%12ld  %12ld%12ld\n",
                        i,
                        a.sent / server.steps,
                        a.received / server.steps,
                        b.sent / ranks.steps,
                        b.received / ranks.steps);
  }
}

}  // namespace

int main(int argc, char** argv) {
  ServerJobOptions options;
  options.epochs = 6;
  options.batch_size = 64;
  int replicas = 4;
  CommandLine line("two_views",
                   "Trains replicas of a network on the digits in one process, "
                   "by a parameter server and by an all-reduce.");
  line.add("--replicas",
           replicas,
           "Replicas; each on a GPU where there are as many")
      .between(1, 1024);
  line.add("--epochs", options.epochs, "Passes over the digits").at_least(1);
  line.add("--batch-size", options.batch_size, "Images of a step").at_least(1);
  line.add("--data", options.data, "Folder with digits.csv");
  return line.run(argc, argv, [&] { run(options, replicas); });
}
