// How gradients are synchronised, seen on random images: which images each rank
// gets, what each rank's gradients would be alone and what they are after the
// all-reduce (their mean), and where the time goes. What one learns: a bucket
// of gradients is all-reduced while the backward pass still computes those of
// earlier layers (hidden); only what is left at its end is waited for
// (exposed).
//
//   ddprun --nproc-per-node=2 inspect_sync --timeline=timeline.json
//   ddprun --nproc-per-node=2 inspect_sync --model=resnet18 --bucket-cap-mb=5
//
// The timeline opens in chrome://tracing and ui.perfetto.dev.
#include <ATen/record_function.h>
#include <c10/util/StringUtil.h>
#include <ddp/ddp.h>
#include <torch/cuda.h>
#include <torch/optim/sgd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>

#include "samples/support/choices.h"
#include "samples/support/command_line.h"
#include "samples/support/evaluate.h"
#include "samples/support/gather.h"
#include "samples/support/profiler.h"
#include "samples/support/program.h"
#include "samples/support/read_file.h"
#include "samples/support/step_times.h"
#include "samples/support/synthetic.h"
#include "samples/support/text.h"
#include "samples/support/timeline.h"

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

// Rank 0 speaks.
void say(const std::string& line) {
  if (ddp::rank() == 0) {
    std::cout << line + "\n" << std::flush;
  }
}

// The end of what the GPU still does, so that a scope covers it.
void wait_for_device() {
  if (ddp::local_device().is_cuda()) {
    torch::cuda::synchronize(ddp::local_device().index());
  }
}

Dataset make_dataset(const Options& options) {
  return make_synthetic({options.shape[0], options.shape[1], options.shape[2]},
                        options.images);
}

ParallelClassifier wrap(const Options& options, const Dataset& dataset) {
  const auto network = make_model(
      options.model == "cnn" ? ModelKind::small_cnn : ModelKind::resnet18,
      dataset);
  network->to(ddp::local_device());
  return ParallelClassifier(network,
                            ddp::DistributedDataParallelOptions()
                                .bucket_cap_mb(options.bucket_cap_mb)
                                .first_bucket_cap_mb(options.bucket_cap_mb));
}

// This rank's images of the first step.
std::vector<size_t> draw(const Options& options) {
  ddp::DistributedSampler sampler(static_cast<size_t>(options.images));
  sampler.reset();
  const int64_t world = ddp::world_size();
  return *sampler.next(
      static_cast<size_t>((options.batch_size + world - 1) / world));
}

// A model on all ranks and one batch, which every step trains on again.
class Experiment {
 public:
  explicit Experiment(const Options& options)
      : dataset_(make_dataset(options)),
        indices_(draw(options)),
        model_(wrap(options, dataset_)),
        optimizer_(model_->parameters(), 0.01) {
    const auto batch = dataset_.train.get_batch(indices_);
    images_ = batch.data.to(ddp::local_device());
    labels_ = batch.target.to(ddp::local_device());
  }

  const std::vector<size_t>& indices() const { return indices_; }
  std::vector<std::string> names() const {
    return model_->module()->named_parameters().keys();
  }

  // One step as in any training.
  void step() {
    optimizer_.zero_grad();
    pass(*model_, "forward", "backward");
    RECORD_USER_SCOPE("optimizer");
    optimizer_.step();
    wait_for_device();
  }

  // Forward and backward of the wrapped module itself: nothing is sent.
  void pass_alone() {
    optimizer_.zero_grad();
    pass(*model_->module(), "forward alone", "backward alone");
  }

  // The gradients of this batch: this rank's own, and after the
  // synchronisation. Dropout draws alike for both.
  std::vector<torch::Tensor> gradients(bool are_synchronised) {
    ddp::seed_everything(kDropoutSeed);
    optimizer_.zero_grad();
    are_synchronised ? pass(*model_, "forward", "backward") : pass_alone();
    std::vector<torch::Tensor> result;
    for (const auto& parameter : model_->module()->parameters()) {
      result.push_back(parameter.grad().cpu().clone());
    }
    return result;
  }

 private:
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
  ParallelClassifier model_;
  torch::optim::SGD optimizer_;
  torch::Tensor images_;
  torch::Tensor labels_;
};

void show_split(const Experiment& experiment, const Options& options) {
  const auto& indices = experiment.indices();
  const auto all = gather(
      torch::tensor(std::vector<int64_t>(indices.begin(), indices.end())));
  say(
      format("1. The split: %ld random images, %ld for each rank in a step. "
             "The first step of epoch 0 takes",
             options.images,
             all.size(1)));
  for (int64_t rank = 0; rank < all.size(0); ++rank) {
    std::string line = format("rank %ld: images", rank);
    for (int64_t i = 0; i < all.size(1); ++i) {
      line += format(" %ld", all[rank][i].item<int64_t>());
    }
    say(line);
  }
}

