// One training with DataParallel in one process and with
// DistributedDataParallel in several processes, one per replica. Both train the
// same model on the same batches of digits with the same split, and must end
// with the same parameters.
//
// Compares traffic, memory and time of each device. In every step,
// DataParallel sends the parameters to the replicas and the gradients back, all
// through its first device, which also holds the results, the gradients and the
// optimizer's state. All ranks of DistributedDataParallel have the same load
// and send only gradients.
//
//   scripts/bench dp_vs_ddp
//   scripts/bench dp_vs_ddp -- --replicas=8 --model=mlp --csv=costs.csv
//
// Each replica and each rank has its own GPU if there are enough GPUs,
// otherwise one CPU thread. (On the CPU, DataParallel's backward pass does not
// run the replicas in parallel; it processes them one after the other, with one
// thread per replica and at most one per core.) The two trainings alternate
// step by step, so that their times are comparable. Memory is measured at the
// end of the forward pass: temporary memory of the backward pass, such as the
// gradients of all replicas on DataParallel's first device, is not included.
#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <iostream>
#include <thread>

#include "samples/support/command_line.h"
#include "samples/support/spread.h"
#include "samples/support/text.h"
#include "test/bench/dp_vs_ddp/module_bytes.h"
#include "test/bench/dp_vs_ddp/ranks.h"
#include "test/bench/dp_vs_ddp/ways.h"

namespace {

using namespace ddp::bench;
using namespace samples;

struct Result {
  std::vector<DeviceCosts> costs;  // first the replicas, then the ranks
  std::vector<RankReport> ranks;
  std::vector<double> dp_times, ddp_times;  // seconds of each measured step
  // Greatest difference, relative to the parameter's greatest value.
  double difference;
};

// Returns a device for each replica.
std::vector<torch::Device> make_devices(const WaysOptions& options) {
  std::vector<torch::Device> devices(static_cast<size_t>(options.replicas),
                                     torch::kCPU);
  if (has_gpus(options)) {
    for (size_t i = 0; i < devices.size(); ++i) {
      devices[i] =
          torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(i));
    }
  }
  return devices;
}

Result train(const WaysOptions& options) {
  Ranks ranks(options);  // forks, so this process must have no threads yet
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

std::string traffic_text(const WaysOptions& options, const Result& result) {
  std::string text =
      "traffic between devices, bytes a step (DDP's sent and received are a "
      "ring's, 2(p-1)/p of what is all-reduced)\n" +
      traffic_table(result.costs);
  for (const auto& rank : result.ranks) {
    if (!has_gpus(options)) {  // NCCL may bypass sockets
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

void print(const WaysOptions& options, const Result& result) {
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

// torch::chunk, which splits the batches, may return fewer chunks than
// replicas; refuse such a batch size.
void check(const WaysOptions& options) {
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

void run(const WaysOptions& options) {
  check(options);
  const Result result = train(options);
  print(options, result);
  if (!options.csv.empty()) {
    write_csv(options.csv, result.costs);
  }
}

}  // namespace

int main(int argc, char** argv) {
  WaysOptions options;
  CommandLine line("bench_dp_vs_ddp",
                   "Trains one network by DataParallel and by "
                   "DistributedDataParallel, and shows what each costs.");
  line.add("--replicas",
           options.replicas,
           "Replicas and ranks; each on a GPU where there are as many")
      .between(1, 64);
  line.add("--steps", options.steps, "Steps to measure").between(1, 1 << 20);
  add_digits_training_options(line, options.training);
  line.add("--no-cuda", options.no_cuda, "Compute on the CPU");
  line.add("--csv", options.csv, "File for the bytes (scripts/plot)");
  return line.run(argc, argv, [&] { run(options); });
}
