// Measures the cost of an all-reduce. Compares a ring all-reduce
// (reduce-scatter, then all-gather) written with point-to-point messages, the
// naive all-reduce (every rank sends everything to all others) and c10d's own
// all-reduce: bytes sent by each rank, results, times.
//
// Purpose: shows that with p ranks each rank sends 2(p - 1)/p of the data in
// the ring and p - 1 times the data in the naive all-reduce.
//
//   ddprun --nproc-per-node=4 ring_allreduce
//   ddprun --nproc-per-node=3 ring_allreduce --elements=1000003 --csv=cost.csv
#include <ddp/ddp.h>
#include <torch/types.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "samples/experiments/ring.h"
#include "samples/support/command_line.h"
#include "samples/support/devices.h"
#include "samples/support/socket_bytes.h"
#include "samples/support/spread.h"
#include "samples/support/stopwatch.h"
#include "samples/support/text.h"

namespace {

using namespace samples;

constexpr double kTolerance = 1e-5;
constexpr const char* kReference = "c10d";

struct Options {
  int64_t elements = 1'000'003;
  int64_t rounds = 5;
  std::string csv;
  DeviceOptions device;
};

// Measurements of one algorithm. Numbers are by rank, for one round.
struct Outcome {
  std::string name;
  torch::Tensor result;          // on this rank
  std::vector<int64_t> sent;     // payload bytes
  std::vector<int64_t> formula;  // expected payload bytes
  std::vector<int64_t> wire;     // bytes sent by the kernel, with a barrier's
  double milliseconds;           // median over the rounds, of the slowest rank
};

// Returns the numbers of all ranks.
std::vector<int64_t> gather(int64_t mine) {
  const auto all = torch::cat(ddp::all_gather(torch::tensor({mine})));
  const auto* numbers = all.const_data_ptr<int64_t>();
  return {numbers, numbers + all.numel()};
}

double slowest(double milliseconds) {
  const auto time = torch::tensor(milliseconds, torch::kFloat64);
  return ddp::reduce_tensor(time, ddp::Reduction::max).item<double>();
}

template <typename Reduce>
Outcome measure(const std::string& name,
                const torch::Tensor& input,
                int64_t rounds,
                int64_t elements_sent,
                const Reduce& reduce) {
  const auto group = ddp::process_group();
  auto result = input.clone();
  reduce(result, *group);  // connects the ranks
  std::vector<double> times;
  int64_t sent = 0;
  int64_t wire = 0;
  for (int64_t round = 0; round < rounds; ++round) {
    result.copy_(input);
    synchronize(ddp::local_device());
    ddp::barrier();
    wire = socket_bytes_sent();
    const Stopwatch time;
    sent = reduce(result, *group);
    synchronize(ddp::local_device());
    const double milliseconds = 1000 * time.seconds();
    ddp::barrier();  // all data have been sent
    wire = socket_bytes_sent() - wire;
    times.push_back(slowest(milliseconds));
  }
  const auto bytes = static_cast<int64_t>(input.element_size()) * elements_sent;
  return {name,
          result,
          gather(sent),
          gather(bytes),
          gather(wire),
          spread(times).median};
}

std::vector<Outcome> measure_all(const Options& options,
                                 const torch::Tensor& input) {
  const int64_t ranks = ddp::world_size();
  const int64_t elements = input.numel();
  const auto c10d = [](torch::Tensor& tensor, c10d::Backend&) {
    std::vector<torch::Tensor> tensors{tensor};
    ddp::process_group()->allreduce(tensors)->wait();
    return int64_t{0};  // c10d does not count
  };
  return {measure("ring",
                  input,
                  options.rounds,
                  ring_elements_sent(elements, ranks, ddp::rank()),
                  ring_allreduce),
          measure("naive",
                  input,
                  options.rounds,
                  (ranks - 1) * elements,
                  naive_allreduce),
          measure(kReference, input, options.rounds, 0, c10d)};
}

// Returns the greatest difference over all ranks, relative to the greatest sum.
double greatest_difference(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.numel() == 0) {
    return 0;
  }
  const auto scale = b.abs().max().clamp_min(1e-30);
  const auto difference = ((a - b).abs().max() / scale).to(torch::kFloat64);
  return ddp::reduce_tensor(difference, ddp::Reduction::max).item<double>();
}

