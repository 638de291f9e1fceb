// Shows how gradients are synchronised, on random images: the images of each
// rank, each rank's own gradients, the gradients after the all-reduce (their
// mean), and the time of each phase.
//
// Purpose: shows overlap of communication and computation. A bucket of
// gradients is all-reduced while the backward pass still computes the gradients
// of earlier layers (hidden communication); only buckets that are unfinished at
// the end of the pass are waited for (exposed communication).
//
//   ddprun --nproc-per-node=2 inspect_sync --timeline=timeline.json
//   ddprun --nproc-per-node=2 inspect_sync --model=resnet18 --bucket-cap-mb=5
//
// The timeline can be opened in chrome://tracing and ui.perfetto.dev.
#include <ATen/record_function.h>
#include <c10/util/StringUtil.h>
#include <ddp/ddp.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "samples/support/command_line.h"
#include "samples/support/datasets.h"
#include "samples/support/devices.h"
#include "samples/support/models.h"
#include "samples/support/step_times.h"
#include "samples/support/text.h"
#include "samples/support/trace.h"

namespace {

using namespace samples;

constexpr int64_t kWarmUps = 2;
constexpr uint64_t kDropoutSeed = 1;

struct Options {
  std::string model = "cnn";
  std::vector<int64_t> shape{3, 32, 32};
  int64_t images = 512;
  int64_t batch_size = 64;
  int64_t steps = 5;
  double bucket_cap_mb = 1;
  std::vector<std::string> parameters;
  std::string timeline;
  DeviceOptions device;
};

// A model on all ranks and one batch of random images, which every step trains
// on. The steps have profiler scopes.
class Experiment {
 public:
  explicit Experiment(const Options& options)
      : dataset_(make_synthetic(
            {options.shape[0], options.shape[1], options.shape[2]},
            options.images)),
        indices_(draw(options)),
        model_(wrap(options, dataset_)),
        optimizer_(model_->parameters(), 0.01) {
    const auto batch = dataset_.train.get_batch(indices_);
    images_ = batch.data.to(ddp::local_device());
    labels_ = batch.target.to(ddp::local_device());
  }

  // Indices of this rank's images in the first step.
  const std::vector<size_t>& indices() const { return indices_; }

  std::vector<std::string> names() const {
    return model_->module()->named_parameters().keys();
  }

  // Runs one training step.
  void step() {
    optimizer_.zero_grad();
    pass(*model_, "forward", "backward");
    RECORD_USER_SCOPE("optimizer");
    optimizer_.step();
    wait_for_device();
  }

  // Runs forward and backward of the wrapped module itself, without
  // communication.
  void pass_alone() {
    const ddp::NoSyncGuard no_sync(*model_);
    optimizer_.zero_grad();
    pass(*model_->module(), "forward alone", "backward alone");
  }

  // Returns the gradients of this batch: this rank's own, or the synchronised
  // ones. Dropout draws the same random numbers for both.
  std::vector<torch::Tensor> gradients(bool are_synchronised) {
    ddp::seed_everything(kDropoutSeed);
    optimizer_.zero_grad();
    if (are_synchronised) {
      pass(*model_, "forward", "backward");
    } else {
      pass_alone();
    }
    std::vector<torch::Tensor> result;
    for (const auto& parameter : model_->module()->parameters()) {
      result.push_back(parameter.grad().cpu().clone());
    }
    return result;
  }

 private:
  using Model = ddp::DistributedDataParallel<Classifier>;

  static Model wrap(const Options& options, const Dataset& dataset) {
    const auto network = make_model(
        options.model == "cnn" ? ModelKind::small_cnn : ModelKind::resnet18,
        dataset);
    network->to(ddp::local_device());
    return Model(network,
                 ddp::DistributedDataParallelOptions()
                     .bucket_cap_mb(options.bucket_cap_mb)
                     .first_bucket_cap_mb(options.bucket_cap_mb));
  }

  static std::vector<size_t> draw(const Options& options) {
    ddp::DistributedSampler sampler(static_cast<size_t>(options.images));
    sampler.reset();
    const int64_t world = ddp::world_size();
    return *sampler.next(
        static_cast<size_t>((options.batch_size + world - 1) / world));
  }

  // Blocks until the GPU has finished its work, so that a profiler scope covers
  // it.
  static void wait_for_device() { synchronize(ddp::local_device()); }

