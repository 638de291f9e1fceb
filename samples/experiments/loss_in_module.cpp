// The loss inside the module.
//
// Purpose: shows the cost of gathering large outputs, here class scores for
// each pixel. All scores are copied to the first device, and the loss is
// computed there. If forward takes the labels as well and returns the loss,
// each device computes the loss of its own part and returns four bytes. The
// gradients are the same; the program prints both forms side by side.
//
// The returned losses must be averaged correctly. Without an aggregate, the
// replicas' losses become a vector, with a warning. The mean of the vector is
// the loss of the batch only if all parts have the same number of rows: of 16
// images, three replicas process 6, 6 and 4. dp::mean weights each loss by its
// rows, so the gradients equal the gradients of the whole batch. This holds for
// a loss that is the mean over all rows. A loss that ignores some targets
// (ignore_index) must instead return its sum and its count; sum both with
// dp::sum and divide afterwards.
//
//   loss_in_module
//   loss_in_module --devices cuda:0,cuda:1 --batch-size 32 --side 256
#include <dp/data_parallel.h>
#include <torch/nn/modules/conv.h>
#include <torch/types.h>

#include <functional>
#include <iostream>

#include "samples/support/command_line.h"
#include "samples/support/devices.h"
#include "samples/support/first_device_memory.h"
#include "samples/support/gradients.h"
#include "samples/support/replica_traffic.h"
#include "samples/support/text.h"

namespace {

using namespace samples;

struct Options {
  std::vector<std::string> devices;
  int64_t batch_size = 16;
  int64_t classes = 21;
  int64_t side = 64;
};

// Computes class scores for each pixel of an image.
class PixelNet : public torch::nn::Module {
 public:
  PixelNet(int64_t classes, const FirstDeviceMemory& memory, bool is_first)
      : features_(torch::nn::Conv2dOptions(3, 16, 3).padding(1)),
        scores_(torch::nn::Conv2dOptions(16, classes, 1)),
        memory_(memory),
        is_first_(is_first) {
    register_module("features", features_);
    register_module("scores", scores_);
  }

  // Maps [n, 3, height, width] to [n, classes, height, width].
  torch::Tensor forward(const torch::Tensor& images) {
    const auto scope = memory_.scope(is_first_);
    return scores_(torch::relu(features_(images)));
  }

  // The recommended form: takes labels [n, height, width] and returns the mean
  // loss.
  torch::Tensor forward(const torch::Tensor& images,
                        const torch::Tensor& labels) {
    const auto scope = memory_.scope(is_first_);
    return torch::cross_entropy_loss(forward(images), labels);
  }

 private:
  torch::nn::Conv2d features_, scores_;
  const FirstDeviceMemory& memory_;  // only for the printed numbers
  bool is_first_;
};

using Model = dp::DataParallel<PixelNet>;
using Loss = std::function<torch::Tensor(Model& model)>;

// One step without the optimizer, so that all forms start from the same state.
struct Step {
  double loss = 0;
  dp::ReplicaTraffic others{torch::kCPU};  // traffic of the other devices
  int64_t forward_memory = 0;  // peak of the first device, in forward
  int64_t memory = 0;          // peak of the first device, in the whole step
  std::vector<torch::Tensor> gradients;
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : devices_(devices_or_several(options.devices, gpu_count())),
        memory_(devices_.front()),
        options_(options) {
    torch::manual_seed(0);
    net_ = make_net(true);
    net_->to(devices_.front());
  }

  const std::vector<c10::Device>& devices() const { return devices_; }
  bool sees_backward() const { return memory_.sees_backward(); }

  Step measure(dp::DataParallelOptions options, const Loss& loss) {
    Model model(net_, options.devices(devices_).make_replica([this] {
      return make_net(false);
    }));
    step(model, loss);  // the first step also allocates permanent memory
    return step(model, loss);
  }

 private:
  std::shared_ptr<PixelNet> make_net(bool is_first) const {
    return std::make_shared<PixelNet>(options_.classes, memory_, is_first);
  }

  Step step(Model& model, const Loss& compute) {
    Step step;
    net_->zero_grad();
    model->reset_traffic();
    memory_.reset();
    const auto loss = compute(model);
    step.forward_memory = memory_.peak();
    loss.backward();
    step.memory = memory_.peak();
    step.loss = loss.item<double>();
    step.others = sum_of_others(model->traffic());
    step.gradients = copy_gradients(*net_);
    return step;
  }

  std::vector<c10::Device> devices_;
  FirstDeviceMemory memory_;  // constructed before all measured allocations
  const Options& options_;
  std::shared_ptr<PixelNet> net_;
};

void print_row(const std::string& name,
               const std::vector<Step>& steps,
               const std::function<std::string(const Step&)>& text) {
  std::cout << format("%-42s", name.c_str());
  for (const auto& step : steps) {
    std::cout << format("%16s", text(step).c_str());
  }
  std::cout << "\n";
}

void print(const std::vector<Step>& steps, bool sees_backward) {
  const auto& outside = steps.front();
  std::cout << format(
      "%-42s%16s%16s%16s\n", "", "loss outside", "inside, vector", "dp::mean");
  print_row("loss", steps, [](const Step& step) {
    return format("%.6f", step.loss);
  });
  print_row(
      "gradients: difference from loss outside", steps, [&](const Step& step) {
        return format("%.1e",
                      relative_difference(step.gradients, outside.gradients));
      });
  print_row("outputs to the first device, bytes", steps, [](const Step& step) {
    return std::to_string(step.others.output_bytes);
  });
  print_row("inputs to the others, bytes", steps, [](const Step& step) {
    return std::to_string(step.others.input_bytes);
  });
  print_row(
      "first device, memory of forward, bytes", steps, [](const Step& step) {
        return std::to_string(step.forward_memory);
      });
  if (sees_backward) {
    print_row("first device, memory of the step, bytes",
              steps,
              [](const Step& step) { return std::to_string(step.memory); });
  }
}

void run(const Options& options) {
  Bench bench(options);
  const auto images =
      torch::randn({options.batch_size, 3, options.side, options.side});
  const auto labels =
      torch::randint(options.classes,
                     {options.batch_size, options.side, options.side},
                     torch::kInt64);

  std::vector<Step> steps;
  steps.push_back(bench.measure({}, [&](Model& model) {
    const auto scores = model->forward(images);
    return torch::cross_entropy_loss(scores, labels.to(scores.device()));
  }));
  steps.push_back(bench.measure({}, [&](Model& model) {
    // Wrong for parts of different size.
    return model->forward(images, labels).mean();
  }));
  steps.push_back(bench.measure(
      dp::DataParallelOptions().aggregate(dp::mean),
      [&](Model& model) { return model->forward(images, labels); }));

  std::cout << format("%ld images of %ldx%ld, %ld classes, on %s\n",
                      options.batch_size,
                      options.side,
                      options.side,
                      options.classes,
                      c10::Join(", ", bench.devices()).c_str());
  print(steps, bench.sees_backward());
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CommandLine line("loss_in_module",
                   "Computes the loss outside and inside of a replicated "
                   "module, and what each costs the first device.");
  const auto add = [&](const char* flag, int64_t& value, const char* help) {
    line.add(flag, value, help).between(1, 1 << 14);
  };
  add("--batch-size", options.batch_size, "Images of a step");
  add("--classes", options.classes, "Classes of a pixel");
  add("--side", options.side, "Pixels of an image's side");
  add_devices_option(line,
                     options.devices,
                     "all GPUs where there are two or more, else the CPU three "
                     "times");
  return line.run(argc, argv, [&] { run(options); });
}
