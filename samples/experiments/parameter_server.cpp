// SGD with parameter servers, on the digits.
//
// Purpose: rank 0 (or the first --servers ranks) holds the parameters and the
// optimizer; the other ranks compute gradients.
//
// Synchronous: a step averages the gradients of all workers, each for a part of
// the batch, so the training equals a training with DistributedDataParallel,
// which --compare-ddp checks. The difference is the traffic: it passes through
// the servers instead of around a ring.
//
// Asynchronous: a server applies each worker's gradients on arrival, so no
// worker waits for a slow one. In the meantime other workers may have updated
// the parameters from which the gradients were computed. The number of these
// updates is the staleness. Its histogram is printed, and it can be bounded:
// with a bound of 0 the workers take turns. A worker may die; the others
// finish.
//
//   ddprun --nproc-per-node=3 parameter_server
//   ddprun --nproc-per-node=4 parameter_server --servers 2 --compare-ddp
//   ddprun --nproc-per-node=4 parameter_server --mode async
//   ddprun --nproc-per-node=4 parameter_server --mode async --slow-worker 50
//   --staleness-bound 16
#include <ddp/ddp.h>
#include <dp/parameter_server.h>
#include <torch/data/dataloader.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>

#include "samples/support/command_line.h"
#include "samples/support/datasets.h"
#include "samples/support/models.h"
#include "samples/support/schedule.h"
#include "samples/support/score.h"
#include "samples/support/text.h"

namespace {

using namespace samples;

const std::map<std::string, dp::UpdateMode> kModes{
    {"sync", dp::UpdateMode::synchronous},
    {"async", dp::UpdateMode::asynchronous}};

struct Options {
  dp::UpdateMode mode = dp::UpdateMode::synchronous;
  int servers = 1;
  std::optional<int64_t> epochs;
  int64_t batch_size = 32;  // images per worker and step
  double learning_rate = 0.05;
  std::optional<double> momentum;
  std::string csv;  // file for the updates; empty: none
  bool compares = false;
  int64_t staleness_bound = 8;
  int64_t slow_worker = 0;  // milliseconds that the last worker sleeps per step
  int64_t log_every = 0;

  bool is_async() const { return mode == dp::UpdateMode::asynchronous; }
};

// The digits and a network for them. Both are the same on every rank.
class Job {
 public:
  explicit Job(const Options& options)
      : options_(options),
        epochs_(options.epochs.value_or(options.is_async() ? 15 : 10)),
        dataset_(load_digits(find_digits())),
        network_(make_network()) {}

  const Options& options() const { return options_; }
  const std::shared_ptr<Classifier>& network() const { return network_; }
  int64_t epochs() const { return epochs_; }

  // Returns a network with the initial parameters of `network()`.
  std::shared_ptr<Classifier> make_network() const {
    torch::manual_seed(0);
    return make_model(ModelKind::small_cnn, dataset_);
  }

  std::unique_ptr<torch::optim::Optimizer> make_optimizer(
      const std::vector<torch::Tensor>& parameters) const {
    // Stale gradients act like momentum themselves.
    const double momentum =
        options_.momentum.value_or(options_.is_async() ? 0.5 : 0.9);
    return std::make_unique<torch::optim::SGD>(
        parameters,
        torch::optim::SGDOptions(options_.learning_rate).momentum(momentum));
  }

  // Returns the number of steps that one of `workers` workers makes.
  int64_t steps(int workers) const {
    const auto images = static_cast<int64_t>(*dataset_.train.size());
    const int64_t share = (images + workers - 1) / workers;
    return epochs_ * ((share + options_.batch_size - 1) / options_.batch_size);
  }

