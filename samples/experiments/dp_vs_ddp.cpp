// One training, by DataParallel in one process and by DistributedDataParallel
// in as many processes as that has replicas: the same model on the same batches
// of digits, each cut alike, until both have the same parameters. What one
// learns: what each device sends, holds and takes in time. DataParallel sends
// the parameters out and the gradients back in every step, all through its
// first device, which also holds the results, the gradients and the optimizer's
// state. The ranks of DistributedDataParallel are alike, and send gradients
// alone.
//
//   dp_vs_ddp
//   dp_vs_ddp --replicas=8 --model=mlp --momentum=0.9 --csv=costs.csv
//
// Each replica and each rank has a GPU where there are as many, else one thread
// of the CPU. (There DataParallel's backward pass has no threads for its
// replicas; it uses as many, at most the cores, for one after the other.) The
// two take turns, step by step, so that their times compare. Memory is that at
// the end of the forward pass: what the backward pass needs for a while, as the
// gradients of all replicas on DataParallel's first device, is not in it.
#include <ATen/Parallel.h>
#include <ddp/ddp.h>
#include <dp/data_parallel.h>
#include <torch/cuda.h>
#include <torch/types.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <thread>

#include "samples/support/command_line.h"
#include "samples/support/counting_backend.h"
#include "samples/support/device_costs.h"
#include "samples/support/digits_training.h"
#include "samples/support/evaluate.h"
#include "samples/support/fork_store.h"
#include "samples/support/held_bytes.h"
#include "samples/support/parameter_bytes.h"
#include "samples/support/parameter_hash.h"
#include "samples/support/program.h"
#include "samples/support/socket_bytes.h"
#include "samples/support/spread.h"
#include "samples/support/text.h"

namespace {

using namespace samples;
using Devices = std::vector<torch::Device>;
using std::chrono::milliseconds;

// In the first, replicas get their threads and ranks their buckets; in the
// second, memory is counted. The steps after them are measured.
constexpr int64_t kWarmUps = 2;
constexpr std::chrono::minutes kTurnPatience{30};
constexpr milliseconds kLook{10};
constexpr std::chrono::minutes kEndPatience{1};
constexpr const char* kParameters = "parameters";

struct Options {
  int replicas = 4;
  int64_t steps = 20;
  bool no_cuda = false;
  std::string csv;
  DigitsTrainingOptions training;

  int64_t all_steps() const { return kWarmUps + steps; }
};

bool has_gpus(const Options& options) {
  return !options.no_cuda &&
         static_cast<int>(torch::cuda::device_count()) >= options.replicas;
}

// Either model's step.
template <typename Model>
double make_step(DigitsTraining& training,
                 Model& model,
                 int64_t number,
                 const DigitsTraining::Batch& batch,
                 double weight) {
  const auto forward = [&](const auto& images) {
    return model->forward(images);
  };
  return number == kWarmUps - 1 ? training.metered_step(forward, batch, weight)
                                : training.step(forward, batch, weight);
}

// One process, a replica on each device.
class DataParallelWay {
 public:
  DataParallelWay(const Options& options, const Devices& devices)
      : steps_(options.steps),
        training_(options.training, devices),
        replicas_{training_.network()},
        model_(training_.network(),
               dp::DataParallelOptions().devices(devices).make_replica(
                   [this] { return add_replica(); })) {}
  DataParallelWay(const DataParallelWay&) = delete;
  DataParallelWay& operator=(const DataParallelWay&) = delete;

  double step(int64_t number) {
    if (number == kWarmUps) {
      model_->reset_traffic();
    }
    return make_step(training_, model_, number, training_.batch(number), 1);
  }