void print_bytes(const Outcome& outcome, int64_t nbytes) {
  for (size_t rank = 0; rank < outcome.sent.size(); ++rank) {
    const double share = static_cast<double>(outcome.sent[rank]) /
                         static_cast<double>(std::max<int64_t>(nbytes, 1));
    print_on_first(
        format("%s: rank %zu sent %ld bytes, formula %ld, %.4f of the data; by "
               "its sockets %ld",
               outcome.name.c_str(),
               rank,
               outcome.sent[rank],
               outcome.formula[rank],
               share,
               outcome.wire[rank]));
  }
}

void print_all(const std::vector<Outcome>& outcomes,
               const torch::Tensor& input) {
  const auto nbytes = static_cast<int64_t>(input.nbytes());
  const int64_t ranks = ddp::world_size();
  print_on_first(
      format("%ld ranks over %s, %ld float32 each: %ld bytes of data",
             ranks,
             ddp::process_group()->getBackendName().c_str(),
             input.numel(),
             nbytes));
  for (const auto& outcome : outcomes) {
    if (outcome.name != kReference) {
      print_bytes(outcome, nbytes);
    }
  }
  print_on_first(
      format("formulas: ring 2(p-1)/p = %.4f of the data, naive p-1 = %ld",
             2.0 * static_cast<double>(ranks - 1) / static_cast<double>(ranks),
             ranks - 1));
}

void write_csv(const std::string& file, const std::vector<Outcome>& outcomes) {
  std::ofstream csv(file);
  csv << "algorithm,rank,bytes_sent,formula,socket_bytes,milliseconds\n";
  for (const auto& outcome : outcomes) {
    for (size_t rank = 0; rank < outcome.sent.size(); ++rank) {
      csv << outcome.name << ',' << rank << ',' << outcome.sent[rank] << ','
          << outcome.formula[rank] << ',' << outcome.wire[rank] << ','
          << outcome.milliseconds << '\n';
    }
  }
  csv.close();
  TORCH_CHECK(csv, "Expected to write ", file, ", but cannot.");
}

void run(const Options& options) {
  init_process_group(options.device);
  const auto random = ddp::seed_everything(0);
  const auto input =
      torch::rand({options.elements}, random).to(ddp::local_device());
  const auto outcomes = measure_all(options, input);
  const auto& truth = outcomes.back();
  print_all(outcomes, input);
  for (const auto& outcome : outcomes) {
    const double difference = greatest_difference(outcome.result, truth.result);
    print_on_first(
        format("%s: %.3f ms (median of %ld, slowest rank), greatest difference "
               "to c10d %.1e",
               outcome.name.c_str(),
               outcome.milliseconds,
               options.rounds,
               difference));
    TORCH_CHECK(difference < kTolerance,
                "Expected the sum of c10d from ",
                outcome.name,
                ", but got a relative difference of ",
                difference);
  }
  if (ddp::rank() == 0 && !options.csv.empty()) {
    write_csv(options.csv, outcomes);
  }
  ddp::destroy_process_group();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CommandLine line("ring_allreduce",
                   "Counts what an all-reduce sends: ring, naive, and c10d's.");
  line.add("--elements", options.elements, "float32 on each rank").at_least(0);
  line.add("--rounds", options.rounds, "Measurements of each").at_least(1);
  line.add("--csv", options.csv, "File for the numbers");
  add_device_options(line, options.device);
  return line.run(argc, argv, [&] { run(options); });
}
