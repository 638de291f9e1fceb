// An uneven split of the batch.
//
// Purpose: the first device also holds the gathered results and the optimizer,
// so it may process fewer rows (chunk_sizes). It then computes for a shorter
// time and needs less memory, but sends and receives more, because more rows
// are on other devices. The gradients still equal the gradients of the plain
// module. The images are random, so nothing is learnt. Replicas on the CPU
// share its cores, so their times are not meaningful.
//
//   uneven_split
//   uneven_split --chunk-sizes 8,28,28
//   uneven_split --devices cuda:0,cuda:1 --chunk-sizes 24,40
#include <dp/data_parallel.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <iostream>

#include "samples/support/command_line.h"
#include "samples/support/devices.h"
#include "samples/support/first_device_memory.h"
#include "samples/support/gradients.h"
#include "samples/support/models.h"
#include "samples/support/replica_traffic.h"
#include "samples/support/stopwatch.h"
#include "samples/support/text.h"

namespace {

using namespace samples;

constexpr ImageShape kShape{3, 32, 32};
constexpr int64_t kClasses = 10;
constexpr int64_t kImageBytes = 3 * 32 * 32 * sizeof(float);

struct Options {
  std::vector<std::string> devices;
  int64_t batch_size = 64;
  std::vector<int64_t> chunk_sizes;
  int64_t steps = 10;
};

// Result of a replica. The scores are gathered; the time is not, because it is
// not a tensor.
struct Output {
  torch::Tensor scores;
  double seconds;
};

auto tensor_fields(const Output& output) {
  return std::tie(output.scores);
}

// A network that measures its time and memory.
class TimedNet : public torch::nn::Module {
 public:
  TimedNet(FirstDeviceMemory& memory, bool is_first)
      : net_(std::make_shared<SmallCnn>(kShape, kClasses)),
        memory_(memory),
        is_first_(is_first) {
    register_module("net", net_);
  }

  Output forward(const torch::Tensor& images) {
    const auto scope = memory_.scope(is_first_);
    synchronize(images.device());
    if (is_first_) {
      memory_.reset();  // excludes the memory for copying the parameters
    }
    const Stopwatch time;
    const auto scores = net_->forward(images);
    synchronize(images.device());
    return {scores, time.seconds()};
  }

