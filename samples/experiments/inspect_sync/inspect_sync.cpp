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
#include <c10/util/StringUtil.h>
#include <ddp/ddp.h>
#include <ddp/trace.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "samples/experiments/gather.h"
#include "samples/experiments/inspect_sync/experiment.h"
#include "samples/support/command_line.h"
#include "samples/support/devices.h"
#include "samples/support/text.h"

namespace {

using namespace samples;

constexpr int64_t kWarmUps = 2;

// Prints a line on rank 0 only.
void say(const std::string& line) {
  if (ddp::rank() == 0) {
    std::cout << line + "\n" << std::flush;
  }
}

void show_split(const Experiment& experiment, const InspectOptions& options) {
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

// Returns the indices of the parameters that --parameters names; if it names
// none, those of the first and the last parameter.
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
  say(
      format("all %zu parameters: greatest difference to the mean of the ranks "
             "%.1e, %s on all ranks",
             alone.size(),
             difference,
             are_equal ? "equal bit for bit" : "NOT EQUAL"));
}

void show_gradients(Experiment& experiment, const InspectOptions& options) {
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

// Returns the time of the same backward pass without communication.
double milliseconds_alone(const std::vector<ddp::TraceEvent>& events,
                          int64_t steps) {
  const auto spans = ddp::scopes(events, "backward alone");
  return static_cast<double>(ddp::total_length(spans)) / 1e6 /
         static_cast<double>(steps);
}

void show_times(const std::vector<ddp::TraceEvent>& events, int64_t steps) {
  const ddp::StepTimes mine = ddp::step_times(events, steps);
  const auto rows = gather(torch::tensor({mine.forward,
                                          mine.backward,
                                          mine.compute,
                                          mine.communication,
                                          mine.hidden,
                                          mine.exposed,
                                          mine.optimizer,
                                          milliseconds_alone(events, steps)},
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

void show_reductions(const std::vector<ddp::TraceEvent>& events) {
  say("\n4. All-reduces of the last step on rank 0, in ms since its backward "
      "pass began");
  say("   begin      end   hidden   elements");
  for (const auto& reduction : ddp::last_all_reduces(events)) {
    say(format("%8.2f %8.2f %6.0f %% %10ld",
               reduction.begin,
               reduction.end,
               100 * reduction.hidden,
               reduction.elements));
  }
}

void show_steps(Experiment& experiment, const InspectOptions& options) {
  for (int64_t i = 0; i < kWarmUps; ++i) {
    experiment.pass_alone();
    experiment.step();
  }
  ddp::barrier();
  ddp::Profiler profiler;
  for (int64_t i = 0; i < options.steps; ++i) {
    experiment.pass_alone();
    experiment.step();
  }
  const auto events = profiler.stop();
  show_times(events, options.steps);
  show_reductions(events);
  if (!options.timeline.empty()) {
    ddp::save_timeline(options.timeline, events);
    say("\ntimeline of " + std::to_string(ddp::world_size()) +
        " ranks: " + options.timeline);
  }
}

void run(const InspectOptions& options) {
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
  InspectOptions options;
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