  std::vector<DeviceCosts> costs() const {
    auto rows = dp_costs(model_->traffic(), steps_);
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].parameters = state_bytes(*replicas_[i]);
      rows[i].gradient_storage = gradient_bytes(*replicas_[i]);
      rows[i].activations = training_.activation_bytes(i);
    }
    rows[0].optimizer_state = state_bytes(training_.optimizer());
    rows[0].results = training_.result_bytes();
    return rows;
  }

  const Classifier& network() const { return *training_.network(); }

 private:
  std::shared_ptr<Classifier> add_replica() {
    replicas_.push_back(training_.make_network(replicas_.size()));
    return replicas_.back();
  }

  int64_t steps_;
  DigitsTraining training_;
  std::vector<std::shared_ptr<Classifier>> replicas_;
  dp::DataParallel<Classifier> model_;
};

// What a rank tells in the end; the bytes are those of one step, if not said
// otherwise.
struct RankReport {
  DeviceCosts costs;
  int64_t sent_by_sockets;
  int64_t broadcast;
  int64_t broadcast_before;  // of all that came before the measured steps
  uint64_t parameter_hash;
};

// One of as many processes.
class DistributedWay {
 public:
  explicit DistributedWay(const Options& options)
      : options_(options),
        training_(options.training, {ddp::local_device()}),
        counted_(c10::make_intrusive<CountingBackend>(ddp::process_group())),
        model_(training_.network(),
               ddp::DistributedDataParallelOptions().process_group(counted_)) {}

  double step(int64_t number) {
    if (number == kWarmUps) {
      broadcast_before_ = counted_->take_collective_bytes().broadcast;
    }
    const auto [part, weight] = part_of(training_.batch(number));
    ddp::barrier();
    const int64_t before = bytes_sent_by_sockets();
    const double seconds = make_step(training_, model_, number, part, weight);
    ddp::barrier();  // all has been sent
    if (number >= kWarmUps) {
      sent_by_sockets_ += bytes_sent_by_sockets() - before;
    }
    return seconds;
  }

  RankReport report() {
    const auto bytes = counted_->take_collective_bytes();
    DeviceCosts costs;
    costs.way = Way::ddp;
    costs.device = ddp::rank();
    costs.all_reduce = bytes.all_reduce / options_.steps;
    costs.sent = ring_bytes(costs.all_reduce, ddp::world_size());
    costs.received = costs.sent;
    costs.parameters = state_bytes(*training_.network());
    costs.gradient_storage = gradient_bytes(*training_.network());
    costs.optimizer_state = state_bytes(training_.optimizer());
    costs.activations = training_.activation_bytes(0);
    costs.results = training_.result_bytes();
    return {costs,
            sent_by_sockets_ / options_.steps,
            bytes.broadcast / options_.steps,
            broadcast_before_,
            parameter_hash(*training_.network())};
  }

  const Classifier& network() const { return *training_.network(); }

 private:
  // The chunk of the batch that the replica with this rank's number gets from
  // DataParallel. Ranks' gradients are averaged, so a smaller chunk weighs
  // less.
  static std::pair<DigitsTraining::Batch, double> part_of(
      const DigitsTraining::Batch& batch) {
    const int64_t ranks = ddp::world_size();
    const auto rank = static_cast<size_t>(ddp::rank());
    DigitsTraining::Batch part{batch.data.chunk(ranks)[rank],
                               batch.target.chunk(ranks)[rank]};
    const double share = static_cast<double>(part.data.size(0)) /
                         static_cast<double>(batch.data.size(0));
    return {std::move(part), share * static_cast<double>(ranks)};
  }

  Options options_;
  DigitsTraining training_;
  c10::intrusive_ptr<CountingBackend> counted_;
  ParallelClassifier model_;
  int64_t broadcast_before_ = 0;
  int64_t sent_by_sockets_ = 0;
};

std::string turn_key(int64_t step) {
  return format("turn %ld", step);
}

std::string time_key(int64_t step, int rank) {
  return format("time of step %ld on rank %d", step, rank);
}

std::string report_key(int rank) {
  return format("report of rank %d", rank);
}