// Places of the parameters that --parameters names; the first and the last
// where it names none.
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
    say(format("%-24s %4ld %14.6e %14.6e %14.6e %14.6e",
               name.c_str(),
               rank,
               row[0].item<double>(),
               row[1].item<double>(),
               row[2].item<double>(),
               row[3].item<double>()));
  }
}

// Of all parameters: the difference between what DDP made of the ranks' own
// gradients and their mean, and whether it is the same everywhere.
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
  say(
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
  say("\n2. Gradients of that step: of each rank alone, and synchronised");
  say(format("%-24s %4s %14s %14s %14s %14s",
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

void show_times(const std::vector<TraceEvent>& events, int64_t steps) {
  const StepTimes mine = step_times(events, steps);
  const auto rows =
      gather(torch::tensor({mine.forward,
                            mine.backward,
                            mine.compute,
                            mine.communication,
                            mine.hidden,
                            mine.exposed,
                            mine.optimizer,
                            phase_time(events, "backward alone", steps)},
                           torch::kFloat64));
  say(
      format("\n3. Times in ms: means of %ld steps, seen by the profiler. In "
             "the backward pass: computing, all-reduces at work, those hidden "
             "behind computing, those exposed",
             steps));
  say("rank  forward backward  compute all-reduce   hidden  exposed optimizer  "
      "backward alone");
  for (int64_t rank = 0; rank < rows.size(0); ++rank) {
    const auto cell = [&](int64_t column) {
      return rows[rank][column].item<double>();
    };
    say(format("%4ld %8.2f %8.2f %8.2f %10.2f %8.2f %8.2f %9.2f %15.2f",
               rank,
               cell(0),
               cell(1),
               cell(2),
               cell(3),
               cell(4),
               cell(5),
               cell(6),
               cell(7)));
  }
}

void show_reductions(const std::vector<TraceEvent>& events) {
  say("\n4. All-reduces of the last step on rank 0, in ms since its backward "
      "pass began");
  say("   begin      end   hidden   elements");
  for (const auto& reduction : last_reductions(events)) {
    say(format("%8.2f %8.2f %6.0f %% %10ld",
               reduction.begin,
               reduction.end,
               100 * reduction.hidden,
               reduction.elements));
  }
}

// All ranks' traces in one file; the clock of a host is one for its ranks.
void save_timeline(Profiler& profiler, const std::string& file) {
  const auto own = file + format(".rank%d", ddp::rank());
  profiler.save(own);
  const auto bytes = read_file(own);
  std::remove(own.c_str());
  const auto texts = gather_text({bytes.begin(), bytes.end()});
  if (ddp::rank() == 0) {
    std::ofstream out(file);
    out << merge_timelines(texts);
    out.close();
    TORCH_CHECK(out, "Expected to write ", file, ", but cannot.");
  }
  say("\ntimeline of " + std::to_string(texts.size()) + " ranks: " + file);
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
    save_timeline(profiler, options.timeline);
  }
}

void run(const Options& options) {
  ddp::init_process_group(
      process_group_options(options.device,
                            ddp::WorkerEnv::read(),
                            static_cast<int>(torch::cuda::device_count())));
  ddp::seed_everything(0);
  {
    Experiment experiment(options);
    show_split(experiment, options);
    show_gradients(experiment, options);
    show_steps(experiment, options);
  }
  ddp::destroy_process_group();
}

void add_options(CLI::App& app, Options& options) {
  const CLI::Range positive(int64_t{1}, int64_t{1} << 40);
  app.add_option("--model", options.model, "cnn or resnet18 (cnn)")
      ->check(CLI::IsMember({"cnn", "resnet18"}));
  app.add_option("--image-shape",
                 options.shape,
                 "Channels, height, width of the random images (3,32,32)")
      ->delimiter(',')
      ->expected(3)
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 16));
  app.add_option("--images", options.images, "Random images (512)")
      ->check(positive);
  app.add_option("--batch-size",
                 options.batch_size,
                 "Images a step over all ranks, of which each takes its share, "
                 "rounded up (64)")
      ->check(positive);
  app.add_option("--steps", options.steps, "Steps to measure (5)")
      ->check(positive);
  app.add_option("--bucket-cap-mb",
                 options.bucket_cap_mb,
                 "Size in MiB at which a bucket is all-reduced (1)")
      ->check(CLI::PositiveNumber);
  app.add_option("--parameters",
                 options.parameters,
                 "Whose gradients to print (the first and the last)")
      ->delimiter(',');
  app.add_option("--timeline",
                 options.timeline,
                 "File for the profiler's trace of all ranks");
  add_device_options(app, options.device);
}

}  // namespace

int main(int argc, char** argv) {
  silence_profiler();
  Options options;
  CLI::App app("Shows how gradients are synchronised, on random images.",
               "inspect_sync");
  add_options(app, options);
  if (const auto code = parse_command_line(app, argc, argv)) {
    return *code;
  }
  return run_program("inspect_sync", [&] { run(options); });
}