  // Calls `train` with each batch of one worker, and `end` after each epoch
  // with the number of epochs done. Every call starts dropout from the same
  // random state.
  void run(
      int worker,
      int workers,
      const std::function<void(const torch::data::Example<>&)>& train,
      const std::function<void(int64_t)>& end = [](int64_t) {}) const {
    ddp::DistributedSampler sampler(
        *dataset_.train.size(),
        ddp::DistributedSamplerOptions().num_replicas(workers).rank(worker));
    auto loader = torch::data::make_data_loader(
        dataset_.train, sampler, options_.batch_size);
    torch::manual_seed(1 + static_cast<uint64_t>(worker));
    for (int64_t epoch = 0; epoch < epochs_; ++epoch) {
      sampler.set_epoch(epoch);
      for (const auto& batch : *loader) {
        train(batch);
      }
      end(epoch + 1);
    }
  }

  std::string test(Classifier& network) const {
    return "test accuracy " + to_text(classify(network, dataset_.test));
  }

 private:
  const Options& options_;
  int64_t epochs_;
  Dataset dataset_;
  std::shared_ptr<Classifier> network_;
};

// Returns the loss of a batch. `model` is the network or a wrapper of it.
template <typename Model>
torch::Tensor loss_of(Model& model, const torch::data::Example<>& batch) {
  model.train();
  return torch::cross_entropy_loss(model.forward(batch.data), batch.target);
}

std::string to_text(const dp::MovedBytes& moved) {
  constexpr double kMiB = 1024 * 1024;
  return format("%.1f MiB sent, %.1f MiB received",
                static_cast<double>(moved.sent) / kMiB,
                static_cast<double>(moved.received) / kMiB);
}

// Prints a line for each staleness: the number of updates with it, and a bar.
void print_staleness(const std::vector<int64_t>& counts) {
  constexpr double kBarWidth = 50;
  const auto most = static_cast<double>(
      std::max<int64_t>(*std::max_element(counts.begin(), counts.end()), 1));
  for (size_t staleness = 0; staleness < counts.size(); ++staleness) {
    const int64_t count = counts[staleness];
    const double length = static_cast<double>(count) / most * kBarWidth;
    print(format("staleness %3zu: %6ld ", staleness, count) +
          std::string(static_cast<size_t>(std::lround(length)), '#'));
  }
}

void write_csv(const std::string& file,
               const std::vector<dp::Update>& updates) {
  std::ofstream out(file);
  out << "update,worker,staleness,loss\n";
  for (const auto& update : updates) {
    out << format("%ld,%d,%ld,%.6g\n",
                  update.number,
                  update.worker,
                  update.staleness,
                  update.loss);
  }
  TORCH_CHECK(out.flush(), "Expected to write ", file, ", but could not.");
}

void serve(const Job& job, dp::ParameterServerOptions servers) {
  const auto& options = job.options();
  const int workers = ddp::world_size() - options.servers;
  const int64_t total = job.steps(workers) * (options.is_async() ? workers : 1);
  std::vector<dp::Update> updates;
  servers.before_update([&](const dp::Update& update,
                            torch::optim::Optimizer& optimizer) {
    updates.push_back(update);
    set_learning_rate(optimizer, options.learning_rate, update.number, total);
  });
  const auto report = dp::serve(
      *job.network(),
      [&](const auto& parameters) { return job.make_optimizer(parameters); },
      servers);
  if (ddp::rank() == 0) {
    if (options.is_async()) {
      print_staleness(report.staleness);
    }
    if (!options.csv.empty()) {
      write_csv(options.csv, updates);
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

void work(const Job& job, const dp::ParameterServerOptions& servers) {
  const auto& options = job.options();
  auto& network = *job.network();
  dp::ParameterClient client(job.network(), servers);
  const int number = client.worker();
  const bool is_slow = number == client.workers() - 1;
  int64_t step = 0;
  job.run(
      number,
      client.workers(),
      [&](const auto& batch) {
        client.pull();
        network.zero_grad();
        const auto loss = loss_of(network, batch);
        loss.backward();
        if (is_slow) {
          std::this_thread::sleep_for(
              std::chrono::milliseconds(options.slow_worker));
        }
        client.push(loss.template item<double>());
        if (options.log_every > 0 && ++step % options.log_every == 0) {
          print(format("worker %d: step %ld of %ld",
                       number,
                       step,
                       job.steps(client.workers())));
        }
      },
      [&](int64_t epoch) {
        if (!options.is_async()) {
          client.pull();  // receives the epoch's last update
          if (number == 0) {
            print(format("epoch %ld/%ld: ", epoch, job.epochs()) +
                  job.test(network));
          }
        }
      });
  client.finish();
  print(format("worker %d: %s, %s",
               number,
               job.test(network).c_str(),
               to_text(client.moved()).c_str()));
}

// Trains with all-reduce instead, from the same parameters and on the same
// batches.
std::shared_ptr<Classifier> train_by_ddp(
    const Job& job, const c10::intrusive_ptr<c10d::Backend>& workers) {
  const auto network = job.make_network();
  ddp::DistributedDataParallel model(
      network, ddp::DistributedDataParallelOptions().process_group(workers));
  const auto optimizer = job.make_optimizer(network->parameters());
  int64_t step = 0;
  job.run(workers->getRank(), workers->getSize(), [&](const auto& batch) {
    set_learning_rate(*optimizer,
                      job.options().learning_rate,
                      step++,
                      job.steps(workers->getSize()));
    optimizer->zero_grad();
    loss_of(*model, batch).backward();
    optimizer->step();
  });
  return network;
}

void compare(const Job& job) {
  std::vector<int> ranks(ddp::world_size() - job.options().servers);
  std::iota(ranks.begin(), ranks.end(), job.options().servers);
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
    const auto served = job.network()->named_parameters()[item.key()];
    difference = std::max(difference,
                          (served - item.value()).abs().max().item<double>());
    bytes += static_cast<double>(item.value().nbytes());
  }
  const double count = workers->getSize();
  print("DistributedDataParallel: " + job.test(*network));
  print(format("largest difference of a parameter: %g", difference));
  print(format(
      "a ring all-reduce would send and receive %.1f MiB on each worker",
      2 * (count - 1) / count * bytes *
          static_cast<double>(job.steps(workers->getSize())) / (1024 * 1024)));
}

void run(const Options& options) {
  TORCH_CHECK(!options.compares || !options.is_async(),
              "Expected --compare-ddp only with --mode sync.");
  ddp::init_process_group(ddp::ProcessGroupOptions().backend("gloo"));
  const Job job(options);
  const auto servers = dp::ParameterServerOptions()
                           .servers(options.servers)
                           .mode(options.mode)
                           .staleness_bound(options.staleness_bound);
  dp::is_server(servers) ? serve(job, servers) : work(job, servers);
  if (options.compares) {
    compare(job);
  }
  ddp::destroy_process_group();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CommandLine line("parameter_server",
                   "Trains on the digits by SGD with parameter servers: ddprun "
                   "--nproc-per-node=3 parameter_server.");
  line.choose("--mode",
              options.mode,
              kModes,
              "sync (the default): a step averages the gradients of all "
              "workers; async: each worker's gradients are a step");
  line.add("--servers", options.servers, "Ranks that serve; the others work")
      .between(1, 1 << 20);
  line.add("--epochs", options.epochs, "Passes over the digits (10; async 15)")
      .at_least(1);
  line.add("--batch-size",
           options.batch_size,
           "Images of one worker in one step")
      .at_least(1);
  line.add("--lr",
           options.learning_rate,
           "Learning rate at the start, from where it falls to 0 along a "
           "cosine")
      .above_zero();
  line.add("--momentum", options.momentum, "Momentum of SGD (0.9; async 0.5)")
      .between(0, 1);
  line.add("--csv",
           options.csv,
           "File for the updates that rank 0 makes (scripts/plot)");
  line.add("--compare-ddp",
           options.compares,
           "Train by DistributedDataParallel, too, and compare");
  line.add("--staleness-bound",
           options.staleness_bound,
           "Updates that may come between an async worker's pull and its own")
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