// What every rank does: a step whenever it is its turn.
void run_rank(const Options& options, const ForkStore& shared, int rank) {
  at::set_num_threads(1);
  DeviceOptions device;
  device.no_cuda = !has_gpus(options);
  ddp::init_process_group(
      process_group_options(device,
                            ddp::WorkerEnv::read(),
                            static_cast<int>(torch::cuda::device_count())));
  {
    const auto store = shared.open();
    DistributedWay way(options);
    for (int64_t step = 0; step < options.all_steps(); ++step) {
      store->wait({turn_key(step)}, kTurnPatience);
      put(*store, time_key(step, rank), way.step(step));
    }
    if (rank == 0) {
      store->set(kParameters, parameter_bytes(way.network()));
    }
    put(*store, report_key(rank), way.report());
  }
  ddp::destroy_process_group();
}

// The ranks, seen from the process that has started them.
class Ranks {
 public:
  explicit Ranks(const Options& options)
      : count_(options.replicas),
        processes_([&](int rank) { run_rank(options, shared_, rank); },
                   options.replicas),
        store_(shared_.open()) {}

  // Lets them make a step; returns the seconds of the slowest.
  double step(int64_t number) {
    put(*store_, turn_key(number), number);
    double slowest = 0;
    for (int rank = 0; rank < count_; ++rank) {
      slowest = std::max(slowest, take<double>(time_key(number, rank)));
    }
    return slowest;
  }

  // Their reports, once they have ended.
  std::vector<RankReport> end() {
    std::vector<RankReport> reports;
    for (int rank = 0; rank < count_; ++rank) {
      reports.push_back(take<RankReport>(report_key(rank)));
    }
    TORCH_CHECK(processes_.join(kEndPatience),
                "Expected the ranks to end after the last step, but they run "
                "on.");
    return reports;
  }

  std::vector<uint8_t> parameters() { return store_->get(kParameters); }

 private:
  // Waits for the key, and throws what a rank has thrown.
  template <typename T>
  T take(const std::string& key) {
    while (!store_->check({key})) {
      TORCH_CHECK(!processes_.join(kLook) || store_->check({key}),
                  "Expected the ",
                  key,
                  ", but the ranks have ended.");
    }
    return get<T>(*store_, key);
  }

  int count_;
  ForkStore shared_;
  ddp::SpawnContext processes_;
  c10::intrusive_ptr<c10d::Store> store_;
};

struct Result {
  std::vector<DeviceCosts> costs;  // replicas, then ranks
  std::vector<RankReport> ranks;
  std::vector<double> dp_times, ddp_times;  // seconds of each measured step
  double difference;  // greatest, to the greatest value of the same parameter
};

// A device for each replica.
Devices make_devices(const Options& options) {
  Devices devices(static_cast<size_t>(options.replicas), torch::kCPU);
  if (has_gpus(options)) {
    for (size_t i = 0; i < devices.size(); ++i) {
      devices[i] =
          torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(i));
    }
  }
  return devices;
}

Result train(const Options& options) {
  Ranks ranks(options);  // forks: this process has no threads yet
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  at::set_num_threads(std::clamp(cores, 1, options.replicas));
  DataParallelWay way(options, make_devices(options));
  Result result;
  for (int64_t step = 0; step < options.all_steps(); ++step) {
    const double dp = way.step(step);
    const double ddp = ranks.step(step);
    if (step >= kWarmUps) {
      result.dp_times.push_back(dp);
      result.ddp_times.push_back(ddp);
    }
  }
  result.ranks = ranks.end();
  result.difference = greatest_difference(way.network(), ranks.parameters());
  result.costs = way.costs();
  for (const auto& report : result.ranks) {
    result.costs.push_back(report.costs);
  }
  return result;
}