 private:
  std::shared_ptr<SmallCnn> net_;
  FirstDeviceMemory& memory_;
  bool is_first_;
};

using Model = dp::DataParallel<TimedNet>;

struct Batch {
  torch::Tensor images, labels;
};

// Measurements of one split. Vectors are by replica.
struct Split {
  std::vector<int64_t> rows;
  std::vector<double> seconds;  // minimum of forward; 0: no rows
  // Traffic between the first device and all others, in one step.
  dp::ReplicaTraffic others{torch::kCPU};
  int64_t memory = 0;  // peak of forward, on the first device
  std::vector<torch::Tensor> gradients;
};

void backward(const torch::Tensor& scores, const Batch& batch) {
  torch::cross_entropy_loss(scores, batch.labels.to(scores.device()))
      .backward();
}

// Measures one step, except for times.
Split measure_step(Model& model,
                   const Batch& batch,
                   FirstDeviceMemory& memory) {
  Split split;
  model->zero_grad();
  model->reset_traffic();
  const auto scores = model->forward(batch.images).scores;
  split.memory = memory.peak();
  backward(scores, batch);
  for (const auto& replica : model->traffic()) {
    split.rows.push_back(replica.input_bytes / kImageBytes);
  }
  split.others = sum_of_others(model->traffic());
  split.gradients = copy_gradients(*model->module());
  return split;
}

// Measures the minimum time over `passes` passes of each replica that has rows.
void measure_times(Model& model,
                   const torch::Tensor& images,
                   int64_t passes,
                   Split& split) {
  const torch::NoGradGuard no_grad;
  split.seconds.assign(split.rows.size(), 0);
  for (int64_t pass = 0; pass < passes; ++pass) {
    size_t part = 0;
    const auto outputs = model->forward_each(images);
    for (size_t i = 0; i < split.rows.size(); ++i) {
      if (split.rows[i] > 0) {
        const double seconds = outputs[part++].seconds;
        split.seconds[i] =
            pass == 0 ? seconds : std::min(split.seconds[i], seconds);
      }
    }
  }
}

Split measure(const std::shared_ptr<TimedNet>& net,
              const dp::DataParallelOptions& options,
              const Batch& batch,
              int64_t passes,
              FirstDeviceMemory& memory) {
  Model model(net, options);
  // The first step allocates permanent memory.
  measure_step(model, batch, memory);
  auto split = measure_step(model, batch, memory);
  measure_times(model, batch.images, passes, split);
  return split;
}

// Half as many images for the first device as for each other.
std::vector<int64_t> relieve_first(int64_t images, size_t devices) {
  const auto others = static_cast<int64_t>(devices) - 1;
  const int64_t shares = 2 * others + 1;
  const int64_t first = (images + shares / 2) / shares;
  std::vector<int64_t> sizes{first};
  for (int64_t i = 0; i < others; ++i) {
    sizes.push_back((images - first + others - 1 - i) / others);
  }
  return sizes;
}

void print(const Split& even, const Split& uneven) {
  std::cout
      << format("%-20s%16s%26s\n", "", "images", "forward, ms")
      << format(
             "%-20s%8s%8s%16s%10s\n", "", "even", "uneven", "even", "uneven");
  for (size_t i = 0; i < even.rows.size(); ++i) {
    std::cout << format("replica %-12zu%8ld%8ld%16.2f%10.2f\n",
                        i,
                        even.rows[i],
                        uneven.rows[i],
                        1000 * even.seconds[i],
                        1000 * uneven.seconds[i]);
  }
  const auto row = [](const char* name, int64_t a, int64_t b) {
    std::cout << format("%-36s%12ld%12ld\n", name, a, b);
  };
  std::cout << format(
      "%-36s%12s%12s\n", "first device, bytes in a step", "even", "uneven");
  row("inputs sent", even.others.input_bytes, uneven.others.input_bytes);
  row("outputs received", even.others.output_bytes, uneven.others.output_bytes);
  row("parameters sent", even.others.state_bytes, uneven.others.state_bytes);
  row("gradients received",
      even.others.gradient_bytes,
      uneven.others.gradient_bytes);
  row("memory of forward, at most", even.memory, uneven.memory);
}

void run(const Options& given) {
  const auto devices = devices_or_several(given.devices, gpu_count());
  // Constructed before all measured allocations.
  FirstDeviceMemory memory(devices.front());
  torch::manual_seed(0);
  const Batch batch{
      torch::randn({given.batch_size, 3, 32, 32}),
      torch::randint(kClasses, {given.batch_size}, torch::kInt64)};
  const auto net = std::make_shared<TimedNet>(memory, true);
  net->to(devices.front());
  net->eval();  // no dropout: every split must have the same gradients

  backward(net->forward(batch.images.to(devices.front())).scores, batch);
  const auto plain = copy_gradients(*net);

  const auto options = dp::DataParallelOptions().devices(devices).make_replica(
      [&] { return std::make_shared<TimedNet>(memory, false); });
  const auto even_split = measure(net, options, batch, given.steps, memory);
  const auto uneven_split =
      measure(net,
              dp::DataParallelOptions(options).chunk_sizes(
                  given.chunk_sizes.empty()
                      ? relieve_first(given.batch_size, devices.size())
                      : given.chunk_sizes),
              batch,
              given.steps,
              memory);
  std::cout << format("%ld images a step on %s\n",
                      given.batch_size,
                      c10::Join(", ", devices).c_str());
  print(even_split, uneven_split);
  std::cout << format(
      "gradients: difference from the plain module's %.1e even, %.1e uneven\n",
      relative_difference(even_split.gradients, plain),
      relative_difference(uneven_split.gradients, plain));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CommandLine line(
      "uneven_split",
      "Splits a batch evenly and unevenly among replicas, and compares.");
  add_devices_option(line,
                     options.devices,
                     "all GPUs where there are two or more, else the CPU three "
                     "times");
  line.add("--batch-size", options.batch_size, "Images of a step")
      .between(1, 1 << 14);
  line.add("--chunk-sizes",
           options.chunk_sizes,
           "Images for each replica: 8,28,28 (the first half as many as "
           "another)");
  line.add("--steps", options.steps, "Passes that are timed")
      .between(1, 1 << 14);
  return line.run(argc, argv, [&] { run(options); });
}