  template <typename Module>
  void pass(Module& module, const char* forward, const char* backward) {
    torch::Tensor loss;
    {
      RECORD_USER_SCOPE(forward);
      loss = torch::cross_entropy_loss(module.forward(images_), labels_);
      wait_for_device();
    }
    RECORD_USER_SCOPE(backward);
    loss.backward();
    wait_for_device();
  }

  Dataset dataset_;
  std::vector<size_t> indices_;
  Model model_;
  torch::optim::SGD optimizer_;
  torch::Tensor images_;
  torch::Tensor labels_;
};

// Gathers a row of numbers from each rank, on the CPU.
torch::Tensor gather(const torch::Tensor& row) {
  return torch::stack(ddp::all_gather(row));
}

void show_split(const Experiment& experiment, const Options& options) {
  const auto& indices = experiment.indices();
  const auto all = gather(
      torch::tensor(std::vector<int64_t>(indices.begin(), indices.end())));
  print_on_first(
      format("1. The split: %ld random images, %ld for each rank in a step. "
             "The first step of epoch 0 takes",
             options.images,
             all.size(1)));
  for (int64_t rank = 0; rank < all.size(0); ++rank) {
    std::string line = format("rank %ld: images", rank);
    for (int64_t i = 0; i < all.size(1); ++i) {
      line += format(" %ld", all[rank][i].item<int64_t>());
    }
    print_on_first(line);
  }
}

// Returns the indices of the parameters that --parameters names; by default of
// the first and the last parameter.
std::vector<size_t> choose(const std::vector<std::string>& names,
                           const std::vector<std::string>& wanted) {
  if (wanted.empty()) {
    return {0, names.size() - 1};
  }
  std::vector<size_t> result;
  for (const auto& name : wanted) {
    const auto found = std::find(names.begin(), names.end(), name);
    TORCH_CHECK(found != names.end(),
                "Expected names of parameters in --parameters, of ",
                c10::Join(", ", names),
                ", but got ",
                name,
                ".");
    result.push_back(static_cast<size_t>(found - names.begin()));
  }
  return result;
}

void show_gradient(const std::string& name,
                   const torch::Tensor& alone,
                   const torch::Tensor& synchronised) {
  const auto rows = gather(torch::stack({alone.norm(),
                                         synchronised.norm(),
                                         alone.flatten()[0],
                                         synchronised.flatten()[0]}));
  for (int64_t rank = 0; rank < rows.size(0); ++rank) {
    const auto row = rows[rank];
    print_on_first(format("%-24s %4ld %14.6e %14.6e %14.6e %14.6e",
                          name.c_str(),
                          rank,
                          row[0].item<double>(),
                          row[1].item<double>(),
                          row[2].item<double>(),
                          row[3].item<double>()));
  }
}

// Prints, over all parameters, the difference between DDP's gradients and the
// mean of the ranks' own gradients, and whether DDP's gradients are equal on
// all ranks.
void show_mean(const std::vector<torch::Tensor>& alone,
               const std::vector<torch::Tensor>& synchronised) {
  double difference = 0;
  bool are_equal = true;
  for (size_t i = 0; i < alone.size(); ++i) {
    const auto mean = ddp::reduce_tensor(alone[i]);
    difference = std::max(difference,
                          (synchronised[i] - mean).abs().max().item<double>());
    are_equal =
        are_equal &&
        torch::equal(ddp::reduce_tensor(synchronised[i], ddp::Reduction::min),
                     ddp::reduce_tensor(synchronised[i], ddp::Reduction::max));
  }
  print_on_first(
      format("all %zu parameters: greatest difference to the mean of the ranks "
             "%.1e, %s on all ranks",
             alone.size(),
             difference,
             are_equal ? "equal bit for bit" : "NOT EQUAL"));
}

void show_gradients(Experiment& experiment, const Options& options) {
  const auto names = experiment.names();
  const auto chosen = choose(names, options.parameters);
  const auto alone = experiment.gradients(/*are_synchronised=*/false);
  const auto synchronised = experiment.gradients(/*are_synchronised=*/true);
  print_on_first(
      "\n2. Gradients of that step: of each rank alone, and synchronised");
  print_on_first(format("%-24s %4s %14s %14s %14s %14s",
                        "parameter",
                        "rank",
                        "norm alone",
                        "synchronised",
                        "first alone",
                        "synchronised"));
  for (const size_t index : chosen) {
    show_gradient(names[index], alone[index], synchronised[index]);
  }
  show_mean(alone, synchronised);
}

// Returns the time of the same backward pass without communication.
double milliseconds_alone(const std::vector<TraceEvent>& events,
                          int64_t steps) {
  const auto spans = scopes(events, "backward alone");
  return static_cast<double>(total_length(spans)) / 1e6 /
         static_cast<double>(steps);
}

void show_times(const std::vector<TraceEvent>& events, int64_t steps) {
  const StepTimes mine = step_times(events, steps);
  const auto rows = gather(torch::tensor({mine.forward,
                                          mine.backward,
                                          mine.compute,
                                          mine.communication,
                                          mine.hidden,
                                          mine.exposed,
                                          mine.optimizer,
                                          milliseconds_alone(events, steps)},
                                         torch::kFloat64));
  print_on_first(
      format("\n3. Times in ms: means of %ld steps, seen by the profiler. In "
             "the backward pass: computing, all-reduces at work, those hidden "
             "behind computing, those exposed",
             steps));
  print_on_first(
      "rank  forward backward  compute all-reduce   hidden  exposed optimizer  "
      "backward alone");
  constexpr std::array kWidths{9, 9, 9, 11, 9, 9, 10, 16};
  for (int64_t rank = 0; rank < rows.size(0); ++rank) {
    auto line = format("%4ld", rank);
    for (size_t column = 0; column < kWidths.size(); ++column) {
      const auto time = rows[rank][static_cast<int64_t>(column)];
      line += format("%*.2f", kWidths[column], time.item<double>());
    }
    print_on_first(line);
  }
}

void show_reductions(const std::vector<TraceEvent>& events) {
  print_on_first(
      "\n4. All-reduces of the last step on rank 0, in ms since its backward "
      "pass began");
  print_on_first("   begin      end   hidden   elements");
  for (const auto& reduction : last_all_reduces(events)) {
    print_on_first(format("%8.2f %8.2f %6.0f %% %10ld",
                          reduction.begin,
                          reduction.end,
                          100 * reduction.hidden,
                          reduction.elements));
  }
}

void show_steps(Experiment& experiment, const Options& options) {
  for (int64_t i = 0; i < kWarmUps; ++i) {
    experiment.pass_alone();
    experiment.step();
  }
  ddp::barrier();
  Profiler profiler(ddp::local_device());
  for (int64_t i = 0; i < options.steps; ++i) {
    experiment.pass_alone();
    experiment.step();
  }
  const auto events = profiler.stop();
  show_times(events, options.steps);
  show_reductions(events);
  if (!options.timeline.empty()) {
    save_timeline(options.timeline, events);
    print_on_first("\ntimeline of " + std::to_string(ddp::world_size()) +
                   " ranks: " + options.timeline);
  }
}

void run(const Options& options) {
  init_process_group(options.device);
  ddp::seed_everything(0);
  {
    Experiment experiment(options);
    show_split(experiment, options);
    show_gradients(experiment, options);
    show_steps(experiment, options);
  }
  ddp::destroy_process_group();
}

}  // namespace

int main(int argc, char** argv) {
  // Without a GPU, the profiler logs warnings about its absence.
  ::setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);
  Options options;
  CommandLine line("inspect_sync",
                   "Shows how gradients are synchronised, on random images.");
  line.add("--model", options.model, "Network").one_of({"cnn", "resnet18"});
  line.add("--image-shape",
           options.shape,
           "Channels, height, width of the random images")
      .count(3)
      .between(1, 1 << 16);
  line.add("--images", options.images, "Random images").at_least(1);
  line.add("--batch-size",
           options.batch_size,
           "Images a step over all ranks, of which each takes its share, "
           "rounded up")
      .at_least(1);
  line.add("--steps", options.steps, "Steps to measure").at_least(1);
  line.add("--bucket-cap-mb",
           options.bucket_cap_mb,
           "Size in MiB at which a bucket is all-reduced")
      .above_zero();
  line.add("--parameters",
           options.parameters,
           "Whose gradients to print (the first and the last)");
  line.add("--timeline",
           options.timeline,
           "File for the profiler's trace of all ranks");
  add_device_options(line, options.device);
  return line.run(argc, argv, [&] { run(options); });
}