std::string traffic_text(const Options& options, const Result& result) {
  std::string text =
      "traffic between devices, bytes a step (DDP's sent and received are a "
      "ring's, 2(p-1)/p of what is all-reduced)\n" +
      traffic_table(result.costs);
  for (const auto& rank : result.ranks) {
    if (!has_gpus(options)) {  // NCCL goes other ways than sockets
      text += format("DDP %ld: its sockets sent %ld bytes a step\n",
                     rank.costs.device,
                     rank.sent_by_sockets);
    }
  }
  const auto& first = result.ranks.front();
  return text + format("DDP broadcasts %ld bytes at the start, %ld a step\n",
                       first.broadcast_before,
                       first.broadcast);
}

std::string time_text(const Result& result) {
  std::vector<double> dp, ddp, ratios;
  for (size_t i = 0; i < result.dp_times.size(); ++i) {
    dp.push_back(1000 * result.dp_times[i]);
    ddp.push_back(1000 * result.ddp_times[i]);
    ratios.push_back(dp.back() / ddp.back());
  }
  return format(
      "time of a step, median [quartiles] of %zu taken in turns: DP %s ms, DDP "
      "%s ms (slowest rank), DP / DDP %s\n",
      ratios.size(),
      to_text(spread(dp), 2).c_str(),
      to_text(spread(ddp), 2).c_str(),
      to_text(spread(ratios), 3).c_str());
}

void print(const Options& options, const Result& result) {
  const auto& ranks = result.ranks;
  const bool are_equal =
      std::all_of(ranks.begin(), ranks.end(), [&](const auto& rank) {
        return rank.parameter_hash == ranks.front().parameter_hash;
      });
  std::cout << format(
                   "%d replicas and %d ranks on the %s: %s, batches of %ld "
                   "digits\n\n",
                   options.replicas,
                   options.replicas,
                   has_gpus(options) ? "GPUs" : "CPU",
                   options.training.model.c_str(),
                   options.training.batch_size)
            << traffic_text(options, result)
            << "\nmemory, bytes that a device holds when the loss of a step is "
               "there (gradients: at the optimizer's step)\n"
            << memory_table(result.costs) << '\n'
            << time_text(result)
            << format(
                   "parameters after %ld steps: ranks %s, greatest relative "
                   "difference of DP and DDP %.1e\n",
                   options.all_steps(),
                   are_equal ? "equal bit for bit" : "NOT EQUAL",
                   result.difference);
}

// torch::chunk, which cuts batches, makes fewer parts where it must.
void check(const Options& options) {
  const int64_t rows =
      (options.training.batch_size + options.replicas - 1) / options.replicas;
  TORCH_CHECK(rows * (options.replicas - 1) < options.training.batch_size,
              "Expected a --batch-size of which each of ",
              options.replicas,
              " replicas gets a part, but got ",
              options.training.batch_size,
              " in parts of ",
              rows,
              ". Take a multiple of ",
              options.replicas,
              ".");
}

void run(const Options& options) {
  check(options);
  const Result result = train(options);
  print(options, result);
  if (!options.csv.empty()) {
    write_csv(options.csv, result.costs);
  }
}

void add_options(CLI::App& app, Options& options) {
  const auto positive = CLI::Range(int64_t{1}, int64_t{1} << 20);
  app.option_defaults()->always_capture_default();
  app.add_option("--replicas",
                 options.replicas,
                 "Replicas and ranks; each on a GPU where there are as many")
      ->check(CLI::Range(1, 64));
  app.add_option("--steps", options.steps, "Steps to measure")->check(positive);
  add_digits_training_options(app, options.training);
  app.add_flag("--no-cuda", options.no_cuda, "Compute on the CPU");
  app.add_option("--csv", options.csv, "File for the bytes (scripts/plot)");
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Trains one network by DataParallel and by DistributedDataParallel, and "
      "shows what each costs.",
      "dp_vs_ddp");
  add_options(app, options);
  if (const auto code = parse_command_line(app, argc, argv)) {
    return *code;
  }
  return run_program("dp_vs_ddp", [&] { run(options); });
}
